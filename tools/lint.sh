#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-format, clang-tidy and shellcheck over the tracked sources (tools/install_deps.sh --lint).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: tools/lint.sh [format|tidy|shell|all] [FILE...]
       tools/lint.sh --can CHECK     exit 0 if the tool of that check is installed
  format   clang-format 14, nothing is changed
  tidy     clang-tidy 14 with .clang-tidy, over FILEs or (none given) every source of the
           library and the programs; reads the compile commands of LAYUP_BUILD_DIR (default build)
  shell    shellcheck
TEXT
}

tool() {
  case "$1" in
    format) command -v clang-format-14 ;;
    tidy) command -v clang-tidy-14 ;;
    shell) command -v shellcheck ;;
    *) return 1 ;;
  esac
}

# tracked PATTERN...: files in the index that are also in the folder.
tracked() {
  git ls-files -z -- "$@" | while IFS= read -r -d '' file; do
    if [ -f "$file" ]; then printf '%s\0' "$file"; fi
  done
}

check_format() {
  if [ "$#" -gt 0 ]; then
    printf '%s\0' "$@"
  else
    tracked '*.h' '*.cpp' '*.cu'
  fi | xargs -0 -r clang-format-14 --dry-run -Werror
}

check_tidy() {
  local build=${LAYUP_BUILD_DIR:-build}
  if [ ! -f "$build/compile_commands.json" ]; then
    echo "lint: $build/compile_commands.json is missing; meson setup $build makes it" >&2
    return 1
  fi
  if [ "$#" -gt 0 ]; then
    printf '%s\0' "$@"
  else
    tracked 'engine/*.cpp' 'memory/*.cpp' 'scheduler/*.cpp' 'comm/*.cpp' 'layers/*.cpp' \
      'models/*.cpp' 'data/*.cpp' 'apps/*.cpp'
  fi | xargs -0 -r -n 1 -P "$(nproc)" clang-tidy-14 -p "$build" --quiet \
    --extra-arg=-Wno-unknown-warning-option --warnings-as-errors='*'
}

check_shell() {
  if [ "$#" -gt 0 ]; then
    printf '%s\0' "$@"
  else
    tracked '*.sh' '.ci/run'
  fi | xargs -0 -r shellcheck
}

action=${1:-all}
[ "$#" -eq 0 ] || shift
case "$action" in
  --can) tool "${1:-}" >/dev/null ;;
  format) check_format "$@" ;;
  tidy) check_tidy "$@" ;;
  shell) check_shell "$@" ;;
  all)
    check_format
    check_shell
    check_tidy
    ;;
  -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
