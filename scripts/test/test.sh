#!/usr/bin/env bash
# Runs the suites of `npm test` with the existing builds:
#
#   test.sh             all suites, on the CPU and on the emulated GPU
#   test.sh emulated    only the tests of the CUDA kernels, on the emulated GPU
#
# The C++ test of the kernels keeps one core busy for most of the time, so it runs at the same time as the JavaScript
# suites.
set -euo pipefail
cd "$(dirname "$0")/../.."

emulated=$PWD/build/emulated
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

{ "$emulated/no_threads_test" && "$emulated/emulation_test"; } >"$log" 2>&1 &
kernels=$!

if [ "${1:-}" != emulated ]; then
  # The longest files and folders come first, so that only short files are left near the end.
  files=(test/{cross-validation,numerics,objective,micro-batches,beyond/correction}.test.ts)
  for file in test/{cli,report,rollouts,fuzz-files,program,define,beyond}/*.test.ts test/*.test.ts; do
    [[ " ${files[*]} " == *" $file "* ]] || files+=("$file")
  done
  npx mocha --parallel "${files[@]}" || failed=1
fi
POLICY_LOSS_EMULATION_DEVICES=2 POLICY_LOSS_EMULATION_MEMORY=268435456 \
  POLICY_LOSS_NATIVE=$emulated/policy_loss_emulated.node npx mocha --parallel 'test/device/*.test.ts' || failed=1
wait "$kernels" || failed=1
cat "$log"
exit "$failed"
