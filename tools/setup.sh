#!/usr/bin/env bash
# tools/setup.sh [build|all]: installs the Debian 12 packages that are missing, and says which. `build` is
# what compiling, serving and testing needs; `all` (default) adds format, tidy, fuzzers and the tests that
# run Python clients. Asks dpkg first, so with everything in place it takes no rights and no network.
set -euo pipefail

build=(
  g++ cmake ninja-build make pkg-config ccache mold git ca-certificates xz-utils python3
  libboost1.81-dev nlohmann-json3-dev libsimdjson-dev libfmt-dev libspdlog-dev libgflags-dev
  prometheus-cpp-dev libpcre2-dev libexpected-dev libxxhash-dev libedit-dev
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
)
tools=(clang-19 libclang-rt-19-dev clang-format-19 clang-tidy-19 python3-venv)

case "${1:-all}" in
  build) packages=("${build[@]}") ;;
  all) packages=("${build[@]}" "${tools[@]}") ;;
  *) echo "usage: tools/setup.sh [build|all]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all ${#packages[@]} packages are installed"
  exit 0
fi

echo "setup: installing ${#missing[@]} of ${#packages[@]} packages: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || {
    echo "setup: not root and no sudo; run as root: apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -y -q)
"${apt[@]}" update
"${apt[@]}" install --no-install-recommends "${missing[@]}"
echo "setup: done"
