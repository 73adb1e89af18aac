# Toolchain for Linux on arm64 with glibc 2.28 or later. This build includes the CUDA kernels. nvcc compiles their host
# code with GCC's cross compiler, not with Zig, and takes headers and libraries from the folder of the server platform.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(zig_target aarch64-linux-gnu.2.28)
find_program(aarch64_gxx aarch64-linux-gnu-g++)
if(NOT aarch64_gxx)
  message(FATAL_ERROR "aarch64-linux-gnu-g++: not found. It is in Debian's package g++-aarch64-linux-gnu.")
endif()
set(CMAKE_CUDA_HOST_COMPILER ${aarch64_gxx})
set(CMAKE_CUDA_FLAGS_INIT --target-directory=sbsa-linux)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
