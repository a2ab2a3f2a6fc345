"""The rules of vLLM's KV cache arithmetic: one for each span of versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import or_
from typing import Any, Literal

from packaging.version import Version

from spark_cluster.config.yamlfile import table_beside
from spark_cluster.errors import UsageError

# The rules of the arithmetic by vLLM version: one rule for each span of versions.
#
# They are data (plan/data/kv_rules.toml), read in the released sources of 0.19.0 to 0.33.0.

FILE = table_beside(__file__, "data/kv_rules.toml")
"""The rules, with the sizes of elements and what was logged."""

NEWEST_READ: str = FILE["newest_read"]
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


LOGGED: dict[str, Any] = FILE["logged"]
"""Families whose cache is counted as servers logged it, by the most that they took for a token: by
old versions, and in NVFP4, which no release has on a Spark."""

RULES = tuple(Rule(**whole) for whole in accumulate(FILE["rule"], or_))
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
