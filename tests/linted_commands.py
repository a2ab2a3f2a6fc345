"""The command lines of the five articles, as they were published."""

from __future__ import annotations

PART_9 = r"""docker run -d --name gemma4-31b \
--gpus all --ipc host --shm-size 64gb \
-p 8002:8000 \
-v ~/models/gemma4-31b-nvfp4:/models/gemma4-31b \
vllm/vllm-openai:gemma4-cu130 \
--model /models/gemma4-31b \
--served-model-name gemma-4-31b \
--quantization modelopt \
--kv-cache-dtype fp8 \
--max-model-len 32768 \
--gpu-memory-utilization 0.85 \
--reasoning-parser gemma4 \
--enable-auto-tool-choice --tool-call-parser pythonic"""
"""Gemma 4 31B dense on DGX Spark, part 9."""

SINGLE = r"""docker run -d --name vllm-gemma4-31b --gpus all --network host --ipc host \
-v /ai/models:/ai/models -v /ai/vllm-cache:/ai/vllm-cache \
-e TORCH_CUDA_ARCH_LIST=12.1a -e VLLM_FLASHINFER_MOE_BACKEND=latency \
-e VLLM_CACHE_ROOT=/ai/vllm-cache/gemma \
ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest \
vllm serve nvidia/Gemma-4-31B-IT-NVFP4 --served-model-name gemma4-31b \
--quantization modelopt --language-model-only \
--max-model-len 65536 --max-num-seqs 4 --gpu-memory-utilization 0.50 \
--enable-prefix-caching --enable-chunked-prefill --trust-remote-code \
--enable-auto-tool-choice --tool-call-parser gemma4 --reasoning-parser gemma4"""
"""Gemma-4-31B NVFP4 on a single DGX Spark."""

PART_7 = r"""docker run -d \
  --name gemma4-nvfp4 \
  --gpus all --ipc host --shm-size 64gb \
  -p 8002:8000 \
  -v ~/models/gemma4-26b-a4b-nvfp4:/models/gemma4 \
  -v ~/models/gemma4-26b-a4b-nvfp4/gemma4_patched.py:/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py \
  vllm/vllm-openai:gemma4-cu130 \
  --model /models/gemma4 \
  --served-model-name gemma-4-26b \
  --host 0.0.0.0 --port 8000 \
  --quantization modelopt \
  --kv-cache-dtype fp8 \
  --max-model-len 131072 \
  --gpu-memory-utilization 0.85 \
  --moe-backend marlin \
  --reasoning-parser gemma4 \
  --enable-auto-tool-choice --tool-call-parser pythonic"""  # noqa: E501
"""Gemma 4 26B-A4B on DGX Spark, part 7."""

RUNTIME_FP8 = """VLLM_DISABLE_COMPILE_CACHE=1 vllm serve google/gemma-4-31B-it \
--quantization fp8 --kv-cache-dtype fp8 --max-model-len 65536 --gpu-memory-utilization 0.85 \
--enable-auto-tool-choice --tool-call-parser gemma4 --reasoning-parser gemma4"""
"""Gemma 4 31B, runtime FP8: its flags and variable (the recipe it ran adds the parsers)."""

RUNTIME_FP8_TP2 = RUNTIME_FP8 + " --distributed-executor-backend ray --tensor-parallel-size 2"

MTP = r"""vllm serve RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic \
--served-model-name gemma4-fp8-mtp \
--max-model-len 65536 \
--gpu-memory-utilization 0.45 \
--max-num-seqs 4 \
--max-num-batched-tokens 8192 \
--enable-auto-tool-choice \
--tool-call-parser gemma4 \
--reasoning-parser gemma4 \
--port 11437 \
--speculative-config '{"method":"gemma4_mtp","model":"google/gemma-4-26B-A4B-it-assistant","num_speculative_tokens":4}'"""  # noqa: E501
"""Gemma 4 MTP on GB10: inside the image that it builds."""

MTP_UNPATCHED = (
    "docker run --gpus all --ipc host -p 127.0.0.1:11437:11437 "
    "vllm/vllm-openai:gemma4-0505-cu130 --model " + MTP.removeprefix("vllm serve ")
)
"""The same on the image itself, which the article found slower than no MTP."""
