#!/usr/bin/env bash
# Joins two machines by Ray, and starts the server in the container of the first one.
set -euo pipefail
HEAD_IP="10.9.0.10"
MODEL_REPO="${MODEL_REPO:-Qwen/Qwen3-235B-A22B-GPTQ-Int4}"
IMAGE="${IMAGE:-example.org/team/with-ray:2}"
PORT="${PORT:-8123}"
MODEL_DIR="$(locate_model "$MODEL_REPO")"
common=(
  --network host --ipc host --gpus all
  -e NCCL_SOCKET_IFNAME="eth9" -e NCCL_IB_DISABLE=0   # the fabric
)
if ! docker image inspect "$IMAGE" >/dev/null 2>&1; then
  docker pull "$IMAGE"
fi
docker run -d --name first "${common[@]}" -v "${MODEL_DIR}:/models:ro" "${IMAGE}" \
  ray start --head --node-ip-address="${HEAD_IP}" --block
ssh 10.9.0.11 "docker run -d --name second --network host ${IMAGE} ray start --address=${HEAD_IP}:6379 --block"
script="$(mktemp)"
cat >"$script" <<'SERVE'
#!/usr/bin/env bash
export PYTHONUNBUFFERED=1
sed -i 's/old/new/' /usr/local/lib/python3.12/dist-packages/vllm/parser.py
exec vllm serve "${MODEL_DIR}/snapshot" \
  --served-model-name big --port "${PORT}" \
  --tensor-parallel-size 2 --distributed-executor-backend ray \
  --max-model-len 32768
SERVE
docker cp "$script" first:/serve.sh
docker exec -d -e PORT="${PORT}" first bash /serve.sh
