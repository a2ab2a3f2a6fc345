"""The rules of the arithmetic by vLLM version: one rule for each span of versions.

They are data (plan/data/kv_rules.toml), read in the released sources of 0.19.0 to 0.33.0.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import or_
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version

from spark_cluster.errors import UsageError

_FILE = tomllib.loads((Path(__file__).parents[1] / "data/kv_rules.toml").read_text())

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
        sliding_block: the block of sliding layers is `asked` for by --block-size, is the
            `smallest` that the attention's kernels can do, or the longest `fitting` into a page.
        cpu_kernel: tokens of the smallest block of vLLM's attention for CPUs.
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
    sliding_block: Literal["asked", "smallest", "fitting"]
    cpu_kernel: int


RULES = tuple(Rule(**whole) for whole in accumulate(_FILE["rule"], or_))
"""All rules, oldest first; each is the one before with what changed."""


def for_version(version: str | None) -> tuple[Rule, str]:
    """The rule of a version, and words that say which one it is and how sure that is.

    Args:
        version: such as `0.19.0`, `0.20.2rc1.dev9+g1234`; None or `latest`: the newest rule.

    Raises:
        UsageError: it is no version.
    """
    newest = RULES[-1]
    if version is None or version.strip().lower() in ("", "latest", "nightly"):
        return newest, f"rule of vLLM {newest.since} (the newest; no version was given)"
    try:
        wanted = Version(version.strip())
    except InvalidVersion:
        raise UsageError(
            f"{version!r} is not a version of vLLM", hint="such as 0.19.0; see vllm --version"
        ) from None
    if wanted < Version(RULES[0].since):
        first = RULES[0]
        return first, f"rule of vLLM {first.since} (the oldest known; {version} may differ)"
    found = [rule for rule in RULES if Version(rule.since) <= wanted][-1]
    text = f"rule of vLLM {found.since}"
    if wanted.release > Version(NEWEST_READ).release:
        return found, f"{text} (the newest known, read up to {NEWEST_READ}; {version} may differ)"
    return found, text if found.since == version else f"{text}, also for {version}"
