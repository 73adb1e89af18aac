# The part of every toolchain here that is the same: Zig's Clang as the compiler of ${zig_target}, with the C library
# and the C++ library that it brings for that target, the latter linked statically.
set(zig ${CMAKE_CURRENT_LIST_DIR}/../node_modules/.bin/zig)
# libc++ marks pointers in only some of its headers, which Clang would say of each of them.
set(CMAKE_CXX_COMPILER ${zig} c++ -target ${zig_target} -Wno-nullability-completeness)

# Zig's spelling: -march=x86_64_v3.
set(POLICY_LOSS_X86_LEVEL x86_64_v)

# CMake names an archiver by one word, and Zig's has two.
set(CMAKE_CXX_ARCHIVE_CREATE "${zig} ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "${zig} ar q <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "${zig} ranlib <TARGET>")

# Symbols are left out as the linker writes the file: strip of the machine that builds knows no other format than its
# own, and to change a file for macOS afterwards breaks its signature.
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)

set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
