#!/usr/bin/env bash
# Compiles the suites that need nothing but a native module, with the golden cases, into a folder: compile.sh OUT. They then
# run where tsx does not.
set -euo pipefail
cd "$(dirname "$0")/../.."

rm -rf "$1"
npx tsc -p scripts/suites/tsconfig.json --outDir "$1"
cp package.json "$1/"
cp -r test/golden "$1/test/golden"
