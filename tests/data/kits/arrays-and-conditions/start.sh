#!/usr/bin/env bash
WORK_DIR="$(pwd)"
QUANT="${QUANT:-fp8}"
case "${QUANT}" in
  bf16) MODEL_ID="Qwen/Qwen3-32B" ;;
  fp8)  MODEL_ID="Qwen/Qwen3-32B-FP8" ;;
  *) echo "unknown"; exit 1 ;;
esac
DRAFT="${DRAFT:-1}"
EXTRA=()
[[ "${TRACE:-0}" == "1" ]] && EXTRA=(--enable-log-requests)
if docker ps --format '{{.Names}}' | grep -qx engine; then
  echo "it's running"   # a quote in a comment isn't one
  EXTRA+=(--max-num-seqs 99)
fi
ARGS=(
  "${MODEL_ID}"
  --tensor-parallel-size 1
  --max-model-len $((8 * 1024))
  --limit-mm-per-prompt '{"image": 1}'
)
if [[ "${DRAFT}" == "1" ]]; then
  ARGS+=(--speculative-config '{"method":"ngram","num_speculative_tokens":4}')
else
  ARGS+=(--enforce-eager)
fi
docker run -d --name engine --gpus all --network host \
  -e HF_TOKEN="${HF_TOKEN:-}" \
  -v "${WORK_DIR}/model_fix.py:/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/qwen3.py:ro" \
  -v "${WORK_DIR}/.cache:/root/.cache/vllm" \
  example.org/team/engine@sha256:1111111111111111111111111111111111111111111111111111111111111111 \
  vllm serve "${ARGS[@]}" ${EXTRA[@]+"${EXTRA[@]}"} "$@"
