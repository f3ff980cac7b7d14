#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The README's second command, and what CI runs: installs what is missing, builds, runs the tests.
# The last line is "N passed, M failed"; the exit status is 0 only when M is 0.
#
#   build/           release, all tests but the slow ones
#   build-asan/      AddressSanitizer and UndefinedBehaviorSanitizer, suite asan
#   build-tsan/      ThreadSanitizer, suite tsan (libgomp is not instrumented: built without OpenMP,
#                    and oneDNN has one thread)
#   build-teaching/  -Dteaching=true: the library, the programs and suite teaching
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

usage() {
  cat <<'TEXT'
usage: tools/test.sh [--quick] [--slow]
  --quick  only the release build (no sanitizers, no teaching build, no lint)
  --slow   also the slow suite
TEXT
}

quick=no
suites=(--no-suite slow)
for argument in "$@"; do
  case "$argument" in
    --quick) quick=yes ;;
    --slow) suites=() ;;
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

# One line per step that is not a meson test: "ok NAME" or "failed NAME".
steps=$(mktemp)
trap 'rm -f "$steps"' EXIT
logs=()

# step NAME COMMAND...: runs it, notes the outcome.
step() {
  local name=$1
  shift
  echo "== $name"
  if "$@"; then
    echo "ok $name" >>"$steps"
  else
    echo "failed $name" >>"$steps"
    return 1
  fi
}

# Sets a build folder up once; a later call keeps it (ninja reconfigures by itself).
configure() {
  local folder=$1
  shift
  [ -f "$folder/build.ninja" ] || meson setup "$folder" "$@"
}

# run_tests FOLDER ARGUMENTS...: meson test builds what the chosen tests need. Its own status is
# not a step: tools/count_tests.py reads each test from the log, and an empty log is a failure.
run_tests() {
  local folder=$1
  shift
  rm -f "$folder/meson-logs/testlog.json"
  logs+=("$folder")
  echo "== tests of $folder"
  "${without_aslr[@]}" meson test -C "$folder" --print-errorlogs "$@"
}

# Compiling with sanitizers takes over twice as long at -O2, and running them at -O1 little more.
sanitizer_options=(-Dbuildtype=debug -Doptimization=1 -Dcpp_args=-g1 -Dnative=false)

# GCC 12's ThreadSanitizer cannot start where the kernel randomises more address bits than it knows.
without_aslr=()

test_release() {
  step "configure build" configure build --buildtype=release || return
  step "build" ninja -C build || return
  run_tests build "${suites[@]}"
}

test_asan() {
  step "configure build-asan" configure build-asan "${sanitizer_options[@]}" \
    -Db_sanitize=address,undefined || return
  ASAN_OPTIONS=abort_on_error=1:detect_stack_use_after_return=1:strict_string_checks=1 \
    UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1 \
    run_tests build-asan --suite asan --timeout-multiplier 4
}

test_tsan() {
  step "configure build-tsan" configure build-tsan "${sanitizer_options[@]}" \
    -Db_sanitize=thread -Dopenmp=disabled || return
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    without_aslr=(setarch "$(uname -m)" -R)
  fi
  TSAN_OPTIONS=halt_on_error=1:abort_on_error=1:second_deadlock_stack=1 OMP_NUM_THREADS=1 \
    run_tests build-tsan --suite tsan --timeout-multiplier 10
  without_aslr=()
}

test_teaching() {
  step "configure build-teaching" configure build-teaching -Dteaching=true -Doptimization=1 \
    -Dnative=false || return
  step "build-teaching" ninja -C build-teaching programs || return
  run_tests build-teaching --suite teaching
}

# lint CHECK FILE...: skipped, and said so, without the tools of tools/install_deps.sh --lint.
lint() {
  if tools/lint.sh --can "$1"; then
    step "$1" tools/lint.sh "$@"
  else
    echo "skipped $1" >>"$steps"
  fi
}

step "install" tools/install_deps.sh
test_release
if [ "$quick" = no ]; then
  test_asan
  test_tsan
  test_teaching
  lint format
  lint shell
  # clang-tidy takes seconds per file; here it reads the planner, tools/lint.sh all the rest.
  lint tidy memory/*.cpp memory/policies/*.cpp
fi

python3 tools/count_tests.py "$steps" ${logs[@]+"${logs[@]}"}
