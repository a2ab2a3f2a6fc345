"""Free memory in large blocks, by /proc/buddyinfo, and the limits of a node that is to load."""

from __future__ import annotations

import re
from dataclasses import dataclass

BLOCK = 16 * 2**20
"""Bytes of a large block; a kernel that keeps none of this size is judged by its largest."""

LEAST = 2 * 2**30
"""Bytes in large blocks, below which a load is at risk. Sparks whose loads crawled had 0.1 to 0.9
GiB of 118, 47 after a reboot (source: sparkring-173)."""

HIGH_PRESSURE = 10.0
"""Percent of the last 10 s in which every program waited for memory (PSI, full avg10): a node that
is about to load shows 0, and systemd-oomd ends programs from 60 (source: oomd-conf)."""

_ZONE = re.compile(r"^Node +\d+, +zone +\S+((?: +\d{1,15})+) *$", re.MULTILINE)


@dataclass(frozen=True)
class FreeBlocks:
    """The free memory of a node, bytes.

    Attributes:
        free: all of it.
        large: what is in blocks of `size` and more.
        size: of a large block.
    """

    free: int
    large: int
    size: int

    @property
    def fragmented(self) -> bool:
        """Whether large blocks are so few that a load is at risk."""
        return self.large < LEAST

    def __str__(self) -> str:
        return (
            f"{self.large / 2**30:.1f} of {self.free / 2**30:.1f} GiB free memory in blocks of "
            f"{self.size / 2**20:g} MiB or more"
        )


def free_blocks(text: str, page_size: int) -> FreeBlocks | None:
    """Read /proc/buddyinfo: column N counts free blocks of `page_size * 2**N` bytes.

    Args:
        page_size: of the node's kernel, bytes: 4096, or 65536 of an arm64 kernel with 64k pages.

    Returns:
        None where the text has no zone.

    >>> free_blocks("Node 0, zone   Normal      2      0      1", 8 * 2**20)
    FreeBlocks(free=50331648, large=33554432, size=16777216)
    """
    zones = [[int(word) for word in found[1].split()] for found in _ZONE.finditer(text)]
    if not zones:
        return None
    orders = max(map(len, zones))
    sizes = [page_size << order for order in range(orders)]
    size = next((one for one in sizes if one >= BLOCK), sizes[-1])
    pairs = [pair for zone in zones for pair in zip(zone, sizes, strict=False)]
    free = sum(count * one for count, one in pairs)
    return FreeBlocks(free, sum(count * one for count, one in pairs if one >= size), size)
