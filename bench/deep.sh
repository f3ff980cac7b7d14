#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains ResNet (6, 32, 790, 6), 2,504 layers with 923 million parameters, for one step and, resumed, for a
# second one: batch 16, 224x224, 11,580 MiB of device memory, everything else in a file. Needs about 13 GiB
# of memory and 45 GiB of disk in FOLDER (a real disk: direct I/O), and takes about six minutes on two
# cores.
#
# usage: bench/deep.sh FOLDER [BUILD_DIR]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(cd "${1:?usage: bench/deep.sh FOLDER [BUILD_DIR]}" && pwd)
build=${2:-$root/build}
config=$root/models/configs/resnet2504_synthetic.json
run=$folder/deep-run

for steps in 1 2; do
  resume=()
  [ "$steps" = 1 ] || resume=(--resume "$run")
  "$build/apps/layup-train" "$config" --steps "$steps" --out "$run" --progress plain \
    --set memory.spill="file:$folder" "${resume[@]}"
done
grep -E '"event":"(plan|step|summary)"' "$run/log.jsonl"
