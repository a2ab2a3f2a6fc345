"""The KV cache arithmetic of vLLM, version by version: how much context fits."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import or_
from typing import Annotated, Any, Literal

from packaging.version import Version

from spark_cluster.config.schema import Hidden, Rounded
from spark_cluster.config.yamlfile import did_you_mean, table_beside
from spark_cluster.errors import UsageError
from spark_cluster.models.naming import table
from spark_cluster.models.shape import Attention, Geometry, Latent, Recurrent

# The rules of the arithmetic by vLLM version: one rule for each span of versions.
#
# They are data (plan/data/kv_rules.toml), read in the released sources of 0.19.0 to 0.33.0.

_FILE = table_beside(__file__, "data/kv_rules.toml")

NEWEST_READ: str = _FILE["newest_read"]
"""The newest version whose source was compared."""


@dataclass(frozen=True)
class Rule:
    """The rule of one span of versions.

    Attributes:
        since: the first version of the span.
        why, source: what changed with it, and where.
        printed: what "KV cache size" in the log means: `pool`, the blocks shared out to the
            groups of layers, which understates a hybrid; `requests`, the maximum concurrency
            times --max-model-len.
        padding_limit: kinds of layers whose numbers differ by less than this factor are padded to
            the larger number.
        in_flight: windows are kept for every batch in flight (two with async scheduling), not
            for one.
        null_block: a block that is never given out is left aside when the longest request is
            looked for.
        pads_attention: a page that does not divide the largest one is padded; else it is refused.
        hybrid_prefix_caching: prefix caching is on by default for models with recurrent layers.
        speculative_states: in cache mode `all`, drafting keeps additional states.
        all_mode: Mamba's cache mode `all` exists.
        checkpoints: kinds of recurrent layers that keep one more state a request in mode `align`.
        gdn_checkpoints: gated delta nets do so too where FlashInfer runs their prefill; their
            block is then a multiple of 64 tokens.
        block_alignment: the block of a hybrid is a multiple of --block-size; before, of 16 tokens.
        latent_alignment: tokens to which a hybrid MLA model's block is aligned at least.
        turboquant: which models it takes: `none`, those with `attention` only, also a `hybrid` with
            recurrent layers; and with blocks `covering` those of the layers that are not packed.
        sliding_block: the block of sliding layers is `asked` for by --block-size, is the
            `smallest` that the attention's kernels can do, or the longest `fitting` into a page.
        cpu_kernel: tokens of the smallest block of vLLM's attention for CPUs.
        packed_latent: on a Spark latent attention with an indexer keeps `fp8_ds_mla` for FP8.
        whole_kernels: packed blocks are so many bytes apart that each kernel's own pages fit.
        compressed: DeepSeek V4 has blocks of its own kind, which are counted as they were `logged`;
            or packed ones, and the longest request is looked for by `tuples` of pages or by
            `blocks`.
    """

    since: str
    why: str
    source: str
    printed: Literal["pool", "requests"]
    padding_limit: float
    in_flight: bool
    null_block: bool
    pads_attention: bool
    hybrid_prefix_caching: bool
    speculative_states: bool
    all_mode: bool
    checkpoints: Sequence[str]
    gdn_checkpoints: bool
    block_alignment: bool
    latent_alignment: int
    turboquant: Literal["none", "attention", "hybrid", "covering"]
    sliding_block: Literal["asked", "smallest", "fitting"]
    cpu_kernel: int
    packed_latent: bool
    whole_kernels: bool
    compressed: Literal["logged", "tuples", "blocks"]


LOGGED: dict[str, Any] = _FILE["logged"]
"""Families whose cache is counted as servers logged it, by the most that they took for a token: by
old versions, and in NVFP4, which no release has on a Spark."""

RULES = tuple(Rule(**whole) for whole in accumulate(_FILE["rule"], or_))
"""All rules, oldest first; each is the one before with what changed."""


NONE_GIVEN = ("", "latest", "nightly")
"""Words that say of a version that it is the newest."""

UNTAGGED = (0, 1)
"""Release of builds from a source without tags, such as 0.1.dev20073: it says nothing of their
age (setuptools-scm)."""


def vllm_version(text: str | None) -> Version:
    """Return the version of vLLM that a plan is made for; the newest whose source was read where
    none is given. Everything in a plan that depends on the version asks here.

    Args:
        text: such as `0.19.0`, `0.20.2rc1.dev9+g1234`; None, `latest`, `nightly` and builds of an
            untagged source (`0.1.dev20073`) give none.

    Raises:
        UsageError: it is not a version.
    """
    return given_version(text) or Version(NEWEST_READ)


def given_version(text: str | None) -> Version | None:
    """Return the version that is given; None where none is, as `vllm_version` reads it."""
    if text is None or text.strip().lower() in NONE_GIVEN:
        return None
    try:
        found = Version(text.strip())
    except ValueError:  # also of a number that is too long
        raise UsageError(
            f"{text!r} is not a version of vLLM", hint="such as 0.19.0; see vllm --version"
        ) from None
    return None if found.is_devrelease and found.release == UNTAGGED else found


def for_version(version: str | None) -> tuple[Rule, str]:
    """The rule of a version, and words that say which one it is and how sure that is.

    Args:
        version: as `vllm_version` reads it.

    Raises:
        UsageError: it is not a version.
    """
    wanted = given_version(version)
    if wanted is None:
        newest = RULES[-1]
        return newest, f"rule of vLLM {newest.since} (the newest; no version was given)"
    if wanted < Version(RULES[0].since):
        first = RULES[0]
        return first, f"rule of vLLM {first.since} (the oldest known; {version} may differ)"
    found = [rule for rule in RULES if Version(rule.since) <= wanted][-1]
    text = f"rule of vLLM {found.since}"
    if wanted.release > Version(NEWEST_READ).release:
        return found, f"{text} (the newest known, read up to {NEWEST_READ}; {version} may differ)"
    return found, text if found.since == version else f"{text}, also for {version}"


# Bytes of an element in a KV cache of a given type.

BYTES: dict[str, int] = _FILE["bytes"]
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


TURBOQUANT: dict[str, Any] = _FILE["turboquant"]
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


# The cache of each kind of layer: the size of its page, how many a request needs, and the pool of
# blocks that the kinds share.


@dataclass(frozen=True)
class Pages:
    """Layers of one kind in vLLM's cache.

    Attributes:
        block: tokens of one block.
        page: bytes of one block in one layer.
        window: tokens that are seen, for `sliding` and `chunked`.
        fixed: pages a request, for `state` and `ring`, the keys of an indexer that are not pooled
            yet; None: one for each block of tokens, and `more`.
        replicated: states that each GPU holds whole.
        aligned: bytes of which the distance of packed blocks is a multiple.
    """

    kind: Literal["full", "latent", "sliding", "chunked", "state", "ring"]
    layers: int
    block: int
    page: int
    window: int = 0
    fixed: int | None = None
    more: int = 0
    replicated: bool = False
    aligned: int = 1

    def needed(self, length: int, in_flight: int) -> int:
        """Blocks that a request of that many tokens needs at most, in one group of such layers.

        Args:
            in_flight: tokens that may be scheduled but not settled at once.
        """
        if self.kind == "sliding":
            tokens = min(self.window - 1 + in_flight, length)
            return ceil(tokens, self.block) + 1  # a window need not begin where a block does
        if self.kind == "chunked":
            return ceil(min(self.window + in_flight, length), self.block)
        if self.fixed is not None:
            return self.fixed
        return ceil(length, self.block) + self.more


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


__all__ = ["KvCache", "KvLayout", "Rule", "bytes_for", "cache", "for_version"]


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


def pages(cut: KvLayout) -> list[Pages]:
    """The layers that keep a cache, kind by kind.

    Raises:
        UsageError: the model cannot be divided by the tensor-parallel size, or vLLM's rule for its
            cache is not known here.
    """
    if why := not_known(cut.geometry, cut.kv_dtype):
        raise UsageError(
            f"how vLLM lays out the KV cache of {cut.geometry.name} is not known here: {why}",
            hint="vLLM prints it at the start: 'GPU KV cache size'",
        )
    if cut.element.name in TURBOQUANT["types"]:
        _must_take_turboquant(cut)
    if logged := _logged(cut):
        return [Pages("latent", 1, logged["block"], logged["block"] * logged["bytes_per_token"])]
    attention = [*_attention(cut), *_latent(cut)]
    if cut.drafter.attention or cut.drafter.latent:
        attention = together([*attention, *_drafter(cut)])
    if not cut.geometry.recurrent:
        return attention
    states = [_state(cut, part) for part in cut.geometry.recurrent]
    return [*_lengthened(cut, attention, states), *_padded(cut, attention, states)]


def _logged(cut: KvLayout) -> dict[str, int] | None:
    found: dict[str, int] | None = LOGGED.get(cut.geometry.model_type)
    old = cut.rule.compressed == "logged"
    return found if old or cut.kv_dtype.lower().startswith(NVFP4) else None


def together(parts: list[Pages]) -> list[Pages]:
    """Kinds that are alike in all but the number of layers, as one."""
    found = Counter[Pages]()
    for part in parts:
        found[replace(part, layers=0)] += part.layers
    return [replace(part, layers=count) for part, count in found.items()]


def _drafter(cut: KvLayout) -> Iterator[Pages]:
    yield from _attention(
        replace(cut, geometry=replace(cut.geometry, attention=cut.drafter.attention))
    )
    if cut.drafter.latent and cut.geometry.latent:
        latent = replace(cut.geometry.latent, layers=cut.drafter.latent, compressed=())
        yield from _latent(replace(cut, geometry=replace(cut.geometry, latent=latent)))


def _attention(cut: KvLayout) -> Iterator[Pages]:
    for part in cut.geometry.attention:
        layers = part.layers - part.borrowed
        if layers < 1:
            continue
        if cut.element.name in TURBOQUANT["types"]:
            yield from _turboquant(cut, part, layers)
            continue
        block = _sliding_block(cut) if part.kind == "sliding" else cut.block
        if part.index_dim and part.pooled == 1:
            block = INDEX_BLOCK * ceil(block, INDEX_BLOCK)
        page = block * heads_each(part, cut.tp) * cut.element.slot(part.head_dim, part.value_dim)
        yield Pages(part.kind, layers, block, page, part.window or 0)
        if part.index_dim:  # in 16 bits
            kept = layers if part.index_layers is None else part.index_layers
            own = replace(cut, block_size=block)
            yield from _index_keys(own, kept, 2 * part.index_dim, part.pooled)


def _index_keys(cut: KvLayout, layers: int, width: int, pooled: int) -> Iterator[Pages]:
    """Yield the keys of an indexer, of which several tokens may share one.

    The keys of tokens that have no shared one yet are in a ring, one block a request; its page is
    the smallest of all, so only its number of layers matters.
    """
    of_kernel = pooled > 1 and cut.geometry.latent and cut.rule.whole_kernels
    aligned = SPARSE_PAGE * width if of_kernel else 1
    yield Pages("latent", layers, cut.block, width * cut.block // pooled, aligned=aligned)
    if pooled > 1:
        yield Pages("ring", layers, pooled, 1, fixed=1)


def _turboquant(cut: KvLayout, part: Attention, layers: int) -> Iterator[Pages]:
    """Layers whose keys and values are packed, and those at both ends that are as the model."""
    heads = heads_each(part, cut.tp)
    packed = heads * cut.element.slot(part.head_dim, part.value_dim)
    own = heads * element("auto", cut.geometry).slot(part.head_dim, part.value_dim)
    ends = 0 if cut.geometry.recurrent else 2 * min(TURBOQUANT["kept"], layers // 2)
    block = cut.block
    if ends and cut.rule.turboquant == "covering":
        block *= ceil(own * cut.kernel, block * packed)
    for count, width in ((layers - ends, packed), (ends, own)):
        if count:
            yield Pages("full", count, block, block * width)


def _must_take_turboquant(cut: KvLayout) -> None:
    """Raise UsageError where this vLLM has no such cache, or what a drafter adds is not known."""
    hybrid, name = bool(cut.geometry.recurrent), cut.element.name
    if cut.drafter != NO_DRAFTER and not hybrid:
        raise UsageError(
            f"how vLLM keeps a drafter's layers in a {name} KV cache is not known here",
            hint="vLLM prints it at the start: 'GPU KV cache size'; --kv-cache-dtype fp8 is known",
        )
    if cut.rule.turboquant == "none" or (hybrid and cut.rule.turboquant == "attention"):
        raise UsageError(
            f"vLLM {cut.vllm} has no {name} KV cache for {cut.geometry.name}",
            hint=f"vLLM {'0.21.0' if hybrid else '0.20.0'} and newer do; or --kv-cache-dtype fp8",
        )


def _sliding_block(cut: KvLayout) -> int:
    if cut.rule.sliding_block == "asked":
        return cut.block
    if cut.rule.sliding_block == "smallest":
        return cut.kernel
    return max(cut.kernel, cut.block // cut.kernel * cut.kernel)


def heads_each(part: Attention, tp: int) -> int:
    """KV heads on each GPU; with fewer heads than GPUs they are replicated.

    Raises:
        UsageError: it cannot be divided.
    """
    if part.q_heads % tp:
        raise UsageError(
            f"{part.q_heads} attention heads cannot be divided among {tp} GPUs",
            hint=f"take a tensor-parallel size that divides {part.q_heads}",
        )
    if max(part.kv_heads, tp) % min(part.kv_heads, tp):
        raise UsageError(f"{part.kv_heads} key-value heads cannot be shared by {tp} GPUs")
    return max(1, part.kv_heads // tp)


def _latent(cut: KvLayout) -> Iterator[Pages]:
    """Yield one vector a token for all heads: every GPU holds it in full."""
    part: Latent | None = cut.geometry.latent
    if part is None:
        return
    if part.window:
        yield from _compressed(cut, part)
        return
    own = cut.element.width(part.rank + part.rope_dim)
    width = DS_MLA_BYTES.get(cut.element.name, own)
    aligned = SPARSE_PAGE * width if part.pooled > 1 and cut.rule.whole_kernels else 1
    yield Pages("latent", part.layers, cut.block, cut.block * width, aligned=aligned)
    layers = part.layers if part.index_layers is None else part.index_layers
    if part.index_dim and layers:  # keys in fp8 and a scale of 4 bytes for 128 of them
        indexed = part.index_dim + 4 * ceil(part.index_dim, 128)
        yield from _index_keys(cut, layers, indexed, part.pooled)


# DeepSeek V4 and V4.1: vectors for several tokens, index keys for some of them, the vectors of a
# window, and what is not compressed yet (`compressor.py` and `attention.py` in vLLM's
# `models/deepseek_v4` and `models/deepseek_v41`, with FlashInfer's kernel for a Spark).

RECORD, STRIDE = 584, 576
"""Bytes of a vector (448 elements in FP8, 64 in 16 bits, 8 bytes of scales), and those of which a
page is a multiple."""

OVERLAPPING = 4
"""Tokens a vector of V4's layers with an indexer, whose groups of tokens overlap."""


def _compressed(cut: KvLayout, part: Latent) -> Iterator[Pages]:
    least, own = (128, 32) if part.shared else (256, 64)
    block = least * ceil(cut.block, least)
    for tokens, layers in part.compressed:
        kept = block // tokens
        yield Pages("latent", layers, block, _strided(kept * RECORD))
        if part.shared or tokens == OVERLAPPING:
            indexed = part.index_dim + 4 * ceil(part.index_dim, 128)
            yield Pages("latent", layers, block, _strided(kept * indexed))
        if part.shared and tokens > 1:
            yield Pages("ring", layers, tokens, 1, fixed=1)
        if not part.shared:
            yield from _uncompressed(part, tokens, layers)
    yield Pages("sliding", part.layers, own, _strided(own * RECORD), part.window)


def _uncompressed(part: Latent, tokens: int, layers: int) -> Iterator[Pages]:
    """Yield values and scores in float32, of the layer itself and of its indexer."""
    overlaps = tokens == OVERLAPPING
    block, times = (4, 2) if overlaps else (8, 1)
    for width in (part.value_dim, part.index_dim) if overlaps else (part.value_dim,):
        page = _strided(block * 4 * 2 * times * width)
        yield Pages("sliding", layers, block, page, times * tokens)


def _strided(size: int) -> int:
    return ceil(size, STRIDE) * STRIDE


def _state(cut: KvLayout, part: Recurrent) -> Pages:
    conv, tp = part.conv_elements, 1 if part.replicated else cut.tp
    if part.groups and part.groups % cut.tp:  # each GPU has the groups that its heads need
        conv += (cut.tp - part.groups) * part.group_elements
    if conv % tp or part.state_elements % tp:
        raise UsageError(f"the recurrent layers cannot be divided among {cut.tp} GPUs")
    if part.conv_width:
        conv = conv // part.conv_width * (part.conv_width + cut.drafted_tokens)
    asked = part.state_dtype if cut.state_dtype in (None, "auto") else cut.state_dtype
    size = conv // tp * state_bytes(None, cut.geometry)
    size += (
        part.state_elements // tp * state_bytes("float32" if cut.on_cpu else asked, cut.geometry)
    )
    kept, alone = _kept(cut, part), part.replicated
    return Pages("state", part.layers, cut.block, size, fixed=kept, replicated=alone)


def _kept(cut: KvLayout, part: Recurrent) -> int:
    """States that one request keeps, unless there is one for each block."""
    if cut.mode == "none":
        return 1 + cut.drafted_tokens
    checkpoint = (part.kind in cut.rule.checkpoints and part.exports) or cut.gdn_checkpoints
    return 2 + cut.drafted_tokens + int(checkpoint)


def _block(cut: KvLayout, attention: list[Pages], states: list[Pages]) -> int:
    """Tokens of a block long enough that its page of attention holds a state."""
    state = max(part.page for part in states)
    a_token = max(part.page // part.block for part in attention)
    step = max(cut.kernel, cut.block) if cut.rule.block_alignment else cut.kernel
    if cut.geometry.latent:
        step = max(step, cut.rule.latent_alignment)
    if cut.gdn_checkpoints:
        step = math.lcm(step, FLASHINFER_GDN_ALIGNMENT)
    if cut.mode == "all":
        step = math.lcm(step, max(part.chunk for part in cut.geometry.recurrent) or 1)
    pooled = cut.geometry.latent.pooled if cut.geometry.latent else 1
    whole = pooled * SPARSE_PAGE if pooled > 1 else 1
    return whole * ceil(max(cut.block, step * ceil(state, step * a_token)), whole)


def _lengthened(cut: KvLayout, attention: list[Pages], states: list[Pages]) -> list[Pages]:
    if not attention:
        return []
    block = _block(cut, attention, states)
    return [
        part if part.fixed else replace(part, block=block, page=part.page * block // part.block)
        for part in attention
    ]


def _padded(cut: KvLayout, attention: list[Pages], states: list[Pages]) -> list[Pages]:
    """States in pages as large as those of attention."""
    if not attention:
        return states
    block = _block(cut, attention, states)
    page = block * max(part.page // part.block for part in attention)
    if cut.mode == "all":
        more = cut.drafted_tokens if cut.rule.speculative_states else 0
        return [replace(part, block=block, page=page, fixed=None, more=more) for part in states]
    return [replace(part, block=block, page=page) for part in states]


@dataclass(frozen=True)
class Pool:
    """Blocks that all groups of layers draw from.

    Attributes:
        kinds: each kind of layer with the number of its groups.
        block_bytes: of one block on one GPU.
        in_flight: tokens that may be scheduled but not settled at once.
        dcp: GPUs that share out the tokens of full and latent attention.
        checked: bytes that vLLM takes for a block where it looks for the longest request; None: as
            many as it has.
    """

    kinds: tuple[tuple[Pages, int], ...]
    block_bytes: int
    in_flight: int
    dcp: int = 1
    checked: int | None = None

    @property
    def groups(self) -> int:
        return sum(count for _, count in self.kinds)

    @property
    def smallest_block(self) -> int:
        """Tokens of the shortest block."""
        return min(part.block for part, _ in self.kinds if part.kind != "ring")

    def needed(self, length: int) -> int:
        """Blocks that a request of that many tokens needs at most.

        Raises:
            UsageError: it has none.
        """
        if length < 1:
            raise UsageError(f"--max-model-len should be at least 1, found {length}")
        return sum(count * self._of(part, length) for part, count in self.kinds)

    def _of(self, part: Pages, length: int) -> int:
        """Blocks of one group of layers; windows and states are not shared out."""
        shared = part.kind in ("full", "latent") and part.fixed is None
        own = ceil(length, self.dcp) if shared else length
        return part.needed(own, self.in_flight)


def pool(layout: KvLayout) -> Pool:
    """The pool of a model.

    Layers of one kind are one group, whatever their sizes. Different kinds get pages of one size
    (the smaller ones longer blocks), and each is split into groups of as many layers as the
    rarest kind has.

    Raises:
        UsageError: it keeps no cache, or the pages cannot be made alike.
    """
    parts, rule = pages(layout), layout.rule
    if not parts:
        raise UsageError(f"{layout.geometry.name} keeps no KV cache of its own")
    compressed = layout.geometry.latent and layout.geometry.latent.window
    if any(part.kind == "ring" for part in parts) or (compressed and not _logged(layout)):
        return _packed(parts, layout)
    if len({_uniform(part) for part in parts}) == 1:
        size = sum(part.layers * part.page for part in parts)
        return Pool(((parts[0], 1),), size, layout.in_flight, layout.dcp)
    alike = together(_one_size(parts, rule))
    fewest = min(part.layers for part in alike)
    most = max(part.layers for part in alike)
    size = most if most < fewest * rule.padding_limit else fewest
    kinds = tuple((part, ceil(part.layers, size)) for part in alike)
    return Pool(kinds, size * alike[0].page, layout.in_flight, layout.dcp)


def _uniform(part: Pages) -> tuple[object, ...]:
    """Kinds that need the same number of blocks for the same tokens are alike."""
    kind = "full" if part.kind == "latent" else part.kind
    return (kind, part.block, part.window, part.fixed, part.more, part.replicated)


# Pages of several sizes in one block (vLLM: `_get_packed_kv_cache_groups`): the layout of models
# whose indexers keep pooled keys.


@dataclass(frozen=True)
class _Bucket:
    """Kinds of which a request needs as many blocks, whatever the sizes of their pages."""

    parts: tuple[Pages, ...]

    @property
    def repeats(self) -> int:
        return max(part.layers for part in self.parts)

    @property
    def balanced(self) -> bool:
        return len({part.layers for part in self.parts}) == 1

    def widest(self, groups: int) -> int:
        """Bytes of the largest of so many groups."""
        return sum(ceil(part.layers, groups) * part.page for part in self.parts)


def _packed(parts: list[Pages], layout: KvLayout) -> Pool:
    alike: dict[tuple[object, ...], list[Pages]] = {}
    for part in parts:
        alike.setdefault(_uniform(part), []).append(part)
    buckets = [_Bucket(tuple(_of_one_page(same))) for same in alike.values()]
    even = [one for one in buckets if one.balanced]
    floor = max((one.repeats for one in even if len(one.parts) > 1), default=0)
    each = _repeats([one.repeats for one in even], floor) if floor else 0
    split = [ceil(one.repeats, each) if one.balanced and each else 1 for one in buckets]
    state = [_is_state(one.parts[0], split_up=each > 0) for one in buckets]
    rows = [*zip(buckets, split, state, strict=True)]
    room = max(one.widest(one.repeats if kept else count) for one, count, kept in rows)
    groups = [
        max(count, ceil(one.repeats, max(1, room // one.parts[0].page))) if kept else count
        for one, count, kept in rows
    ]
    size = max(one.widest(count) for one, count in zip(buckets, groups, strict=True))
    step = math.lcm(*(part.aligned for part in parts))
    kinds = tuple((one.parts[0], count) for one, count in zip(buckets, groups, strict=True))
    checked = None
    if layout.rule.compressed == "tuples":
        most = max(ceil(one.repeats, count) for one, count in zip(buckets, groups, strict=True))
        checked = most * sum(part.page for part in buckets[0].parts)
    return Pool(kinds, ceil(size, step) * step, layout.in_flight, layout.dcp, checked)


def _of_one_page(parts: list[Pages]) -> list[Pages]:
    """Kinds with pages of one size as one, whatever the distance of their blocks."""
    return together([replace(part, kind=parts[0].kind, aligned=1) for part in parts])


def _is_state(part: Pages, *, split_up: bool) -> bool:
    """Return whether a bucket's groups may have any number of layers, down to one."""
    return part.kind in ("state", "ring") or (part.kind == "sliding" and not split_up)


def _repeats(counts: list[int], floor: int) -> int:
    """Return the number of layers a group that leaves the fewest places empty, the largest of those
    (vLLM: `_approximate_gcd`).
    """
    return min(
        range(floor, max(counts) + 1), key=lambda each: (sum(-n % each for n in counts), -each)
    )


def _one_size(parts: list[Pages], rule: Rule) -> list[Pages]:
    largest = max(part.page for part in parts)
    found = []
    for part in parts:
        if largest % part.page == 0 and part.kind != "state":
            found.append(replace(part, block=part.block * (largest // part.page), page=largest))
        elif part.kind == "state" or (rule.pads_attention and part.kind != "latent"):
            found.append(replace(part, page=largest))
        else:
            raise UsageError(
                f"vLLM {rule.since} cannot serve this model with such a KV cache: a page of "
                f"{part.page} bytes does not divide one of {largest}",
                hint="0.24 and newer pad it; or take another KV cache type",
            )
    return found


# A KV cache of a given size: what vLLM prints for it, and the other way round.

GIB = 1024**3

FLASHINFER_ASSUMED = (
    "FlashInfer's GDN prefill is assumed, which keeps one more state a request (the log says "
    '"Using ... GDN prefill kernel")'
)


@dataclass(frozen=True)
class KvCache:
    """The KV cache as a server's log describes it, figures of one GPU.

    Attributes:
        blocks: in the pool, counted in blocks of `--block-size`. Where vLLM takes longer ones
            because a CPU's kernels want them, one of its blocks counts as several.
        blocks_per_request: that a request of full length needs.
        tokens: as "KV cache size" in the log.
        max_concurrency: requests of full length at once.
        gib_per_request: that such a request takes, GiB a GPU.
        max_model_len: the longest request that fits, tokens; at most what the model was made for.
        rule: which version's arithmetic it is.
        block_size: tokens of the shortest block, after alignment.
    """

    blocks: int
    blocks_per_request: int
    tokens: int
    max_concurrency: Annotated[float, Rounded(2)]
    gib_per_request: Annotated[float, Rounded(4)]
    max_model_len: int
    rule: str
    block_size: Hidden[int]


def cache(layout: KvLayout, size: int, max_model_len: int) -> KvCache:
    """Compute what a cache of that size holds.

    Args:
        size: of the cache on each GPU, bytes.
        max_model_len: `--max-model-len`, tokens.

    Raises:
        UsageError: a value is out of its range, or the model cannot be laid out like this.
    """

    if size <= 0:
        raise UsageError(f"a KV cache of {size} bytes holds nothing")
    shared = pool(layout)
    needed = shared.needed(max_model_len)
    if shared.block_bytes <= 0 or needed <= 0:
        raise UsageError(f"{layout.geometry.name} has no layers with a KV cache, by its config")
    blocks = size // shared.block_bytes
    concurrency = blocks / needed
    if layout.rule.printed == "pool":
        tokens = blocks // shared.groups * shared.smallest_block
    else:
        tokens = int(concurrency * max_model_len)
    usable = size // (shared.checked or shared.block_bytes) - int(layout.rule.null_block)
    lengths = range(1, (layout.geometry.max_positions or max_model_len) + 1)
    unit = _unit(layout)
    return KvCache(
        blocks=blocks * unit,
        blocks_per_request=needed * unit,
        tokens=tokens,
        max_concurrency=concurrency,
        gib_per_request=needed * shared.block_bytes / GIB,
        max_model_len=bisect_right(lengths, usable, key=shared.needed),
        rule=_words(layout),
        block_size=shared.smallest_block,
    )


def _words(layout: KvLayout) -> str:
    """Which rule the figures follow, and what it assumes."""
    if logged := _logged(layout):
        return f"at most what servers logged for a token: {logged['bytes_per_token']:,} bytes"
    words = for_version(layout.vllm)[1]
    if layout.gdn_checkpoints and not layout.gdn_prefill:
        return f"{words}; {FLASHINFER_ASSUMED}"
    return words


def bytes_for(layout: KvLayout, requests: int, length: int) -> int:
    """The bytes on each GPU that hold that many requests of that length, whole blocks.

    Raises:
        UsageError: as `cache`.
    """

    if requests < 1:
        raise UsageError(f"the number of requests should be at least 1, found {requests}")
    shared = pool(layout)
    spare = 1 if layout.rule.null_block else 0
    return (requests * shared.needed(length) + spare) * shared.block_bytes


def _unit(layout: KvLayout) -> int:
    """Return how many blocks of the requested size one block counts as."""
    sliding = any(part.kind == "sliding" for part in layout.geometry.attention)
    if not sliding or layout.rule.sliding_block == "asked":
        return 1
    return max(1, layout.kernel // layout.block)
