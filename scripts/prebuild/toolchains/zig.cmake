# The common part of all toolchains: Zig's Clang compiles for ${zig_target}, with the C library that Zig has for that
# target and its C++ library, which is linked statically.
set(zig ${CMAKE_CURRENT_LIST_DIR}/../node_modules/.bin/zig)
# Only some of libc++'s headers have nullability annotations, which causes many warnings.
set(CMAKE_CXX_COMPILER ${zig} c++ -target ${zig_target} -Wno-nullability-completeness)

# Zig's spelling of the x86-64 levels, as in -march=x86_64_v3.
set(POLICY_LOSS_X86_LEVEL x86_64_v)

# Zig's archiver is a command of two words, but CMAKE_AR takes one.
set(CMAKE_CXX_ARCHIVE_CREATE "${zig} ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "${zig} ar q <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "${zig} ranlib <TARGET>")

# The linker omits symbols. `strip` supports this machine's format only, and changing a file for macOS would break
# its signature.
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)

set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
