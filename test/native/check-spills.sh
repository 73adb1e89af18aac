#!/usr/bin/env bash
# Compiles the kernels that read their tokens through a feed (native/cuda/feed.cuh), those that interpret user-defined
# losses, and those that compute from logits or hidden states, for the architectures that builds from source add to those
# of the prebuilt binaries. Tests in test/install do the same for the latter. Prints how many registers each kernel uses.
# Needs nvcc 12.8 or later. Fails in two cases:
#
# - One of these kernels uses local memory. Spilled registers would use memory bandwidth, which limits their speed.
# - One of them declares more shared memory than kOwnSharedBytes, from which the host computes the number of blocks.
set -euo pipefail
cd "$(dirname "$0")/../.."

report=$(mktemp)
object=$(mktemp)
trap 'rm -f "$report" "$object"' EXIT

for architecture in 100 120; do
  for source in native/cuda/{tokens_*,rows,advantages,program,logits,head}.cu; do
    nvcc -std=c++20 -O3 -DPOLICY_LOSS_TARGET=gpu -Inative -Xptxas -v -cubin \
      -gencode "arch=compute_$architecture,code=sm_$architecture" -o "$object" "$source" 2>>"$report"
  done
done

# For each kernel, ptxas prints three lines: the kernel's name, its local memory, and its registers and shared memory.
awk -v own_shared_bytes=8704 '
  /Compiling entry function/ {
    name = $0; sub(/^.*4cuda[0-9]+/, "", name); sub(/\x27 for \x27/, " ", name); sub(/\x27.*/, "", name)
    checked = name ~ /^(token|row|kl|value_sums|distill|program_(rows|tokens)|logits_(sums|rows|gradient)|product)_kernel/
  }
  /bytes stack frame/ { local = $1 + $5 + $9 }
  /Used [0-9]+ registers/ && checked {
    match($0, /Used [0-9]+/)
    registers = substr($0, RSTART + 5, RLENGTH - 5)
    shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
    ++kernels
    printf "%s: %s registers, %d bytes of local memory, %d of shared\n", name, registers, local, shared
    if (local > 0 || shared > own_shared_bytes) ++bad
  }
  END {
    printf "%d kernels, %d with local memory or too much shared memory\n", kernels, bad
    exit kernels == 0 || bad > 0
  }
' "$report"
