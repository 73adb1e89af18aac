# Toolchain for Linux on x64 with glibc 2.28 or later. This build includes the CUDA kernels. nvcc compiles their host
# code with this machine's own g++, not with Zig.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(zig_target x86_64-linux-gnu.2.28)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
