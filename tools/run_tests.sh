#!/usr/bin/env bash
# tools/run_tests.sh BUILD_DIR [CTEST ARGUMENT...]: runs the tests of a build and prints what they were: the
# test programs with their cases, those that were skipped with their reason, and the time.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:?usage: tools/run_tests.sh BUILD_DIR [CTEST ARGUMENT...]}
shift
start=$(date +%s)
code=0
ctest --test-dir "$build" --parallel "$(nproc)" --output-on-failure --no-tests=error "$@" || code=$?
log="$build/Testing/Temporary/LastTest.log"
if [ -f "$log" ]; then
  # gtest and pytest each close with their number of cases.
  cases=$(sed -nE 's/^\[==========\] ([0-9]+) tests? from .* ran\..*/\1/p; s/^=*.* ([0-9]+) passed.* in [0-9.]+s.*/\1/p' "$log" |
    awk '{n += $1} END {print n + 0}')
  grep -hE -A1 '^\[  SKIPPED \]|: Skipped$|^SKIPPED \[' "$log" | grep -vE '^(--|\[  SKIPPED \] [0-9]+ test)' | sort -u || true
  echo "tests: $cases cases in $(($(date +%s) - start)) s"
fi
exit "$code"
