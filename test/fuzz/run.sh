#!/usr/bin/env bash
# Runs the fuzzers: that of the CPU engine (libFuzzer, engine.cc), then that of the JavaScript boundary
# (test/fuzz-boundary).
#
#   run.sh [SECONDS [engine|boundary]]    each of them for so long, an hour by default; or one of them
#
# The engine's fuzzer starts from test/fuzz/corpus and from the inputs that failed once, in test/fuzz/regressions. What it
# finds on the way stays in build/fuzz/corpus, and an input that fails in build/fuzz/faults: see README.md. CLANG names
# another clang++, by its full name.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:-3600}
which=${2:-all}
clang=${CLANG:-clang++-19}
out=build/fuzz
failed=0

fuzz_engine() {
  command -v "$clang" >/dev/null || { echo "run.sh: no $clang; Debian has clang-19 and libclang-rt-19-dev" >&2; return 1; }
  # Comparisons within loops over tokens tell the fuzzer nothing, and cost it a fifth of its time.
  CXX=$clang cmake -S . -B $out -DPOLICY_LOSS_CUDA=OFF -DPOLICY_LOSS_SANITIZE=address,undefined,fuzzer-no-link \
    -DCMAKE_CXX_FLAGS=-fno-sanitize-coverage=trace-cmp >/dev/null || return
  cmake --build $out --parallel "$(nproc)" --target fuzz_engine || return
  mkdir -p $out/corpus $out/faults
  local log=$out/log
  if ! $out/test/fuzz/fuzz_engine -max_total_time="$seconds" -max_len=256 -len_control=0 -timeout=60 \
    -artifact_prefix=$out/faults/ $out/corpus test/fuzz/regressions test/fuzz/corpus >"$log" 2>&1; then
    tail -n 80 "$log"
    return 1
  fi
  sed -nE 's/^Done ([0-9]+) runs in ([0-9]+) second.*/  engine fuzzer: \1 executions in \2 s/p' "$log"
}

if [ "$which" != boundary ]; then
  if fuzz_engine; then echo "  1 passing"; else echo "  1 failing"; failed=1; fi
fi
if [ "$which" != engine ]; then
  npx tsx test/fuzz-boundary/fuzz.ts "$seconds" || failed=1
fi
exit $failed
