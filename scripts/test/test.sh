#!/usr/bin/env bash
# Runs suites with the existing builds:
#
#   test.sh              the JavaScript suites, on the CPU and on the emulated GPU
#   test.sh emulated     only those on the emulated GPU
#   test.sh long         the suites that wait or compute for minutes, which the first form leaves out
#   test.sh kernels      the C++ tests of the CUDA kernels on the emulated GPU and of the engine without threads, then what
#                        the kernels compute while three blocks of a grid take turns
set -euo pipefail
cd "$(dirname "$0")/../.."

emulated=$PWD/build/emulated
on_device() {
  POLICY_LOSS_EMULATION_DEVICES=2 POLICY_LOSS_EMULATION_MEMORY=268435456 \
    POLICY_LOSS_NATIVE=$emulated/policy_loss_emulated.node npx mocha --parallel "$@"
}
# The suites that the first form leaves out.
long=(test/{losses/numerics,batch/counts,call/determinism,base/declaration-types,define/random}.test.ts
  test/fuzz-files/*.test.ts test/tools/cli/streams.test.ts
  test/tools/{identify,cluster,parts,rollouts/long}/*.test.ts)
long_on_device=(test/device/{logits,logits-losses,failures,expressions,matrix-{bits,reference,logits}}.test.ts)

case ${1:-} in
  '')
    # The longest files come first, so that only short files are left near the end.
    files=(test/{matrix/logits-losses,matrix/bits,matrix/reference,algorithm/objective,losses/correction}.test.ts)
    for file in test/tools/{cli,report,rollouts,doctor}/*.test.ts test/*.test.ts \
      test/{matrix,losses,losses/advantages,program,define,algorithm,base,batch,call,logits,tfjs,docs}/*.test.ts; do
      [[ " ${files[*]} ${long[*]} " == *" $file "* ]] || files+=("$file")
    done
    failed=0
    npx mocha --parallel "${files[@]}" || failed=1
    files=()
    for file in test/device/*.test.ts; do
      [[ " ${long_on_device[*]} " == *" $file "* ]] || files+=("$file")
    done
    on_device "${files[@]}" || failed=1
    exit "$failed"
    ;;
  emulated)
    on_device test/device/*.test.ts
    ;;
  long)
    failed=0
    npx mocha --parallel "${long[@]}" test/walk-through/{loss,column}.test.ts || failed=1
    on_device "${long_on_device[@]}" || failed=1
    exit "$failed"
    ;;
  kernels)
    "$emulated/no_threads_test"
    "$emulated/emulation_test"
    export POLICY_LOSS_EMULATION_RESIDENT=3
    "$emulated/emulation_test" "functions, packed" &
    on_device test/device/{program,advantages,corrections,expressions,matrix-bits}.test.ts
    wait $!
    ;;
  *)
    echo "usage: test.sh [emulated|long|kernels]" >&2
    exit 2
    ;;
esac
