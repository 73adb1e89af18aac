# Toolchain for Windows on x64.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(zig_target x86_64-windows-gnu)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)

# Makes the import library of the Node-API from the list of its functions. The import library names node.exe. So a
# program with another name, such as Electron, cannot load the module.
set(node_api ${CMAKE_CURRENT_LIST_DIR}/../../../build/prebuild/node_api.lib)
if(NOT EXISTS ${node_api})
  execute_process(COMMAND node -p "require('node-api-headers').def_paths.node_api_def"
    WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR} OUTPUT_VARIABLE definitions OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${zig} dlltool -m i386:x86-64 -d ${definitions} -l ${node_api} COMMAND_ERROR_IS_FATAL ANY)
endif()
string(APPEND CMAKE_SHARED_LINKER_FLAGS_INIT " ${node_api}")
