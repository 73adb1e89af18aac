#!/bin/sh
# Tests and times policy-loss on this machine's GPU. This folder contains the native module, the compiled tests and
# benchmark, and a Node runtime, which is unpacked on first use. Only the comparison with PyTorch's times needs Python
# with PyTorch.
#
#   ./run.sh test [--sanitizer TOOL] [arguments for mocha]
#   ./run.sh bench [arguments for the benchmark]
#   ./run.sh both        runs the tests and, if they pass, the benchmark
#
# TOOL is a tool of NVIDIA's compute-sanitizer: memcheck, racecheck, initcheck or synccheck. The benchmark writes its
# results to the folder $OUT. If OUT is not set, it writes them to results/ in this folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

fail() {
  echo "run.sh: $1" >&2
  exit 2
}

# Prints the decompressed contents of an .xz or .gz file. Uses Python if the program xz or gzip is missing.
decompress() {
  case $1 in
    *.xz) tool=xz module=lzma ;;
    *) tool=gzip module=gzip ;;
  esac
  if command -v "$tool" >/dev/null; then
    "$tool" -dc "$1"
  else
    python3 -c "import $module, shutil, sys; shutil.copyfileobj($module.open(sys.argv[1]), sys.stdout.buffer)" "$1"
  fi
}

unpack_node() {
  [ -x "$here/node" ] && return
  packed=$(ls "$here"/node.xz "$here"/node.gz 2>/dev/null | head -n 1)
  [ -n "$packed" ] || fail "node.xz or node.gz: not found in this folder"
  # The runtime gets its final name only when it is complete. So an interrupted run leaves no broken runtime behind.
  decompress "$packed" >"$here/node.part" || fail "cannot unpack $packed"
  chmod +x "$here/node.part"
  mv "$here/node.part" "$here/node"
}

find_sanitizer() {
  for candidate in "${COMPUTE_SANITIZER:-}" "$(command -v compute-sanitizer || true)" \
    /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda/compute-sanitizer/compute-sanitizer; do
    if [ -n "$candidate" ] && [ -x "$candidate" ]; then
      echo "$candidate"
      return
    fi
  done
  fail "compute-sanitizer: not found. Set COMPUTE_SANITIZER to its path."
}

run_tests() {
  tool=
  if [ "${1:-}" = --sanitizer ]; then
    tool=${2:-}
    case $tool in
      memcheck | racecheck | initcheck | synccheck) ;;
      *) fail "--sanitizer: expected memcheck, racecheck, initcheck or synccheck, got '$tool'" ;;
    esac
    shift 2
  fi
  "$here/node" "$here/scripts/gpu/need-device.js"
  timeout=60000
  set -- --reporter dot "$@" "$here"/test/device/*.test.js
  if [ -n "$tool" ]; then
    sanitizer=$(find_sanitizer)
    # Kernels run many times slower under the sanitizer. So there is no time limit, and large batches have fewer tokens.
    timeout=0
    POLICY_LOSS_TEST_TOKENS=${POLICY_LOSS_TEST_TOKENS:-65536}
    export POLICY_LOSS_TEST_TOKENS
    "$sanitizer" --tool "$tool" --error-exitcode 1 --target-processes all \
      "$here/node" "$here/node_modules/mocha/bin/mocha.js" --no-config --no-package --timeout "$timeout" "$@"
  else
    "$here/node" "$here/node_modules/mocha/bin/mocha.js" --no-config --no-package --timeout "$timeout" "$@"
  fi
}

run_bench() {
  POLICY_LOSS_NATIVE=$here/build/bench/Release/policy_loss.node \
    "$here/node" "$here/bench/gpu.js" --out "${OUT:-$here/results}" "$@"
}

command=${1:-}
[ $# -gt 0 ] && shift
case $command in
  test | bench | both) unpack_node ;;
  *) fail "command: expected test, bench or both, got '$command'" ;;
esac
case $command in
  test) run_tests "$@" ;;
  bench) run_bench "$@" ;;
  both)
    # If a test fails, `set -e` ends the script before the benchmark. In `run_tests && run_bench`, the shell would
    # ignore commands that fail inside run_tests.
    run_tests
    run_bench
    ;;
esac
