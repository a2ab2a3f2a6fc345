"""Real vLLM on the CPU with dummy weights, and how it laid out its KV cache.

Runs inside an environment that has vLLM, nothing of this project is imported:
`python ask.py QUESTION ANSWER`. A question is a JSON object: `config` (a config.json, made small
where the cache does not depend on it), `engine` (arguments of vLLM's engine) and `more`: other
sizes, for which vLLM's own functions are asked again with the layers that it has built, without
another start. The answer is written as JSON.
"""

import contextlib
import copy
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in this process, to look into
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    TORCHDYNAMO_DISABLE="1",
)
FIXED = {
    "load_format": "dummy",
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "max_num_seqs": 8,
    "disable_log_stats": True,
}


def main() -> None:
    question = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(question["config"]))
        answer = ask(folder, question)
    Path(sys.argv[2]).write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # workers that are asked to end take their time


def ask(folder: str, question: dict[str, Any]) -> dict[str, Any]:
    from importlib.metadata import version

    from vllm import LLM

    llm = LLM(folder, **{**FIXED, **question["engine"]})
    core = llm.llm_engine.engine_core.engine_core
    config = core.vllm_config
    found = core.scheduler.kv_cache_config
    cache = config.cache_config
    specs = core.model_executor.get_kv_cache_specs()
    return {
        "vllm": version("vllm"),
        "started": {
            "blocks": cache.num_gpu_blocks,
            "tokens": cache.kv_cache_size_tokens,  # these two are what the log prints
            "max_concurrency": cache.kv_cache_max_concurrency,
        },
        "block_size": cache.block_size,
        "mamba_cache_mode": cache.mamba_cache_mode,
        "mamba_ssm_cache_dtype": str(cache.mamba_ssm_cache_dtype),
        "groups": [group(item) for item in found.kv_cache_groups],
        "more": [again(config, specs, size) for size in question.get("more", ())],
    }


def figures(config: Any, found: Any) -> dict[str, Any]:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

    tokens, concurrency = get_kv_cache_capacity(config, found)
    return {"blocks": found.num_blocks, "tokens": tokens, "max_concurrency": concurrency}


def group(item: Any) -> dict[str, Any]:
    spec = item.kv_cache_spec
    return {
        "kind": type(spec).__name__,
        "layers": len(item.layer_names),
        "block_size": spec.block_size,
        "page_size_bytes": spec.page_size_bytes,
    }


def again(config: Any, specs: Any, size: dict[str, int]) -> dict[str, Any]:
    """Ask vLLM's own functions for another size of cache, length of request, batch."""
    from vllm.v1.core import kv_cache_utils as real

    config = shallow(config)
    config.model_config.max_model_len = size["max_model_len"]
    config.scheduler_config.max_num_batched_tokens = size["max_num_batched_tokens"]
    bytes_each = [size["kv_bytes"]] * len(specs)
    try:
        found = real.get_kv_cache_configs(config, copy.deepcopy(specs), bytes_each)[0]
        answer = figures(config, real.generate_scheduler_kv_cache_config([found]))
    except ValueError as error:  # a request of that length does not fit
        answer = {"refused": str(error)}
    return {**size, **answer, "longest": longest(config, specs, size)}


def longest(config: Any, specs: Any, size: dict[str, int]) -> int:
    """The length that `--max-model-len auto` takes, at most the one that the model was made for."""
    from vllm.v1.core import kv_cache_utils as real

    config = shallow(config)
    config.model_config.max_model_len = size["longest_possible"]
    config.model_config.original_max_model_len = -1
    bytes_each = [size["kv_bytes"]] * len(specs)
    with contextlib.suppress(ValueError):
        real.get_kv_cache_configs(config, copy.deepcopy(specs), bytes_each)
        return int(config.model_config.max_model_len)
    return 0


def shallow(config: Any) -> Any:
    """A copy whose sizes can be set without touching the engine's own."""
    config = copy.copy(config)
    config.model_config = copy.copy(config.model_config)
    config.scheduler_config = copy.copy(config.scheduler_config)
    config.cache_config = copy.copy(config.cache_config)
    return config


if __name__ == "__main__":
    main()
