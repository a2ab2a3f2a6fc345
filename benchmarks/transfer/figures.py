"""What a copy took, and whether the figures are those that are wanted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHARE = 0.9
"""Of the sum of both links."""
TO_RSYNC = 1.7
"""Times one `rsync -a` over ssh."""
NOTHING_S = 1.0
"""Seconds for 200 files of which none is lacking."""


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
    to_ours: float


@dataclass(frozen=True)
class Verdict:
    """A figure next to what is wanted of it."""

    name: str
    wanted: str
    seen: str
    met: bool


def rows(copies: Sequence[Copy], ways: Sequence[str], ours: str, links_gbit: float) -> list[Row]:
    """Return the medians.

    Args:
        links_gbit: both links together, Gbit/s.
    """
    by_way = {way: [copy for copy in copies if copy.way == way] for way in ways}
    walls = {way: statistics.median(c.wall for c in found) for way, found in by_way.items()}
    return [
        Row(
            way,
            walls[way],
            found[0].size * 8 / 1e9 / walls[way] / links_gbit,
            statistics.median(c.cpu for c in found) / (found[0].size / 1e9),
            walls[way] / walls[ours],
        )
        for way, found in by_way.items()
    ]


def verdicts(
    found: Mapping[str, Row], ours: str, rsync: str, peers: Sequence[str], nothing_s: float
) -> list[Verdict]:
    """Return the figures of the issue's kind: shares and ratios, never seconds but the last."""
    share, ratio = found[ours].share, found[rsync].to_ours
    slowest = min(found[peer].to_ours for peer in peers)
    return [
        Verdict("share of both links", f">= {SHARE:.0%}", f"{share:.0%}", share >= SHARE),
        Verdict("one rsync to ours", f">= {TO_RSYNC}", f"{ratio:.2f}", ratio >= TO_RSYNC),
        Verdict("other tools' way to ours", "> 1", f"{slowest:.2f}", slowest > 1),
        Verdict(
            "200 files, none lacking", f"< {NOTHING_S:g} s", f"{nothing_s:.2f} s",
            nothing_s < NOTHING_S,
        ),
    ]  # fmt: skip
