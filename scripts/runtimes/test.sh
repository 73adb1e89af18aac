#!/usr/bin/env bash
# Compares every function with the golden cases on Bun and on Deno, which it gets from npm. It compiles the tests, and needs
# the native module that `npm run build:native` builds.
set -euo pipefail
cd "$(dirname "$0")/../.."

runtimes=$PWD/build/node-runtime/others
out=$PWD/build/runtimes
[ -d "$runtimes" ] || npm install --silent --no-save --prefix "$runtimes" bun@1 deno@2
scripts/suites/compile.sh "$out"

export POLICY_LOSS_NATIVE=$PWD/build/Release/policy_loss.node
suites=("$out"/test/matrix/golden.test.js "$out"/test/losses/advantages/functions.test.js)
echo "Bun:" && "$runtimes/node_modules/.bin/bun" scripts/suites/run.mjs "${suites[@]}"
echo "Deno:" && "$runtimes/node_modules/.bin/deno" run --allow-all scripts/suites/run.mjs "${suites[@]}"
