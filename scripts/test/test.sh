#!/usr/bin/env bash
# Runs the suites of `npm test` with the existing builds:
#
#   test.sh              all suites, on the CPU and on the emulated GPU
#   test.sh emulated     only the tests of the CUDA kernels, on the emulated GPU
#   test.sh interleaved only tests of what the CUDA kernels compute, while three blocks of a grid take turns
#
# The C++ test of the kernels keeps one core busy for most of the time, so it runs at the same time as the JavaScript
# suites.
set -euo pipefail
cd "$(dirname "$0")/../.."

emulated=$PWD/build/emulated
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

pieces=()
device_suites=(test/device/*.test.ts)
if [ "${1:-}" = interleaved ]; then
  export POLICY_LOSS_EMULATION_RESIDENT=3
  pieces=("functions, packed")
  device_suites=(--timeout 600000 test/device/{program,advantages,corrections,expressions,matrix}.test.ts)
fi

{ "$emulated/no_threads_test" && "$emulated/emulation_test" "${pieces[@]}"; } >"$log" 2>&1 &
kernels=$!

if [ -z "${1:-}" ]; then
  # The longest files and folders come first, so that only short files are left near the end.
  files=(test/{tools/identify/identify,matrix/bits,matrix/reference,losses/numerics,algorithm/objective,losses/correction}.test.ts)
  for file in test/tools/{cluster,cli,parts,report,rollouts,doctor,identify}/*.test.ts test/fuzz-files/*.test.ts \
    test/{matrix,losses,losses/advantages,program,define,algorithm,base,batch,call,logits,tfjs}/*.test.ts; do
    [[ " ${files[*]} " == *" $file "* ]] || files+=("$file")
  done
  npx mocha --parallel "${files[@]}" || failed=1
fi
POLICY_LOSS_EMULATION_DEVICES=2 POLICY_LOSS_EMULATION_MEMORY=268435456 \
  POLICY_LOSS_NATIVE=$emulated/policy_loss_emulated.node npx mocha --parallel "${device_suites[@]}" || failed=1
wait "$kernels" || failed=1
cat "$log"
exit "$failed"
