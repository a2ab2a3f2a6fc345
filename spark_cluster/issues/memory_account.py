"""The account of memory that vLLM logs at the end of a start: "Actual usage is ..."."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_ACTUAL = re.compile(
    r"Actual usage is ([\d.]+) GiB for (weight|consumed memory \(weights \+ non-torch\)), "
    r"([\d.]+) GiB for peak activation, (?:([\d.]+) GiB for non-torch memory, )?"
    r"and ([\d.]+) GiB for CUDAGraph memory"
)
"""Up to 0.26 at least weights stand alone; in 0.33 what is outside PyTorch is among them."""

_LOADED = re.compile(r"Model loading took ([\d.]+) GiB")
_BATCHED = re.compile(r"max_num_batched_tokens'?[=:] ?(\d{1,9})\b")

ANCHORS = ("Actual usage is", "Model loading took", "max_num_batched_tokens")
"""A literal of each line that is read."""


@dataclass(frozen=True)
class MemoryAccount:
    """What one rank took when it was measured.

    Attributes:
        weights_gib: of the model.
        runtime_gib: neither weights nor cache: activations, graphs, memory outside PyTorch.
        batched_tokens: --max-num-batched-tokens; None where the log does not say.
    """

    weights_gib: float
    runtime_gib: float
    batched_tokens: int | None = None


def account_in(lines: Iterable[str]) -> MemoryAccount | None:
    """Return the account of the rank with the largest runtime; None without such a line.

    vLLM logs none where the cache is given in bytes: then nothing is measured.
    """
    loaded: float | None = None
    batched: int | None = None
    found: list[tuple[float, float]] = []
    for line in lines:
        if match := _BATCHED.search(line):
            batched = int(match[1])
        if match := _LOADED.search(line):
            loaded = float(match[1])
        if (match := _ACTUAL.search(line)) and (account := _account(match, loaded)):
            found.append(account)
    if not found:
        return None
    runtime, weights = max(found)
    return MemoryAccount(weights, round(runtime, 3), batched)


def _account(found: re.Match[str], loaded: float | None) -> tuple[float, float] | None:
    """Return runtime and weights; None where they cannot be told apart."""
    first, activation, graphs = (float(found[group]) for group in (1, 3, 5))
    if found[2] == "weight":
        return activation + graphs + float(found[4] or 0), first
    if loaded is None:
        return None
    return max(0.0, first - loaded) + activation + graphs, loaded
