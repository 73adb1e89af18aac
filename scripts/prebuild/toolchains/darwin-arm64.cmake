# Toolchain for macOS 11 or later on Apple silicon.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(zig_target aarch64-macos.11.0)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
# Allows undefined symbols, because the process that loads the module provides the functions of the Node-API.
string(APPEND CMAKE_SHARED_LINKER_FLAGS_INIT " -Wl,-undefined,dynamic_lookup")
# Without these two settings, the module's install name would contain a path of the build machine.
set(CMAKE_INSTALL_NAME_DIR @rpath)
set(CMAKE_BUILD_WITH_INSTALL_NAME_DIR ON)
