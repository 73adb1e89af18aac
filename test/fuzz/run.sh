#!/usr/bin/env bash
# Runs two fuzzers. The engine fuzzer (engine.cc, with libFuzzer) tests the CPU engine. The boundary fuzzer
# (test/fuzz-boundary) tests the JavaScript functions of the package.
#
#   run.sh [SECONDS [engine|boundary]]    runs both, or the named one, each for SECONDS (default: an hour)
#
# The engine fuzzer starts from the inputs in test/fuzz/corpus and test/fuzz/regressions. It writes new inputs to
# build/fuzz/corpus, and inputs that fail to build/fuzz/faults; see README.md. The environment variable CLANG names the
# compiler; the default is clang++-19.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:-3600}
which=${2:-all}
clang=${CLANG:-clang++-19}
out=build/fuzz
failed=0

fuzz_engine() {
  scripts/sanitize/has-clang.sh || return
  # Switches off the tracing of comparisons (trace-cmp). In loops over tokens it takes a fifth of the time, and it does
  # not help the fuzzer.
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
