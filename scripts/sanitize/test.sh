#!/usr/bin/env bash
# Builds the native module and a native test with Clang's sanitizers, and runs tests with them:
#
#   test.sh asan    finds memory errors, undefined behaviour and leaks. Runs the test of the emulated kernels, the
#                   suites that check numbers and bad input, and a short soak test.
#   test.sh tsan    finds data races. Runs the test of the thread pool, the suites with overlapping and aborted calls,
#                   and a short soak test.
#
# When a sanitizer finds a mistake, it ends the process, so the suite fails. The environment variable POLICY_LOSS_ISA
# selects the instruction set; the default is the widest one of this machine. CLANG names the compiler; the default is
# clang++-19.
set -euo pipefail
cd "$(dirname "$0")/../.."

clang=${CLANG:-clang++-19}
kind=${1:-}
case $kind in
  asan)
    sanitizers=address,undefined
    native=emulation_test
    native_path=emulated/emulation_test
    # These pieces take long and are left out. bfloat16 has the code of float16 except for conversions. The others test
    # the order of blocks, and that the emulation finds kernels that are broken on purpose.
    native_options=(-bfloat16 -interleaved "-broken kernels")
    # The fuzzer of the engine draws batches with a sanitizer too, so the suites that compare with references are left out.
    suites=(test/matrix/{bits,by-hand,instruction-sets,logits-losses,merge,parts}.test.ts test/{call/determinism,batch/counts,base/errors,logits/logits,call/result-arrays}.test.ts
      test/losses/advantages/*.test.ts test/call/worker-threads.test.ts test/fuzz-boundary/boundary.test.ts)
    ;;
  tsan)
    sanitizers=thread
    native=concurrency_test
    native_path=test/native/concurrency_test
    native_options=()
    suites=(test/matrix/bits.test.ts test/base/errors.test.ts test/call/{determinism,small-calls,worker-threads}.test.ts)
    ;;
  *)
    echo "usage: test.sh asan|tsan" >&2
    exit 2
    ;;
esac
scripts/sanitize/has-clang.sh

out=build/$kind
CXX=$clang npx cmake-js configure --runtime node -O "$out" --CDPOLICY_LOSS_CUDA=OFF \
  --CDPOLICY_LOSS_SANITIZE=$sanitizers >/dev/null
cmake --build "$out" --parallel "$(nproc)" --target policy_loss $native

export UBSAN_OPTIONS=print_stacktrace=1
# Makes ThreadSanitizer check only the native module. Node is built without ThreadSanitizer, which therefore cannot see
# how V8 orders the work of several threads.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1
export LSAN_OPTIONS=suppressions=$PWD/scripts/sanitize/lsan.supp:print_suppressions=0

# Node is not linked with the sanitizer's run-time library, so the library is preloaded. malloc_context_size=2 records
# only the caller of each allocation. lsan.supp needs this to tell Node's leaks from the native module's.
# allocator_may_return_null=1 lets allocations fail that are too large, as they do without a sanitizer.
runtime=$("$clang" --print-file-name="libclang_rt.$kind-$(uname -m).so")
in_node() {
  LD_PRELOAD=$runtime ASAN_OPTIONS=malloc_context_size=2:allocator_may_return_null=1 POLICY_LOSS_NATIVE=$PWD/$out/Release/policy_loss.node \
    node "$@"
}

# Runs a command as one test, whose name is the first argument. Prints the command's output only if it fails.
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

# The native test keeps one core busy for minutes, so it runs at the same time as the suites.
passes $native "$out/$native_path" "${native_options[@]}" &
native_run=$!
# Long tests are left out that find nothing more with a sanitizer: the reference takes most of the time of long rows, of
# which other tests have some, and whether a call hangs or what an error says depends on JavaScript alone.
left_out=': long rows$|does not hang for|lengths of lists that claim|throws a LossError whatever|repeats only the beginning'
in_node node_modules/mocha/bin/mocha.js --timeout 600000 --reporter dot --grep "$left_out" --invert "${suites[@]}" || failed=1
passes soak in_node --import tsx scripts/soak/soak.ts --minutes 0.5 || failed=1
wait $native_run || failed=1
exit $failed
