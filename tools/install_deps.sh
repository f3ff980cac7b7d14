#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what building and testing Layup needs on Debian 12. Looks first and does nothing, without
# root and without a network, when all is there; asks for root only to install what is missing.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tools/install_deps.sh [--lint] [--check]
  --lint   also the packages of tools/lint.sh (clang-format-14, clang-tidy-14, shellcheck)
  --check  install nothing; exit 1 and name what is missing
TEXT
}

# locales is for the test that runs under a comma locale; python3 for the tests of the command line.
packages=(g++ meson ninja-build pkg-config libeigen3-dev nlohmann-json3-dev libcli11-dev
  doctest-dev zlib1g-dev libdnnl-dev liburing-dev python3 locales)
check_only=no
for argument in "$@"; do
  case "$argument" in
    --lint) packages+=(clang-format-14 clang-tidy-14 shellcheck) ;;
    --check) check_only=yes ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
done

if ! command -v dpkg-query >/dev/null; then
  echo "install_deps: this is not Debian; make sure that the equivalents of these are installed:" >&2
  echo "  ${packages[*]}" >&2
  echo "(meson fetches missing libraries itself: see subprojects/)" >&2
  exit 0
fi

is_installed() {
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'
}

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done

if [ "${#missing[@]}" -eq 0 ]; then
  echo "install_deps: everything is installed"
  exit 0
fi
echo "install_deps: missing: ${missing[*]}"
[ "$check_only" = no ] || exit 1

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: root is needed and there is no sudo; as root, run:" >&2
    echo "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

# An old package list is good enough when it still leads to the files; otherwise it is renewed.
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends "${missing[@]}"
}
if ! install; then
  echo "install_deps: renewing the package lists"
  "${as_root[@]}" apt-get update
  install
fi
