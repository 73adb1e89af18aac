# The part that all toolchains share. Zig's Clang compiles for ${zig_target}. Zig also provides the C library of that
# target, and a C++ library that is linked statically.
set(zig ${CMAKE_CURRENT_LIST_DIR}/../node_modules/.bin/zig)
# The options -O3 and -s are for CMake's checks of the compiler, which pass none of their own. Without these options, Zig
# would compile its C++ library a second time, for the checks. With -s, Zig also leaves the symbols out of the module.
# `strip` is not used: it supports only this machine's format, and changing a finished file for macOS would break its
# signature. The last option disables a warning that libc++ would cause many times: only some of its headers have
# nullability annotations.
set(CMAKE_CXX_COMPILER ${zig} c++ -target ${zig_target} -O3 -s -Wno-nullability-completeness)

# Zig writes the x86-64 levels with underscores, as in -march=x86_64_v3.
set(POLICY_LOSS_X86_LEVEL x86_64_v)

# Zig's archiver is the command `zig ar`. CMAKE_AR takes only one word, so these rules call the archiver instead.
set(CMAKE_CXX_ARCHIVE_CREATE "${zig} ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "${zig} ar q <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "${zig} ranlib <TARGET>")

set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
