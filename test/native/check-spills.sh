#!/usr/bin/env bash
# Compiles the token kernels for every architecture that is shipped, and fails if one of them keeps anything in
# local memory: a spilled register is a trip to memory in a kernel that memory is to bound. Needs nvcc; prints
# each kernel's registers.
set -euo pipefail
cd "$(dirname "$0")/../.."

report=$(mktemp)
object=$(mktemp)
trap 'rm -f "$report" "$object"' EXIT

for architecture in 80 86 89 90 100 120; do
  for source in native/cuda/tokens_*.cu; do
    nvcc -std=c++20 -O3 -DPOLICY_LOSS_TARGET=gpu -Inative -Xptxas -v -cubin \
      -gencode "arch=compute_$architecture,code=sm_$architecture" -o "$object" "$source" 2>>"$report"
  done
done

# Of each kernel three lines: its name, its local memory, its registers.
awk '
  /Compiling entry function/ {
    name = $0; sub(/^.*token_kernel/, "", name); sub(/\x27 for \x27/, " ", name); sub(/\x27.*/, "", name)
    counts = /token_kernel/
  }
  /bytes stack frame/ { local = $1 + $5 + $9 }
  /Used [0-9]+ registers/ && counts {
    match($0, /Used [0-9]+/)
    ++kernels
    printf "%s: %s registers, %d bytes of local memory\n", name, substr($0, RSTART + 5, RLENGTH - 5), local
    if (local > 0) ++bad
  }
  END {
    printf "%d token kernels, %d with local memory\n", kernels, bad
    exit kernels == 0 || bad > 0
  }
' "$report"
