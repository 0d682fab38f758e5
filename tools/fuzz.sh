#!/usr/bin/env bash
# tools/fuzz.sh SECONDS [NAME...]: builds the fuzz preset (clang-19, address and undefined-behaviour
# sanitizers) and runs every fuzz/*_fuzz, or those named, for SECONDS each. Seeds: fuzz/corpus/NAME and
# tests/data/fuzz/NAME; what a run finds goes to build/fuzz/corpus/NAME and is used by the next run.
# Exit code 1 if one crashes, leaks, hangs (10 s for an input) or executes nothing; the input that did it is
# kept in build/fuzz/crashes and named.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?usage: tools/fuzz.sh SECONDS [NAME...]}
shift
jobs=$(nproc)
build=build/fuzz
export build seconds

cmake --preset fuzz > /dev/null
cmake --build "$build" --parallel "$jobs" --target fuzz/all

if [ $# -gt 0 ]; then
  names=("$@")
else
  names=()
  for source in fuzz/*_fuzz.cc; do names+=("$(basename "$source" .cc)"); done
fi
[ ${#names[@]} -gt 0 ] || { echo "fuzz: no fuzzer found"; exit 1; }
mkdir -p "$build/crashes" "$build/log"

run_one() {
  local name=$1 log="$build/log/$1.log" corpus="$build/corpus/$1" seeds=()
  mkdir -p "$corpus"
  for dir in "fuzz/corpus/$name" "tests/data/fuzz/$name"; do
    if [ -d "$dir" ]; then seeds+=("$dir"); fi
  done
  local code=0
  "$build/fuzz/$name" "$corpus" ${seeds[@]+"${seeds[@]}"} -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$build/crashes/$name-" \
    > "$log" 2>&1 || code=$?
  local runs
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  if [ "$code" -ne 0 ] || [ "${runs:-0}" -eq 0 ]; then
    echo "fuzz: $name FAILED (exit code $code, ${runs:-0} inputs); log $log:"
    grep -vE '^(#[0-9]|INFO)' "$log" | tail -n 40
    return 1
  fi
  echo "fuzz: $name ran $runs inputs in $seconds s without a fault"
}
export -f run_one

printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I{} bash -c 'run_one {}' || {
  echo "fuzz: at least one of ${#names[@]} fuzzers failed"
  exit 1
}
echo "fuzz: ${#names[@]} fuzzers ran for $seconds s each"
