"""Free memory in large blocks, by the kernel's page size and its largest order."""

from __future__ import annotations

import pytest
from cases import each_row

from spark_cluster.config.fact_gathering import FreeBlocks, free_blocks

GIB, MIB = 2**30, 2**20


@each_row(__file__, "free_blocks.toml", "large_blocks_by_the_size_of_a_page")
def test_large_blocks_by_the_size_of_a_page(text, page_size, size, large, fragmented) -> None:
    """P06: no physically contiguous memory is left although gigabytes are free."""
    found = free_blocks(text, page_size)
    assert found is not None
    assert (found.size, found.large, found.fragmented) == (size * MIB, large * MIB, fragmented)


@pytest.mark.parametrize(
    "text", ["", "Node 0, zone", "Node 0, zone Normal x 1", f"Node 0, zone Normal {'9' * 400}"]
)
def test_what_has_no_zone_says_nothing(text: str) -> None:
    assert free_blocks(text, 4096) is None


def test_in_words() -> None:
    shown = str(FreeBlocks(3 * GIB, GIB // 2, 16 * MIB))
    assert shown == "0.5 of 3.0 GiB free memory in blocks of 16 MiB or more"
