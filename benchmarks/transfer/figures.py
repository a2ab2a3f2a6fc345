"""What a copy took, and whether the figures are those that are wanted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALLOWED = 1.1
"""Times the wall time of rsync that our own copy may take."""


@dataclass(frozen=True)
class Copy:
    """One copy: wall time, CPU time of both sides, seconds; and the bytes of the model."""

    way: str
    wall: float
    cpu: float
    size: int

    @property
    def gbit(self) -> float:
        """Gbit/s of the model's bytes."""
        return self.size * 8 / 1e9 / self.wall


@dataclass(frozen=True)
class Row:
    """The median of a way of copying."""

    way: str
    wall: float
    share: float
    cpu_a_gb: float
    to_first: float


@dataclass(frozen=True)
class Verdict:
    """A figure next to what is wanted of it."""

    name: str
    wanted: str
    seen: str
    met: bool


def rows(copies: Sequence[Copy], ways: Sequence[str], links_gbit: float) -> list[Row]:
    """Return the medians, each next to that of the first way.

    Args:
        links_gbit: both links together, Gbit/s; 0 for no limit.
    """
    by_way = {way: [copy for copy in copies if copy.way == way] for way in ways}
    walls = {way: statistics.median(c.wall for c in found) for way, found in by_way.items()}
    return [
        Row(
            way,
            walls[way],
            found[0].size * 8 / 1e9 / walls[way] / links_gbit if links_gbit else 0.0,
            statistics.median(c.cpu for c in found) / (found[0].size / 1e9),
            walls[way] / walls[ways[0]],
        )
        for way, found in by_way.items()
    ]


def verdicts(found: Mapping[str, Row]) -> list[Verdict]:
    """Return whether our own sender is as fast as rsync: encrypted next to encrypted, plain next to
    plain, each with its hashes."""
    pairs = (("ours, TLS", "rsync, ssh"), ("ours, plain", "rsync, plain"))
    return [
        Verdict(f"{ours} to {theirs}", f"<= {ALLOWED}", f"{ratio:.2f}", ratio <= ALLOWED)
        for ours, theirs in pairs
        if ours in found and theirs in found
        for ratio in [found[ours].wall / found[theirs].wall]
    ]
