#!/usr/bin/env bash
# tools/tidy.sh BUILD_DIR [BUDGET_SECONDS]: clang-tidy-19 over the sources of src/ and apps/ (not the tests),
# the most recently changed first, with the flags of that build. With a budget it starts no file after
# that time and says how many it left out; without one it checks all. Exit code 1 on any finding.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:?usage: tools/tidy.sh BUILD_DIR [BUDGET_SECONDS]}
export build deadline=$(($(date +%s) + ${2:-86400}))
[ -f "$build/compile_commands.json" ] || { echo "tidy: no $build/compile_commands.json; run cmake first"; exit 1; }

is_source() { [[ $1 =~ ^(src|apps)/.*\.cc$ && ! $1 =~ _test\.cc$ && -f $1 ]]; }
mapfile -t files < <(
  { git status --porcelain --untracked-files=all | cut -c4-; git log --format= --name-only; git ls-files; } |
    awk '!seen[$0]++' | while read -r file; do if is_source "$file"; then echo "$file"; fi; done
)

out=$(mktemp -d)
export out
trap 'rm -rf "$out"' EXIT
tidy_one() {
  if [ "$(date +%s)" -ge "$deadline" ]; then echo "$1" >> "$out/left"; return 0; fi
  local log
  log="$out/$(echo "$1" | tr / _).log"
  clang-tidy-19 -p "$build" --quiet "$1" > "$log" 2>&1 || { grep -v 'warnings generated' "$log"; return 1; }
}
export -f tidy_one
code=0
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -I{} bash -c 'tidy_one {}' || code=1
left=0
[ ! -f "$out/left" ] || left=$(wc -l < "$out/left")
echo "tidy: $((${#files[@]} - left)) of ${#files[@]} files checked"
exit "$code"
