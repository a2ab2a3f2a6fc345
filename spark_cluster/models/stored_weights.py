"""The size of a model's weights, without reading them."""

from __future__ import annotations

import json
from pathlib import Path

from spark_cluster.errors import InvalidFile

INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, little-endian."""
LARGEST_WEIGHTS = 10**15
"""Bytes; an index that says more says nothing."""
LONGEST_HEADER = 100_000_000
"""More than this the format does not allow, bytes."""


def weights_bytes(folder: Path) -> int | None:
    """Bytes of all tensors of a model, None when the folder has no safetensors.

    From the index when there is one and it says it, else from the headers of the files.

    Raises:
        InvalidFile: the index or a header cannot be read.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            document = json.loads(index.read_text())
            total = document.get("metadata", {}).get("total_size")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise InvalidFile(f"is not a safetensors index: {error}", where=str(index)) from error
        if isinstance(total, int | float) and 0 < total <= LARGEST_WEIGHTS:
            return int(total)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    return sum(_tensors(path) for path in files)


def _tensors(path: Path) -> int:
    """Bytes of the tensors that a file's header lists."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if not 0 < length <= LONGEST_HEADER:
                raise ValueError(f"its header would be {length} bytes long")
            header = json.loads(file.read(length))
        ends = [
            int(entry["data_offsets"][1])
            for name, entry in header.items()
            if name != "__metadata__"
        ]
        return min(max(ends, default=0), LARGEST_WEIGHTS)
    except (
        *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
        *(OverflowError, RecursionError),
    ) as error:
        raise InvalidFile(
            f"has no safetensors header: {error}",
            where=str(path),
            hint="the file may be cut short, or a pointer of git-lfs; download it again",
        ) from error
