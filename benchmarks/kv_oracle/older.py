"""Asks the functions of another vLLM version, from its sources, how it lays out a KV cache.

Runs inside an environment that has torch and what vLLM needs, nothing of this project is imported:
`python older.py SOURCES ANSWER`. SOURCES is a folder with that version's `vllm` package; nothing
of it is built and no engine is started, so the layers are made here, as that version's models
make them on a GPU with blocks of 16 tokens.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

GIB = 1024**3
SIZES = (
    (8 * GIB, 32768, 2048),
    (7_648_000_001, 30_001, 1999),
    (33 * GIB, 131072, 4096),
    (GIB // 2, 4096, 2048),
)
"""Bytes of cache, tokens of a request, tokens of a batch."""
LONGEST = 131072
BLOCK = 16
NOT_NEEDED = ("gguf", "gguf.constants", "gguf.quants", "diskcache")
"""What older versions import on the way, and the lab's environment does not have."""


class Lazy(ModuleType):
    """A module that has everything, and nothing in it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def layers(model: str, dtype: Any) -> dict[str, Any]:
    """The layers of a model, as vLLM has them before it groups them."""
    from vllm.v1 import kv_cache_interface as kinds

    def full(heads: int, size: int, block: int = BLOCK) -> Any:
        return made(
            kinds.FullAttentionSpec,
            block_size=block,
            num_kv_heads=heads,
            head_size=size,
            dtype=dtype,
        )

    def local(kind: Any, heads: int, size: int, **seen: int) -> Any:
        return made(kind, block_size=BLOCK, num_kv_heads=heads, head_size=size, dtype=dtype, **seen)

    sliding, chunked = kinds.SlidingWindowSpec, kinds.ChunkedLocalAttentionSpec
    if model == "gemma4-31b":
        window = local(sliding, 16, 256, sliding_window=1024)
        pattern = ([window] * 5 + [full(4, 512)]) * 10
    elif model == "gemma3-27b":
        window = local(sliding, 16, 128, sliding_window=1024)
        pattern = [window if (i + 1) % 6 else full(16, 128) for i in range(62)]
    elif model == "gpt-oss-20b":
        pattern = [local(sliding, 8, 64, sliding_window=128), full(8, 64)] * 12
    elif model == "llama4-scout":
        chunk = local(chunked, 8, 128, attention_chunk_size=8192)
        pattern = ([chunk] * 3 + [full(8, 128)]) * 12
    elif model == "deepseek-v2-lite":
        pattern = [local(kinds.MLAAttentionSpec, 1, 576)] * 27
    elif model == "qwen3-next":
        pattern = recurrent(kinds, full)
    else:
        pattern = [full(8, 128)] * 32
    return {f"layer.{number}": spec for number, spec in enumerate(pattern)}


MODELS = (
    "llama-8b",
    "gemma4-31b",
    "gemma3-27b",
    "gpt-oss-20b",
    "llama4-scout",
    "deepseek-v2-lite",
    "qwen3-next",
)


def recurrent(kinds: Any, full: Any) -> list[Any]:
    """Qwen3-Next: a state is 1,097,728 bytes, so the attention's blocks are 544 tokens (BF16)."""
    import torch

    attention = full(2, 256)
    a_token = attention.page_size_bytes // BLOCK
    state = (8192 * 3 + 32 * 128 * 128) * 2
    block = BLOCK * -(-state // (BLOCK * a_token))
    mamba = made(
        kinds.MambaSpec,
        block_size=block,
        shapes=((3, 8192), (32, 128, 128)),
        dtypes=(torch.bfloat16, torch.bfloat16),
        page_size_padded=block * a_token,
        mamba_cache_mode="align",
    )
    return ([mamba] * 3 + [full(2, 256, block)]) * 12


def made(kind: Any, **fields: Any) -> Any:
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in fields.items() if name in known})


def configuration(length: int, batch: int, flying: int) -> Any:
    """As much of a VllmConfig as these functions look at."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=length,
            original_max_model_len=length,
            use_mla=False,
            hf_config=SimpleNamespace(model_type=""),
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=batch, disable_hybrid_kv_cache_manager=False
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            mamba_cache_mode="align",
            enable_prefix_caching=True,
            prefix_cache_retention_interval=None,
            kv_cache_layout="LBNHC",
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        device_config=SimpleNamespace(device_type="cuda"),
        speculative_config=None,
        kv_transfer_config=None,
        max_in_flight_tokens=flying * batch,
        num_prefill_lookahead_tokens=0,
    )
    try:
        from vllm.v1.kv_cache_layout import KVCacheLayout
    except ImportError:  # older than layouts
        return config
    config.cache_config.get_resolved_kv_cache_layout = lambda: KVCacheLayout["LBNHC"]
    return config


def rows() -> Iterator[list[Any]]:
    """Model, fp8, bytes, length, batch, batches in flight; blocks, concurrency, smallest block,
    longest. Instead of the three in the middle None when a request does not fit."""
    import torch
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    try:
        from vllm.v1.core import kv_cache_planning as real
    except ImportError:  # older than 0.33
        from vllm.v1.core import kv_cache_utils as real

    for model in MODELS:
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            for size, length, batch in SIZES:
                for flying in (1, 2):
                    config = configuration(length, batch, flying)
                    asked = [model, dtype != torch.bfloat16, size, length, batch, flying]
                    try:
                        found = laid_out(real, config, layers(model, dtype), size)
                    except ValueError:
                        said: list[Any] = [None, None, None]
                    else:
                        concurrency = get_max_concurrency_for_kv_cache_config(config, found)
                        blocks = [group.kv_cache_spec.block_size for group in found.kv_cache_groups]
                        said = [found.num_blocks, concurrency, min(blocks)]
                    config = configuration(LONGEST, batch, flying)
                    config.model_config.original_max_model_len = -1
                    try:
                        laid_out(real, config, layers(model, dtype), size)
                        said.append(config.model_config.max_model_len)
                    except ValueError:
                        said.append(0)
                    yield asked + said


def laid_out(real: Any, config: Any, specs: dict[str, Any], size: int) -> Any:
    """The cache of one GPU."""
    wanted = [config, [specs], [size]]
    if "global_kv_cache_groups" in inspect.signature(real.get_kv_cache_configs).parameters:
        wanted.append(real.get_kv_cache_groups(config, specs))
    return real.get_kv_cache_configs(*wanted)[0]


def main() -> None:
    for name in NOT_NEEDED:
        sys.modules.setdefault(name, Lazy(name))
    sys.path.insert(0, sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps(list(rows())))


if __name__ == "__main__":
    main()
