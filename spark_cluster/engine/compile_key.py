"""The key of vLLM's compile cache: which flags, variables and versions make another one.

vLLM keeps what torch.compile made below `$VLLM_CACHE_ROOT/torch_compile_cache`, in two layouts:
`KEY/rank_R_D/PREFIX` (vllm/compilation/backends.py) and, with torch 2.10 and later,
`torch_aot_compile/KEY/rank_R_D/model` (vllm/compilation/decorators.py). KEY is a hash of

- the environment: all variables that vLLM knows, without a list of exceptions
  (vllm/envs.py, compile_factors);
- the configuration: vLLM's version, and every field of model, cache, parallel, compilation and
  other configurations without a list of exceptions for each (compute_hash in vllm/config/*.py).
  The path of the model is one of the fields, and so are most that come to mind; of the scheduler
  only --max-num-batched-tokens and --max-num-seqs count, of loading, structured outputs and
  observability nothing;
- the text of the source files that were traced (in the second layout checked when it is loaded);
- the compiler: name of the GPU, versions of CUDA, Triton and torch, Inductor's settings
  (get_inductor_factors in vllm/compilation/compiler_interface.py).

The number of the rank, the addresses, the ports and the executor are among the exceptions, so KEY
is the same on all nodes of a launch; R in `rank_R_D` is the rank of the world (one GPU a Spark: the
node's place), D the index of the replica. A node reads the folder of its own rank only.

What vLLM hashes, it hashes by leaving out, so a flag that is in no list here counts as one that may
enter. Source: vllm-source (docs/sources.md), read for 0.32.0, where the lists below were also
compared with what `compute_hash` returns (tests/lab/test_compile_key.py). Other versions differ in
some exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

Effect = Literal["none", "enters", "unknown"]

FOLDER = "torch_compile_cache"
"""Of compiled code, below VLLM_CACHE_ROOT."""

AOT = "torch_aot_compile"
"""Folder within `FOLDER` of the second layout."""

ENTERS = frozenset(
    {
        "async-scheduling",
        "attention-backend",
        "block-size",
        "code-revision",
        "compilation-config",
        "cpu-offload-gb",
        "decode-context-parallel-size",
        "dtype",
        "enable-expert-parallel",
        "enable-lora",
        "enforce-eager",
        "fully-sharded-loras",
        "generation-config",
        "hf-overrides",
        "kernel-config",
        "kv-cache-dtype",
        "language-model-only",
        "linear-backend",
        "lora-dtype",
        "max-logprobs",
        "max-lora-rank",
        "max-loras",
        "max-model-len",
        "max-num-batched-tokens",
        "max-num-seqs",
        "moe-backend",
        "no-async-scheduling",
        "override-generation-config",
        "pipeline-parallel-size",
        "quantization",
        "revision",
        "speculative-config",
        "tensor-parallel-size",
        "trust-remote-code",
    }
)
"""Flags without dashes that change a configuration that is hashed."""

OFF_BY_DEFAULT = frozenset(
    {
        "enable-expert-parallel",
        "enable-lora",
        "enforce-eager",
        "hf-overrides",
        "language-model-only",
        "pipeline-parallel-size",
        "speculative-config",
        "trust-remote-code",
    }
)
"""Those of them that surely make another key when they are new; another one may be given the value
that it had by default."""

DOES_NOT_ENTER = frozenset(
    {
        # of the API server, which compiles nothing
        "allowed-origins",
        "api-key",
        "chat-template",
        "chat-template-content-format",
        "default-chat-template-kwargs",
        "disable-log-requests",
        "disable-log-stats",
        "disable-uvicorn-access-log",
        "enable-auto-tool-choice",
        "enable-log-requests",
        "host",
        "port",
        "root-path",
        "tool-call-parser",
        "uvicorn-log-level",
        # ModelConfig's exceptions
        "allowed-local-media-path",
        "config-format",
        "hf-token",
        "limit-mm-per-prompt",
        "logprobs-mode",
        "media-io-kwargs",
        "mm-processor-cache-gb",
        "mm-processor-kwargs",
        "seed",
        "served-model-name",
        "skip-mm-profiling",
        "tokenizer",
        "tokenizer-mode",
        "tokenizer-revision",
        # CacheConfig's
        "enable-prefix-caching",
        "gpu-memory-utilization",
        "kv-cache-memory-bytes",
        "no-enable-prefix-caching",
        "num-gpu-blocks-override",
        "prefix-caching-hash-algo",
        # ParallelConfig's
        "data-parallel-address",
        "data-parallel-backend",
        "data-parallel-rank",
        "data-parallel-rpc-port",
        "disable-custom-all-reduce",
        "distributed-executor-backend",
        "headless",
        "master-addr",
        "master-port",
        "max-parallel-loading-workers",
        "nnodes",
        "node-rank",
        # fields of the scheduler, of loading, structured outputs and observability
        "disable-cascade-attn",
        "enable-chunked-prefill",
        "load-format",
        "no-enable-chunked-prefill",
        "reasoning-parser",
        "safetensors-load-strategy",
        "scheduling-policy",
        "stream-interval",
    }
)
"""Flags that are no part of the key: `compute_hash` leaves their field out, or no configuration
that is hashed has them."""

_IGNORED_VARIABLES = frozenset(
    {
        "VLLM_API_KEY",
        "VLLM_ASSETS_CACHE",
        "VLLM_CACHE_ROOT",
        "VLLM_CONFIG_ROOT",
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_DEBUG_DUMP_PATH",
        "VLLM_DO_NOT_TRACK",
        "VLLM_DP_MASTER_IP",
        "VLLM_DP_MASTER_PORT",
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR",
        "VLLM_FORCE_AOT_LOAD",
        "VLLM_HOST_IP",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
        "VLLM_IMAGE_FETCH_TIMEOUT",
        "VLLM_LOGGING_COLOR",
        "VLLM_LOGGING_CONFIG_PATH",
        "VLLM_LOGGING_LEVEL",
        "VLLM_LOGGING_PREFIX",
        "VLLM_LOGGING_STREAM",
        "VLLM_LOG_STATS_INTERVAL",
        "VLLM_NO_USAGE_STATS",
        "VLLM_PORT",
        "VLLM_RINGBUFFER_WARNING_INTERVAL",
        "VLLM_RPC_BASE_PATH",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_TUNED_CONFIG_FOLDER",
        "VLLM_USAGE_STATS_SERVER",
        "VLLM_WORKER_MULTIPROC_METHOD",
        "VLLM_XLA_CACHE_PATH",
    }
)
"""Those of the exceptions of `compile_factors` that a recipe may set."""

_OTHER_VARIABLES = frozenset(
    {"CUDA_HOME", "CMAKE_BUILD_TYPE", "NVCC_THREADS", "TORCHDYNAMO_DISABLE", "VERBOSE"}
)
"""Without the prefixes, that vLLM or torch reads."""

_PREFIXES = ("VLLM_", "TORCHINDUCTOR_", "TRITON_", "RAY_EXPERIMENTAL_NOSET_")
_PLACES = frozenset({"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})

KEY = re.compile(rf"{FOLDER}/((?:{AOT}/)?[0-9a-f]{{10,64}})/rank_\d")
"""A folder of compiled code in a server's log: `Using cache directory: ... for vLLM's
torch.compile`, `Directly load AOT compilation from path ...`, `saved AOT compiled function to ...`.
"""


def flag_effect(flag: str) -> Effect:
    """Return whether a flag of vLLM, without dashes, is a part of the key."""
    name = flag.partition(".")[0]
    if name in DOES_NOT_ENTER:
        return "none"
    return "enters" if name in ENTERS else "unknown"


def variable_enters(name: str) -> bool:
    """Return whether a variable of the environment may be a part of the key, or stops compiling.

    What vLLM knows and does not have on its list of exceptions is hashed, by its value or default.
    """
    if name in _IGNORED_VARIABLES or name in _PLACES:
        return False
    return name in _OTHER_VARIABLES or name.startswith(_PREFIXES)


def compiles_nothing(flags: Mapping[str, str], env: Mapping[str, str]) -> str:
    """Return the setting for which vLLM compiles nothing; empty when it compiles.

    Args:
        flags: without dashes, values as on the command line (empty for a bare one).
    """
    if flags.get("enforce-eager") in ("", "true", "True"):
        return "--enforce-eager"
    for flag in ("optimization-level", "O"):
        if flags.get(flag) == "0":
            return f"--{flag} 0"
    if env.get("TORCHDYNAMO_DISABLE", "0") not in ("", "0"):
        return "TORCHDYNAMO_DISABLE"
    return ""
