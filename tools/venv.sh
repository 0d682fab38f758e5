#!/usr/bin/env bash
# tools/venv.sh: makes build/venv with the packages of tests/requirements.txt, if it isn't there yet, and prints
# its python. May run several times at once.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p build
exec 9> build/venv.lock
flock 9
stamp=build/venv/requirements.sha256
want=$(sha256sum < tests/requirements.txt)
if [ "$(cat "$stamp" 2> /dev/null || true)" != "$want" ]; then
  rm -rf build/venv
  python3 -m venv build/venv
  build/venv/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt >&2
  echo "$want" > "$stamp"
fi
echo "$PWD/build/venv/bin/python"
