#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the library into a temporary folder, compiles examples/embed.cpp against it with what
# pkg-config says (nothing of the source tree is on the include path) and runs it.
#
# usage: embed_example.sh SOURCE_ROOT BUILD_FOLDER   (CXX and MESON from the environment, if set)
set -euo pipefail
source_root=$1
build=$2
meson=${MESON:-meson}
cxx=${CXX:-c++}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$meson" install -C "$build" --no-rebuild --tags devel --destdir "$work/stage" >"$work/install.log"
pc_file=$(find "$work/stage" -name layup.pc)
[ -n "$pc_file" ] || {
  echo "embed_example: no layup.pc was installed" >&2
  exit 1
}
PKG_CONFIG_PATH=$(dirname "$pc_file")
export PKG_CONFIG_PATH

cp "$source_root/examples/embed.cpp" "$work/"
cd "$work"
read -r -a flags <<<"$(pkg-config --cflags --libs layup)"
echo "+ $cxx -std=c++20 embed.cpp ${flags[*]}"
"$cxx" -std=c++20 -Wall -Wextra -Werror embed.cpp "${flags[@]}" -o embed
LD_LIBRARY_PATH=$(dirname "$pc_file")/.. ./embed | tee output.txt
grep -q "loss fell to a tenth: yes" output.txt
