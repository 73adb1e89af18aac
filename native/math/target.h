// Macros with which the same scalar code is compiled for several processors.
//
// A header is compiled once for each CPU instruction set, once by nvcc for the GPU, and once for the GPU's
// emulation. POLICY_LOSS_TARGET names the build. Every function that is compiled more than once is in an
// inline namespace with that name. The linker therefore never gives the AVX-512 copy of a function to the
// baseline build. PL_FN inlines functions for the same reason.
#pragma once

#ifndef POLICY_LOSS_TARGET
#define POLICY_LOSS_TARGET portable
#endif

#if defined(__CUDACC__)
#define PL_FN __host__ __device__ __forceinline__
// Before a loop that few rows run, so that nvcc does not repeat its body in every kernel.
#define PL_NO_UNROLL _Pragma("unroll 1")
#else
#define PL_FN inline __attribute__((always_inline))
#define PL_NO_UNROLL
#endif
