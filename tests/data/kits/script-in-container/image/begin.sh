#!/bin/bash
set -eu
: "${PORT:=8000}"
words=(vllm serve "$MODEL" --port "$PORT" --max-num-seqs 2 --tensor-parallel-size "$NODES")
if [ "$NODES" -ge 2 ] && [ "$RANK" -ne 1 ]; then
    words+=(--nnodes "$NODES" --node-rank "$RANK")
fi
exec "${words[@]}" "$@"
