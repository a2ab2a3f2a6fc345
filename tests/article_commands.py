"""The command lines of the five articles, as they were published."""

from __future__ import annotations

PART_9 = """\
docker run -d --name gemma4-31b \\
--gpus all --ipc host --shm-size 64gb \\
-p 8002:8000 \\
-v ~/models/gemma4-31b-nvfp4:/models/gemma4-31b \\
vllm/vllm-openai:gemma4-cu130 \\
--model /models/gemma4-31b \\
--served-model-name gemma-4-31b \\
--quantization modelopt \\
--kv-cache-dtype fp8 \\
--max-model-len 32768 \\
--gpu-memory-utilization 0.85 \\
--reasoning-parser gemma4 \\
--enable-auto-tool-choice --tool-call-parser pythonic
"""
SINGLE_SPARK = """\
docker run -d --name vllm-gemma4-31b --gpus all --network host --ipc host \\
-v /ai/models:/ai/models -v /ai/vllm-cache:/ai/vllm-cache \\
-e TORCH_CUDA_ARCH_LIST=12.1a -e VLLM_FLASHINFER_MOE_BACKEND=latency \\
-e VLLM_CACHE_ROOT=/ai/vllm-cache/gemma \\
ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest \\
vllm serve nvidia/Gemma-4-31B-IT-NVFP4 --served-model-name gemma4-31b \\
--quantization modelopt --language-model-only \\
--max-model-len 65536 --max-num-seqs 4 --gpu-memory-utilization 0.50 \\
--enable-prefix-caching --enable-chunked-prefill --trust-remote-code \\
--enable-auto-tool-choice --tool-call-parser gemma4 --reasoning-parser gemma4
"""
PART_7 = """\
docker run -d \\
  --name gemma4-nvfp4 \\
  --gpus all --ipc host --shm-size 64gb \\
  -p 8002:8000 \\
  -v ~/models/gemma4-26b-a4b-nvfp4:/models/gemma4 \\
  -v ~/models/gemma4-26b-a4b-nvfp4/gemma4_patched.py:/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py \\
  vllm/vllm-openai:gemma4-cu130 \\
  --model /models/gemma4 \\
  --served-model-name gemma-4-26b \\
  --host 0.0.0.0 --port 8000 \\
  --quantization modelopt \\
  --kv-cache-dtype fp8 \\
  --max-model-len 131072 \\
  --gpu-memory-utilization 0.85 \\
  --moe-backend marlin \\
  --reasoning-parser gemma4 \\
  --enable-auto-tool-choice --tool-call-parser pythonic
"""  # noqa: E501
RUN_RECIPE = (
    "HF_HOME=/mnt/tank/models ./run-recipe.sh gemma-4-31b-fp8 --setup -n spark1,spark2 --tp 2"
)
BENCHY = """\
uvx llama-benchy --base-url http://localhost:8000/v1 \\
--model google/gemma-4-31B-it \\
--pp 128 512 2048 --tg 32 128 --depth 0 4096 8192 16384 \\
--runs 3 --concurrency 1 2 4 --latency-mode generation
"""
MTP = """\
vllm serve RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic \\
--served-model-name gemma4-fp8-mtp \\
--max-model-len 65536 \\
--gpu-memory-utilization 0.45 \\
--max-num-seqs 4 \\
--max-num-batched-tokens 8192 \\
--enable-auto-tool-choice \\
--tool-call-parser gemma4 \\
--reasoning-parser gemma4 \\
--port 11437 \\
--speculative-config '{"method":"gemma4_mtp","model":"google/gemma-4-26B-A4B-it-assistant","num_speculative_tokens":4}'
"""  # noqa: E501

LAUNCHES = {"part 9": PART_9, "single Spark": SINGLE_SPARK, "part 7": PART_7, "MTP": MTP}
