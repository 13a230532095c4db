#!/usr/bin/env bash
# Builds the native code's own tests with a sanitizer and runs them. Usage: native_tests.sh address,undefined
set -euo pipefail
cd "$(dirname "$0")/../packages/tianyuan-x86"
build="build/sanitize-${1//,/-}"
# The tests are of runtime and executor; one tier of kernels, lightly optimised, is enough for them.
cmake -S native -B "$build" -G Ninja -DTIANYUAN_TESTS=ON -DTIANYUAN_SANITIZE="$1" \
  -DTIANYUAN_TIERS=avx2 -DCMAKE_CXX_FLAGS_RELEASE=-O1
cmake --build "$build" -j2
ctest --test-dir "$build" --output-on-failure
