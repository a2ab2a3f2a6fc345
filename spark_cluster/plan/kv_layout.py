"""What vLLM's KV cache is laid out for: a model with its drafter, and the options of its server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from spark_cluster.config.yamlfile import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.models.naming import table
from spark_cluster.models.shape import Attention, Geometry
from spark_cluster.plan.kv_rules import FILE, Rule, for_version

# Bytes of an element in a KV cache of a given type.

BYTES: dict[str, int] = FILE["bytes"]
"""vLLM's `--kv-cache-dtype`, and the types a model's config names; `bf16` is ours."""

NVFP4 = "nvfp4"
NVFP4_GROUP = 16
"""Elements that share one scale of a byte."""

DS_MLA_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Of one token of latent attention, as FlashMLA keeps it: 512 elements in fp8, 4 scales of 4 bytes
and 64 rotary elements in 16 bits; or 512 in 4 bits with their scales and 64 rotary ones in fp8
(vLLM 0.33, `flashmla_sparse.py`)."""


PACKED, PACKED_FOR = "fp8_ds_mla", ("auto", "fp8", "fp8_e4m3")
"""The type that FlashInfer's kernel of sparse latent attention for a Spark needs, and the types for
which vLLM takes it (`_canonicalize_sparse_mla_kv_cache_dtype` in `mla_attention.py`)."""

SPARSE_PAGE = 64
"""Tokens of a page of that kernel, and keys of a page of the indexer's on a Spark (`deep_gemm.py`,
`get_paged_mqa_page_sizes`)."""


INDEX_BLOCK = 128
"""Tokens that MiniMax-M3 chooses together, and of a block (`minimax_m3/common/indexer.py`)."""


TURBOQUANT: dict[str, Any] = FILE["turboquant"]
"""How TurboQuant packs keys and values, by type, and how many layers at each end it leaves."""


@dataclass(frozen=True)
class Element:
    """The element type of the cache."""

    name: str
    bytes: int = 1
    packed: bool = False

    def slot(self, key: int, value: int) -> int:
        """Return the bytes of a token's key and value in one head, by their numbers of elements."""
        kind = TURBOQUANT["types"].get(self.name)
        if kind is None:
            return self.width(key) + self.width(value)
        size = ceil(key * kind["key_bits"], 8) + ceil(value * kind["value_bits"], 8) + kind["more"]
        return 2 * ceil(size, 2)

    def width(self, elements: int) -> int:
        """Bytes of that many elements of one head."""
        if self.packed:  # two in a byte, and a scale for each group
            return elements // 2 + elements // NVFP4_GROUP
        return elements * self.bytes


def element(name: str, geometry: Geometry, *, latent: bool = False) -> Element:
    """Return the element type that `--kv-cache-dtype NAME` gives for a model.

    `auto` is what the checkpoint asks for, else the type of the activations.

    Raises:
        UsageError: there is no such type.
    """
    wanted = name.strip().lower()
    if wanted == "auto":
        wanted = (geometry.kv_dtype or geometry.dtype).lower()
        wanted = "bfloat16" if wanted == "auto" else wanted
    if wanted == NVFP4:
        return Element(NVFP4, packed=True)
    if wanted in DS_MLA_BYTES and latent:
        return Element(wanted)
    if wanted in TURBOQUANT["types"]:
        return Element(wanted)
    if wanted not in BYTES:
        known = ("auto", *BYTES, NVFP4, *TURBOQUANT["types"])
        raise UsageError(
            f"no KV cache type {name!r} is known here",
            hint=did_you_mean(wanted, known, "known types"),
        )
    return Element(wanted, BYTES[wanted])


def state_bytes(name: str | None, geometry: Geometry) -> int:
    """Bytes of an element of a recurrent state; None: as the model's activations."""
    return BYTES.get((name or geometry.dtype).lower(), 2)


FLASHINFER_GDN_ALIGNMENT = 64
"""Tokens between which FlashInfer's prefill of gated delta nets can emit a state
(`FLASHINFER_GDN_CHECKPOINT_ALIGNMENT` in `v1/attention/backends/gdn_attn.py`)."""


BLOCK = 16
"""vLLM's default block, tokens (`CacheConfig.DEFAULT_BLOCK_SIZE`), and the smallest that the
kernels of Triton and FlashAttention do."""


def ceil(number: int, by: int) -> int:
    """Rounded up."""
    return -(-number // by)


# The layers of a drafter that keep a cache of their own.
#
# vLLM gives them blocks of the same pool: MTP layers have the shape of the model's full attention
# and join its group (`qwen3_next_mtp.py`, `deepseek_mtp.py`, `nemotron_h_mtp.py`: each builds
# `num_nextn_predict_layers` or `mtp_num_hidden_layers` decoder layers with attention), so that the
# group, and with it every block, is that many layers longer. The drafters of Gemma 4 read the
# model's cache and keep none (vllm-project/speculators 586).

WITHOUT_LAYERS = ("ngram", "ngram_gpu", "suffix", "")


@dataclass(frozen=True)
class DrafterLayers:
    """Layers that are added to a model's own.

    Attributes:
        latent: layers with multi-head latent attention, as the model's.
        known: False when the drafter's shape is not known and so nothing is added.
    """

    attention: tuple[Attention, ...] = ()
    latent: int = 0
    known: bool = True


NO_DRAFTER = DrafterLayers()


def is_mtp(speculative: Mapping[str, Any], model: str) -> bool:
    """Return whether the model drafts with MTP layers of its own.

    Args:
        speculative: `--speculative-config`.
    """
    method, name = str(speculative.get("method", "")), speculative.get("model")
    return method.endswith("mtp") and name in (None, "", model)


def drafter_layers(geometry: Geometry, speculative: Mapping[str, Any], model: str) -> DrafterLayers:
    """The layers that a drafter adds to the cache of the model.

    Args:
        geometry: of the model, with its `drafter` where that is a model of its own.
        speculative: `--speculative-config`; empty without one.
        model: that is served, by name.
    """
    method = str(speculative.get("method", ""))
    if not speculative or method in WITHOUT_LAYERS:
        return NO_DRAFTER
    if method.endswith("mtp") and geometry.model_type.startswith("gemma4"):
        return NO_DRAFTER
    own = method == "dspark" and speculative.get("model") in (None, "", model)
    if is_mtp(speculative, model) or own:
        return _of_mtp(geometry)
    if geometry.drafter is not None:
        return DrafterLayers(geometry.drafter.attention, known=not geometry.drafter.latent)
    return DrafterLayers(known=False)


def _of_mtp(geometry: Geometry) -> DrafterLayers:
    count = geometry.mtp_layers or 1  # vLLM's own default
    if geometry.latent is not None:
        return DrafterLayers(latent=count)
    full = next((part for part in geometry.attention if part.kind == "full"), None)
    if full is None:
        return DrafterLayers(known=False)
    return DrafterLayers((replace(full, layers=count, borrowed=0, index_layers=None),))


@dataclass(frozen=True)
class KvLayout:
    """The layout of a model over GPUs and in blocks, by the options of the server.

    Attributes:
        kv_dtype: `--kv-cache-dtype`.
        vllm: its version; without one the newest rule.
        block_size: `--block-size`; None: 16 tokens.
        prefix_caching: None: the version's default, which matters for recurrent layers only.
        mamba_cache_mode: `align`, `all` or `none`; None: what vLLM takes for prefix caching.
        drafted_tokens: of speculative decoding, for recurrent layers.
        drafter: layers of a drafter, which draw from the same pool.
        gdn_prefill: the kernel that runs the prefill of gated delta nets, as the log's "Using ...
            GDN prefill kernel" names it: `flashinfer` or another, such as `triton`. None: what vLLM
            takes by itself on a GPU with CUDA 13, `flashinfer` (Hopper and Blackwell, so also a
            Spark).
        async_scheduling: the next batch is scheduled while one runs, vLLM's default on GPUs.
        dcp: `--decode-context-parallel-size`: GPUs that share out the tokens of each request.
        device: on a CPU the same version has other kernels, float32 states of GDN layers and no
            async scheduling.
        state_dtype: `--mamba-ssm-cache-dtype`; None or `auto`: as the model says.

    Raises:
        UsageError: a value is out of its range, or not known.
    """

    geometry: Geometry
    kv_dtype: str = "auto"
    max_num_batched_tokens: int = 2048
    tp: int = 1
    vllm: str | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    mamba_cache_mode: str | None = None
    drafted_tokens: int = 0
    drafter: DrafterLayers = NO_DRAFTER
    gdn_prefill: str | None = None
    async_scheduling: bool = True
    dcp: int = 1
    device: Literal["gpu", "cpu"] = "gpu"
    state_dtype: str | None = None

    def __post_init__(self) -> None:
        for what, number in (
            ("the tensor-parallel size", self.tp),
            ("--decode-context-parallel-size", self.dcp),
            ("--block-size", self.block),
            ("--max-num-batched-tokens", self.max_num_batched_tokens),
        ):
            if number < 1:
                raise UsageError(f"{what} should be at least 1, found {number}")
        known = ("none", "align", "all") if self.rule.all_mode else ("none", "align")
        if self.mode not in known:
            raise UsageError(
                f"vLLM has no --mamba-cache-mode {self.mode!r}",
                hint=f"known are: {', '.join(known)}",
            )

    @cached_property
    def rule(self) -> Rule:
        """The rule of its version of vLLM."""
        return for_version(self.vllm)[0]

    @cached_property
    def element(self) -> Element:
        """The element type of the cache."""
        latent, asked = self.geometry.latent, self.kv_dtype.lower()
        if latent and latent.index_dim and self.rule.packed_latent and asked in PACKED_FOR:
            return Element(PACKED)
        return element(self.kv_dtype, self.geometry, latent=latent is not None)

    @property
    def block(self) -> int:
        """Tokens of a block, as asked for or by default."""
        return self.block_size or BLOCK

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def kernel(self) -> int:
        """Tokens of the smallest block that the attention's kernels can do."""
        return self.rule.cpu_kernel if self.on_cpu else BLOCK

    @property
    def mode(self) -> str:
        """The cache mode of recurrent layers: `none`, `align` (prefix caching) or `all`."""
        given = self.prefix_caching
        caching = self.rule.hybrid_prefix_caching if given is None else given
        return self.mamba_cache_mode or ("align" if caching else "none")

    @property
    def in_flight(self) -> int:
        """Tokens that may be scheduled but not settled at once."""
        overlapping = self.rule.in_flight and self.async_scheduling and not self.on_cpu
        return (2 if overlapping else 1) * self.max_num_batched_tokens

    @property
    def gdn_checkpoints(self) -> bool:
        """Gated delta nets keep a checkpoint of the prefill, which FlashInfer runs.

        vLLM takes checkpoints only where every recurrent layer can export them.
        """
        recurrent = self.geometry.recurrent
        exporting = (part.kind == "gdn" or part.replicated for part in recurrent)
        only_gdn = bool(recurrent) and all(exporting)
        flashinfer = not self.on_cpu and (self.gdn_prefill or "flashinfer") == "flashinfer"
        return self.rule.gdn_checkpoints and self.mode == "align" and flashinfer and only_gdn


def not_known(geometry: Geometry, kv_dtype: str = "auto") -> str:
    """Return what in a model asks for a cache that vLLM lays out by a rule that is not known here;
    empty for every other model.

    Args:
        kv_dtype: `--kv-cache-dtype`.
    """
    families: dict[str, str] = table("families")["cache_not_known"]
    family, parts = geometry.model_type, geometry.attention
    alike = len(parts) == 1 and parts[0].kind == "full" and parts[0].head_dim == parts[0].value_dim
    if kv_dtype.lower() in TURBOQUANT["types"] and (geometry.latent or not alike):
        return f"{kv_dtype} with other attention than full, or heads of several sizes"
    return next((families[one] for one in families if family.startswith(one)), "")
