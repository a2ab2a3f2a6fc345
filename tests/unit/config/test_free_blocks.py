"""Free memory in large blocks, by the kernel's page size and its largest order."""

from __future__ import annotations

import pytest

from spark_cluster.config.fact_gathering import FreeBlocks, free_blocks

GIB, MIB = 2**30, 2**20
SICK = (
    "Node 0, zone   Normal  81231  40211  20102   9021   3021    811    120     27      5      0"
    "      0\n"
)
ORDERS_OF_SPARKS = "Node 0, zone   Normal " + "    100" * 12 + "{:7}{:7}\n"
"""14 columns: orders up to 13, so that with pages of 4 KiB the last are of 16 and 32 MiB."""


@pytest.mark.parametrize(
    ("text", "page_size", "size", "large", "fragmented"),
    [
        (SICK, 4096, 4 * MIB, 0, True),
        (SICK[:-7] + "  20000\n", 4096, 4 * MIB, 20000 * 4 * MIB, False),
        (ORDERS_OF_SPARKS.format(27, 0), 4096, 16 * MIB, 27 * 16 * MIB, True),
        (ORDERS_OF_SPARKS.format(55, 0), 4096, 16 * MIB, 55 * 16 * MIB, True),
        (ORDERS_OF_SPARKS.format(1417, 782), 4096, 16 * MIB, (1417 * 16 + 782 * 32) * MIB, False),
        # Order 8 has 16 MiB with pages of 64 KiB.
        ("Node 0, zone DMA 9 9 9 9 9 9 9 9 3 0 1\n", 65536, 16 * MIB, (3 * 16 + 64) * MIB, True),
        ("Node 0, zone DMA 0 0\nNode 1, zone Normal 0 0 9\n", MIB, 4 * MIB, 36 * MIB, True),
    ],
)
def test_large_blocks_by_the_size_of_a_page(text, page_size, size, large, fragmented) -> None:
    """P06: no physically contiguous memory is left although gigabytes are free."""
    found = free_blocks(text, page_size)
    assert found is not None
    assert (found.size, found.large, found.fragmented) == (size, large, fragmented)


@pytest.mark.parametrize(
    "text", ["", "Node 0, zone", "Node 0, zone Normal x 1", f"Node 0, zone Normal {'9' * 400}"]
)
def test_what_has_no_zone_says_nothing(text: str) -> None:
    assert free_blocks(text, 4096) is None


def test_in_words() -> None:
    shown = str(FreeBlocks(3 * GIB, GIB // 2, 16 * MIB))
    assert shown == "0.5 of 3.0 GiB free memory in blocks of 16 MiB or more"
