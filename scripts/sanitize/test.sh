#!/usr/bin/env bash
# Builds the addon and the native tests with Clang's sanitizers and runs tests under them:
#
#   test.sh asan    addresses, undefined behaviour, leaks: the kernels' emulation, the suites of numbers and of bad
#                   input, mixed calls from several threads
#   test.sh tsan    data races: the pool's own test, overlapping and aborted calls, mixed calls from several threads
#
# A report of a sanitizer ends the process that it is about, and so fails its suite. POLICY_LOSS_ISA chooses the
# instruction set as ever, the widest one by default; CLANG names another clang++, by its full name.
set -euo pipefail
cd "$(dirname "$0")/../.."

clang=${CLANG:-clang++-19}
kind=${1:-}
case $kind in
  asan)
    sanitizers=address,undefined
    native=emulation_test
    native_path=emulated/emulation_test
    suites=(test/{golden,cross-validation,determinism,masking,micro-batches,counts,empty,errors}.test.ts
      test/advantage*.test.ts test/worker-threads.test.ts test/fuzz-boundary/boundary.test.ts)
    ;;
  tsan)
    sanitizers=thread
    native=concurrency_test
    native_path=test/native/concurrency_test
    suites=(test/{determinism,errors,worker-threads}.test.ts)
    ;;
  *)
    echo "usage: test.sh asan|tsan" >&2
    exit 2
    ;;
esac
command -v "$clang" >/dev/null || { echo "test.sh: no $clang; Debian has clang-19 and libclang-rt-19-dev" >&2; exit 1; }

out=build/$kind
CXX=$clang npx cmake-js configure --runtime node -O "$out" --CDPOLICY_LOSS_CUDA=OFF \
  --CDPOLICY_LOSS_SANITIZE=$sanitizers >/dev/null
cmake --build "$out" --parallel "$(nproc)" --target policy_loss $native

export UBSAN_OPTIONS=print_stacktrace=1
# Only what the addon does, and what others do on its behalf, is looked at: Node is not built with ThreadSanitizer,
# which does not see how V8 orders its threads.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1
export LSAN_OPTIONS=suppressions=$PWD/scripts/sanitize/lsan.supp:print_suppressions=0

# Node has no sanitizer's run-time library of its own. malloc_context_size: of an allocation its caller is kept and no
# more, which is what lsan.supp goes by.
runtime=$("$clang" --print-file-name="libclang_rt.$kind-$(uname -m).so")
in_node() {
  LD_PRELOAD=$runtime ASAN_OPTIONS=malloc_context_size=2 POLICY_LOSS_NATIVE=$PWD/$out/Release/policy_loss.node \
    node "$@"
}

# Runs a suite that does not count by itself, quietly unless it fails.
failed=0
passes() {
  local log=$out/$1.log
  if "${@:2}" >"$log" 2>&1; then
    echo "  1 passing: $1"
  else
    tail -n 200 "$log"
    echo "  1 failing: $1"
    return 1
  fi
}

# One core's work and several minutes, beside the others.
passes $native "$out/$native_path" &
native_run=$!
in_node node_modules/mocha/bin/mocha.js --timeout 600000 --reporter dot "${suites[@]}" || failed=1
passes soak in_node --import tsx scripts/soak/soak.ts --minutes 0.5 || failed=1
wait $native_run || failed=1
exit $failed
