// What lets one piece of scalar code serve several machines.
//
// The same header is compiled once for each CPU instruction set, once by nvcc for the GPU and once for the
// GPU's emulation. POLICY_LOSS_TARGET names the build: every function below native/ that is compiled more
// than once lives in that inline namespace, so that the linker can never hand the AVX-512 copy of a function
// to the baseline build, and all of them are inlined for the same reason.
#pragma once

#ifndef POLICY_LOSS_TARGET
#define POLICY_LOSS_TARGET portable
#endif

#if defined(__CUDACC__)
#define PL_FN __host__ __device__ __forceinline__
#else
#define PL_FN inline __attribute__((always_inline))
#endif
