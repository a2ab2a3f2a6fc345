"""Asks the functions of another vLLM version, from its sources, how it lays out a KV cache.

Runs inside an environment that has torch and what vLLM needs, nothing of this project is imported:
`python older.py SOURCES ANSWER`. SOURCES is a folder with that version's `vllm` package; nothing
of it is built and no engine is started, so the layers are made here, as that version's models
make them on a GPU with blocks of 16 tokens.
"""

import copy
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
    import torch
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
    elif model == "minimax-m3":
        keys = made(
            kinds.MLAAttentionSpec,
            block_size=128,
            num_kv_heads=1,
            head_size=128,
            dtype=torch.bfloat16,
        )
        pattern = [full(2, 128, 128)] * 60 + [keys] * 57
    elif model == "qwen3-next":
        pattern = recurrent(kinds, full)
    else:
        pattern = [full(8, 128)] * 32
    return {f"layer.{number}": spec for number, spec in enumerate(pattern)}


COMPRESSED = ("deepseek-v4-flash", "deepseek-v4-flash-mtp")
"""Models with compressed attention, with its cache as a Spark has it."""

SPARSE = ("minimax-m3",)
"""With an indexer in most layers, over two GPUs."""

PACKED = (
    "deepseek-v4.1-flash",
    "deepseek-v4.1-flash-mtp",
    "glm-5.3-flash",
    "glm-5.3-flash-mtp",
    "qwen3.8-flash-next",
    "qwen3.8-flash-next-mtp",
)
"""Models whose indexers keep pooled keys, over two GPUs; with MTP they draft some tokens. 0.30.0 is
the first version that has them."""

DRAFTED = 3

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


def pooled(model: str, dtype: Any) -> dict[str, Any]:
    """The layers of one of the `PACKED`, in the order in which vLLM registers them, on a Spark."""
    from vllm.v1 import kv_cache_interface as kinds

    drafted = DRAFTED if model.endswith("-mtp") else 0
    if model.startswith("deepseek"):
        found = of_v41(kinds, drafted) if "v4.1" in model else of_v4(kinds, drafted)
        # older versions change a layer's own spec
        return {f"layer.{number}": copy.copy(spec) for number, spec in enumerate(found)}
    of_glm = model.startswith("glm")
    attention, mamba = (of_flash_glm if of_glm else of_flash_qwen)(kinds, dtype, drafted)
    interval = [mamba[0]] * 3 + attention
    found = interval * 11 + [mamba[0]] if of_glm else interval * 12 + mamba[1:]
    if drafted:
        found = [*found, *attention]
    return {f"layer.{number}": spec for number, spec in enumerate(found)}


def of_flash_glm(kinds: Any, dtype: Any, drafted: int) -> tuple[list[Any], list[Any]]:
    """A layer of GLM-5.3-Flash's sparse attention (64 heads of 128 in delta attention)."""
    import torch

    packed = dtype != torch.bfloat16
    a_token = 656 if packed else 1024
    shapes = ((3 + drafted, 3 * 64 * 128 // 2), (32, 128, 128))
    state = 2 * (3 + drafted) * shapes[0][1] + 4 * 32 * 128 * 128
    block = 256 * -(-state // (256 * a_token))
    newer = not hasattr(kinds, "KpoolTailSpec")  # FlashKDA's checkpoint and whole kernels: 0.32
    latent = made(
        kinds.MLAAttentionSpec,
        block_size=block,
        num_kv_heads=1,
        head_size=512,
        dtype=torch.uint8 if packed else dtype,
        cache_dtype_str="fp8_ds_mla" if packed else "bfloat16",
        state_content_bytes=656 if packed else None,
        block_stride_alignment=64 * a_token if newer else None,
    )
    keys = made(
        kinds.MLAAttentionSpec,
        block_size=block,
        num_kv_heads=1,
        head_size=132,
        dtype=torch.uint8,
        tokens_per_state=4,
        block_stride_alignment=64 * 132 if newer else None,
    )
    ring = made(
        kinds.CircularBufferSpec if newer else kinds.KpoolTailSpec,
        block_size=4 * (2 if drafted else 1) if newer else 4,
        num_kv_heads=2,
        head_size=128,
        head_size_v=0,
        dtype=torch.bfloat16,
        sliding_window=4,
        dcp_sharded=False,
    )
    mamba = of_state(
        kinds, shapes, (torch.bfloat16, torch.float32), block, block * a_token, drafted
    )
    if newer:
        mamba = dataclasses.replace(mamba, num_prefill_checkpoint_blocks=1)
    return [latent, keys, ring], [mamba]


def of_flash_qwen(kinds: Any, dtype: Any, drafted: int) -> tuple[list[Any], list[Any]]:
    """A layer of Qwen3.8-Flash-Next's indexed attention, its delta net with states in float32, and
    the convolution over its table of n-grams, which each GPU has whole."""
    import torch

    shapes = ((3 + drafted, (2 * 16 * 128 + 48 * 128) // 2), (24, 128, 128))
    state = 2 * (3 + drafted) * shapes[0][1] + 4 * 24 * 128 * 128
    a_token = 2 * 256 * (2 if dtype == torch.bfloat16 else 1)
    block = 16 * -(-state // (16 * a_token))
    full = made(
        kinds.FullAttentionSpec, block_size=block, num_kv_heads=1, head_size=256, dtype=dtype
    )
    keys = made(
        kinds.MLAAttentionSpec,
        block_size=block,
        num_kv_heads=1,
        head_size=128,
        dtype=torch.bfloat16,
        tokens_per_state=4,
    )
    ring = made(
        kinds.CircularBufferSpec,
        block_size=4 * (2 if drafted else 1),
        num_kv_heads=1,
        head_size=140,
        head_size_v=0,
        dtype=torch.bfloat16,
    )
    sizes = (torch.bfloat16, torch.float32)
    net = of_state(kinds, shapes, sizes, block, block * a_token, drafted)
    table = of_state(
        kinds, ((9 + drafted, 4 * 2560),), sizes[:1], block, block * a_token, drafted, alone=True
    )
    return [full, keys, ring], [net, table]


def vectors(kinds: Any, block: int, tokens: int, *, window: int = 0) -> Any:
    """Vectors of compressed attention, one for so many tokens, or those of a window."""
    import torch

    return made(
        kinds.SlidingWindowMLASpec if window else kinds.MLAAttentionSpec,
        block_size=block,
        num_kv_heads=1,
        head_size=512,
        dtype=torch.uint8,
        tokens_per_state=tokens,
        compress_ratio=tokens,
        cache_dtype_str="fp8_ds_mla",
        state_content_bytes=584,
        alignment=576,
        model_version="deepseek_v4",
        **({"sliding_window": window} if window else {}),
    )


def index_keys(kinds: Any, block: int, tokens: int) -> Any:
    import torch

    return made(
        kinds.MLAAttentionSpec,
        block_size=block,
        num_kv_heads=1,
        head_size=132,
        dtype=torch.uint8,
        tokens_per_state=tokens,
        compress_ratio=tokens,
        alignment=576,
    )


def of_v4(kinds: Any, drafted: int) -> list[Any]:
    """The layers of DeepSeek V4-Flash: windows of 128 tokens; every second layer compresses 4
    tokens into a vector and has an indexer, the others 128; what is open is in float32."""
    import torch

    def open_groups(size: int, block: int, window: int) -> Any:
        return made(
            kinds.SlidingWindowMLASpec,
            block_size=block,
            num_kv_heads=1,
            head_size=size,
            dtype=torch.float32,
            sliding_window=window,
            alignment=576,
        )

    window = vectors(kinds, 64, 1, window=128)
    four = [window, open_groups(2048, 4, 8), vectors(kinds, 256, 4)]
    four += [open_groups(512, 4, 8), index_keys(kinds, 256, 4)]
    many = [window, open_groups(1024, 8, 128), vectors(kinds, 256, 128)]
    return [window] * 2 + (four + many) * 20 + four + [window] * bool(drafted)


def of_v41(kinds: Any, drafted: int) -> list[Any]:
    """The layers of DeepSeek V4.1-Flash, of which four have vectors that the others use too."""
    import torch

    window = vectors(kinds, 32, 1, window=128)
    ring = made(
        kinds.CircularBufferSpec,
        block_size=8,
        num_kv_heads=1,
        head_size=1024,
        head_size_v=0,
        dtype=torch.float32,
    )
    two = [window, ring, vectors(kinds, 128, 2), index_keys(kinds, 128, 2)]
    whole = [window, vectors(kinds, 128, 1), index_keys(kinds, 128, 1)]
    return two * 3 + whole + [window] * (36 + (3 if drafted else 0))


def of_state(
    kinds: Any,
    shapes: Any,
    dtypes: Any,
    block: int,
    page: int,
    drafted: int,
    *,
    alone: bool = False,
) -> Any:
    return made(
        kinds.MambaSpec,
        block_size=block,
        shapes=shapes,
        dtypes=dtypes,
        page_size_padded=page,
        mamba_cache_mode="align",
        num_speculative_blocks=drafted,
        tp_replicated=alone,
    )


def layout_of(model: str) -> str:
    """The order of the cache in memory that the backends of a model ask for."""
    from vllm.v1 import kv_cache_interface as kinds

    packed = model in COMPRESSED + PACKED
    if not packed or (model.startswith("glm") and hasattr(kinds, "KpoolTailSpec")):
        return "LBNHC"
    return "BLHNC"


def asked_of() -> tuple[str, ...]:
    """The models that this version is asked about."""
    from vllm.v1 import kv_cache_interface as kinds

    found: tuple[str, ...] = (
        MODELS + COMPRESSED if hasattr(kinds, "SlidingWindowMLASpec") else MODELS
    )
    models = Path(sys.argv[1]) / "vllm" / "models"
    found += SPARSE if (models / "minimax_m3").is_dir() else ()
    return found + PACKED if (models / "glm5next").is_dir() else found


def made(kind: Any, **fields: Any) -> Any:
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in fields.items() if name in known})


def configuration(length: int, batch: int, flying: int, layout: str = "LBNHC") -> Any:
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
            kv_cache_layout=layout,
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
    config.cache_config.get_resolved_kv_cache_layout = lambda: KVCacheLayout[layout]
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

    for model in asked_of():
        made_of, layout = layers if model in MODELS + SPARSE else pooled, layout_of(model)
        only = model.startswith("deepseek-v4")  # has one type of cache on a Spark
        for dtype in (torch.bfloat16, torch.float8_e4m3fn)[only:]:
            for size, length, batch in SIZES:
                for flying in (1, 2):
                    config = configuration(length, batch, flying, layout)
                    asked = [model, dtype != torch.bfloat16, size, length, batch, flying]
                    try:
                        found = laid_out(real, config, made_of(model, dtype), size)
                    except ValueError:
                        said: list[Any] = [None, None, None]
                    else:
                        concurrency = get_max_concurrency_for_kv_cache_config(config, found)
                        blocks = [block_of(group) for group in found.kv_cache_groups]
                        said = [found.num_blocks, concurrency, min(blocks)]
                    config = configuration(LONGEST, batch, flying, layout)
                    config.model_config.original_max_model_len = -1
                    try:
                        laid_out(real, config, made_of(model, dtype), size)
                        said.append(config.model_config.max_model_len)
                    except ValueError:
                        said.append(0)
                    yield asked + said


def block_of(group: Any) -> float:
    """Tokens of a group's block; a ring has none."""
    inside = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    spec = next(iter(inside.values())) if inside else group.kv_cache_spec
    rings = ("CircularBufferSpec", "KpoolTailSpec")
    return float("inf") if type(spec).__name__ in rings else group.kv_cache_spec.block_size


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
