"""The rules of the arithmetic by vLLM version: one rule for each span of versions.

Read in the released sources of 0.16.0 to 0.33.0: `vllm/v1/core/kv_cache_utils.py` (its planning
part is `kv_cache_planning.py` since 0.33), `vllm/v1/kv_cache_interface.py`,
`vllm/platforms/interface.py`, `vllm/config/vllm.py` and `vllm/config/model.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from spark_cluster.errors import UsageError

NEWEST_READ = "0.33.0"
"""The newest version whose source was compared."""


@dataclass(frozen=True)
class Rule:
    """The rule of one span of versions.

    Attributes:
        since: the first version of the span.
        why: what changed with it, and where.
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
        sliding_block: the block of sliding layers is `asked` for by --block-size, is the
            `smallest` that the attention's kernels can do, or the longest `fitting` into a page.
        cpu_kernel: tokens of the smallest block of vLLM's attention for CPUs.
    """

    since: str
    why: str
    printed: Literal["pool", "requests"] = "pool"
    padding_limit: float = 1.25
    in_flight: bool = False
    null_block: bool = False
    pads_attention: bool = False
    hybrid_prefix_caching: bool = False
    speculative_states: bool = False
    all_mode: bool = True
    checkpoints: tuple[str, ...] = ()
    gdn_checkpoints: bool = False
    block_alignment: bool = False
    latent_alignment: int = 64
    sliding_block: Literal["asked", "smallest", "fitting"] = "asked"
    cpu_kernel: int = 16


@cache
def rules() -> tuple[Rule, ...]:
    """Return all rules, oldest first; each is the one before with what changed."""
    first = Rule("0.16.0", "the oldest that was read")
    found = [first]
    for since, why, changed in _CHANGES:
        found.append(replace(found[-1], since=since, why=why, **changed))
    return tuple(found)


_CHANGES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "0.18.0",
        "_get_kv_cache_groups_uniform_page_size pads up to a factor of 1.5 instead of 1.25",
        {"padding_limit": 1.5},
    ),
    (
        "0.20.0",
        "the block of a hybrid is aligned by its attention backend (_align_hybrid_block_size)",
        {"block_alignment": True, "latent_alignment": 16},
    ),
    (
        "0.20.1",
        "_report_kv_cache_config prints concurrency times length instead of blocks a group",
        {"printed": "requests"},
    ),
    (
        "0.22.0",
        "MambaSpec counts the states of drafting in cache mode all",
        {"speculative_states": True},
    ),
    (
        "0.24.0",
        "unify_kv_cache_spec_page_size pads attention pages that do not divide the largest",
        {"pads_attention": True},
    ),
    (
        "0.25.0",
        "sliding layers take the smallest block of their kernels (Attention.get_kv_cache_spec)",
        {"sliding_block": "smallest"},
    ),
    (
        "0.26.0",
        "windows count every batch in flight (max_in_flight_tokens)",
        {"in_flight": True},
    ),
    (
        "0.27.0",
        "the block of a hybrid MLA model is a multiple of 128 (_align_hybrid_block_size)",
        {"latent_alignment": 128},
    ),
    (
        "0.28.0",
        "prefix caching is on for hybrids; 0.26 and 0.27 leave it out of their default "
        "(_set_default_chunked_prefill_and_prefix_caching_args)",
        {"hybrid_prefix_caching": True},
    ),
    (
        "0.29.0",
        "the null block is left aside in the check (get_kv_cache_configs); attention for CPUs "
        "wants blocks of 32",
        {"null_block": True, "cpu_kernel": 32},
    ),
    (
        "0.30.0",
        "sliding layers take the longest block that fits the page (_largest_kernel_block_within)",
        {"sliding_block": "fitting"},
    ),
    (
        "0.32.0",
        "MambaModelConfig has no cache mode all any more; Mamba 2 keeps a checkpoint of the "
        "prefill (MambaMixer2.get_kv_cache_spec)",
        {"all_mode": False, "checkpoints": ("mamba2",)},
    ),
    (
        "0.33.0",
        "gated delta nets keep a checkpoint of the prefill with FlashInfer's kernel "
        "(QwenGatedDeltaNetAttention.get_kv_cache_spec, _align_hybrid_block_size)",
        {"gdn_checkpoints": True},
    ),
)


def for_version(version: str | None) -> tuple[Rule, str]:
    """The rule of a version, and words that say which one it is and how sure that is.

    Args:
        version: such as `0.19.0`, `0.20.2rc1.dev9+g1234`; None or `latest`: the newest rule.

    Raises:
        UsageError: it is no version.
    """
    newest = rules()[-1]
    if version is None or version.strip().lower() in ("", "latest", "nightly"):
        return newest, f"rule of vLLM {newest.since} (the newest; no version was given)"
    try:
        wanted = Version(version.strip())
    except InvalidVersion:
        raise UsageError(
            f"{version!r} is not a version of vLLM", hint="such as 0.19.0; see vllm --version"
        ) from None
    if wanted < Version(rules()[0].since):
        first = rules()[0]
        return first, f"rule of vLLM {first.since} (the oldest known; {version} may differ)"
    found = [rule for rule in rules() if Version(rule.since) <= wanted][-1]
    text = f"rule of vLLM {found.since}"
    if wanted.release > Version(NEWEST_READ).release:
        return found, f"{text} (the newest known, read up to {NEWEST_READ}; {version} may differ)"
    return found, text if found.since == version else f"{text}, also for {version}"
