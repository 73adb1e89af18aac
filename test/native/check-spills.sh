#!/usr/bin/env bash
# Compiles the kernels that are fed (native/cuda/feed.cuh) for every architecture that is shipped, and fails if one of
# them keeps anything in local memory: a spilled register is a trip to memory in a kernel that memory is to bound. Or if
# one has more shared memory of its own than the host reckons with, which decides how many blocks it launches. Needs
# nvcc; prints each kernel's registers.
set -euo pipefail
cd "$(dirname "$0")/../.."

report=$(mktemp)
object=$(mktemp)
trap 'rm -f "$report" "$object"' EXIT

for architecture in 80 86 89 90 100 120; do
  for source in native/cuda/{tokens_*,rows,advantages}.cu; do
    nvcc -std=c++20 -O3 -DPOLICY_LOSS_TARGET=gpu -Inative -Xptxas -v -cubin \
      -gencode "arch=compute_$architecture,code=sm_$architecture" -o "$object" "$source" 2>>"$report"
  done
done

# Of each kernel three lines: its name, its local memory, its registers and shared memory. own: kOwnSharedBytes.
awk -v own=8704 '
  /Compiling entry function/ {
    name = $0; sub(/^.*4cuda[0-9]+/, "", name); sub(/\x27 for \x27/, " ", name); sub(/\x27.*/, "", name)
    counts = name ~ /^(token|row|kl|value_sums|distill)_kernel/
  }
  /bytes stack frame/ { local = $1 + $5 + $9 }
  /Used [0-9]+ registers/ && counts {
    match($0, /Used [0-9]+/)
    registers = substr($0, RSTART + 5, RLENGTH - 5)
    shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
    ++kernels
    printf "%s: %s registers, %d bytes of local memory, %d of shared\n", name, registers, local, shared
    if (local > 0 || shared > own) ++bad
  }
  END {
    printf "%d kernels that are fed, %d with local memory or too much shared\n", kernels, bad
    exit kernels == 0 || bad > 0
  }
' "$report"
