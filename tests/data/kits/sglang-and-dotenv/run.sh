#!/bin/sh
HERE="$(cd "$(dirname "$0")" && pwd)"
[ -f "$HERE/.env" ] && . "$HERE/.env"
: "${CONTEXT:=4096}"
exec docker run --rm --gpus all --network host lmsysorg/sglang:spark \
  python3 -m sglang.launch_server --model-path "${MODEL}" --context-length "$CONTEXT" --tp 1
