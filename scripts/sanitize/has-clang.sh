#!/bin/sh
# Exits with 0 if the Clang that sanitizers and fuzzers use can compile and link a program with its run-time library.
# CLANG names the compiler; the default is clang++-19.
clang=${CLANG:-clang++-19}
echo 'int main() {}' | "$clang" -x c++ - -fsanitize=address,undefined -o /dev/null 2>/dev/null && exit
echo "$clang: it or its run-time library is missing. They are in Debian's clang-19 and libclang-rt-19-dev." >&2
exit 1
