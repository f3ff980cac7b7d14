#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measured steps of memory plans over the step of `none`, side by side in one process: ResNet-50 at
# 64x64, batch 128, at 60 % and 40 % of what `none` needs and at the smallest budget, copies to host
# memory as fast as they go and paced to 10 GB/s. About ten minutes on two cores; run it on an idle
# machine.
#
# usage: bench/plans.sh [BUILD_DIR] [more options of layup-bench]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build}
shift || true
exec "$build/apps/layup-bench" "$root/models/configs/resnet50_64_synthetic.json" \
  --policies layup,vdnn_conv,sublinear --percents 60,40,0 --tiers host 10GB/s "$@"
