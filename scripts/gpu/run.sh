#!/bin/sh
# Tests and times policy-loss on this machine's GPU, with nothing but what lies beside this file: the built addon, the
# compiled tests and benchmark, and a Node runtime that is unpacked here once. PyTorch is taken from the machine.
#
#   ./run.sh test [--sanitizer memcheck|racecheck] [mocha's arguments]
#   ./run.sh bench [the benchmark's arguments]     numbers go to $OUT, or to results/ here
#   ./run.sh both
set -eu
here=$(cd "$(dirname "$0")" && pwd)

fail() {
  echo "run.sh: $1" >&2
  exit 2
}

# xz and gzip may be missing where Python is there; it has both.
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
  [ -n "$packed" ] || fail "there is no packed Node runtime beside this file"
  # Whole or not at all: an interrupted run must not leave half a runtime behind.
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
  fail "compute-sanitizer is not here; COMPUTE_SANITIZER may name it"
}

run_tests() {
  tool=
  if [ "${1:-}" = --sanitizer ]; then
    tool=${2:-}
    case $tool in
      memcheck | racecheck | initcheck | synccheck) ;;
      *) fail "--sanitizer takes memcheck, racecheck, initcheck or synccheck, not '$tool'" ;;
    esac
    shift 2
  fi
  "$here/node" "$here/scripts/gpu/need-device.js"
  timeout=60000
  set -- --reporter dot "$@" "$here"/test/device/*.test.js
  if [ -n "$tool" ]; then
    sanitizer=$(find_sanitizer)
    # Kernels run many times slower there.
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
  "$here/node" "$here/bench/gpu.js" --out "${OUT:-$here/results}" "$@"
}

command=${1:-}
[ $# -gt 0 ] && shift
case $command in
  test | bench | both) unpack_node ;;
  *) fail "expected test, bench or both" ;;
esac
case $command in
  test) run_tests "$@" ;;
  bench) run_bench "$@" ;;
  both)
    # The numbers of kernels that fail their tests are worth nothing. (With && between the two, -e would not hold.)
    run_tests
    run_bench
    ;;
esac
