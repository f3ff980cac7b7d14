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
python3 - "$run/log.jsonl" <<'PYTHON'
import json
import sys

for line in open(sys.argv[1], encoding="utf-8"):
    event = json.loads(line)
    if event["event"] == "summary":
        grown = event["process_peak_rss_bytes"] - event["process_base_rss_bytes"]
        planned = event["planned_peak_bytes"]
        print(f"RSS grew by {grown:,} bytes, {grown / planned:.4f} of the {planned:,} planned")
PYTHON
