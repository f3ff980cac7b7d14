#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The README's first command: installs what is missing, builds a release in build/, and trains
# ResNet-20 on the bundled Fashion-MNIST sample. Every call trains into a fresh folder below runs/.
# Arguments go to layup-train (--epochs 1, --set solver.lr=0.05, ...).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

config=models/configs/resnet20_fashion_sample.json

tools/install_deps.sh
if [ ! -f build/build.ninja ]; then
  meson setup build --buildtype=release
fi
ninja -C build programs

mkdir -p runs
number=1
while [ -e "runs/quickstart-$number" ]; do
  number=$((number + 1))
done
out="runs/quickstart-$number"

echo "+ build/apps/layup-train $config --out $out $*"
exec build/apps/layup-train "$config" --out "$out" "$@"
