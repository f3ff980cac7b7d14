#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Four memory policies side by side on this machine: ResNet-50 at 224x224, batch 16, at 60 % and 40 %
# of what `none` needs and at each policy's smallest budget, with copies to host memory, to host memory
# behind a link of 10 GB/s, and to a file in FOLDER (a real disk: direct I/O). About eight minutes on two
# cores and 12 GiB of memory; run it on an idle machine.
#
# usage: bench/policies.sh FOLDER [BUILD_DIR] [more options of layup-bench]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(cd "${1:?usage: bench/policies.sh FOLDER [BUILD_DIR] [options]}" && pwd)
build=${2:-$root/build}
shift $(($# < 2 ? $# : 2))
exec "$build/apps/layup-bench" "$root/models/configs/resnet50_synthetic.json" --batch 16 \
  --policies layup,vdnn_conv,superneurons,sublinear --percents 60,40,0 \
  --tiers host 10GB/s "file:$folder" "$@"
