# Toolchain for Linux on x64 with glibc 2.28 and later. This build has CUDA, and nvcc compiles host code with the
# machine's own g++.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(zig_target x86_64-linux-gnu.2.28)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
