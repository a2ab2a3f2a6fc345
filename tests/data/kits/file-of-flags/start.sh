#!/bin/sh
HERE="$(cd "$(dirname "$0")" && pwd)"
nohup vllm serve --config "$HERE/settings/two.yaml" --max-num-seqs 4 > log 2>&1 &
