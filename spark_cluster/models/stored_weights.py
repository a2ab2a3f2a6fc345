"""The tensors of a model in a folder of this machine, without reading its weights."""

from __future__ import annotations

from pathlib import Path

from spark_cluster.errors import InvalidFile
from spark_cluster.models.safetensors_header import (
    LENGTH_BYTES,
    Tensor,
    folded,
    header_length,
    tensors,
    total_bytes,
)
from spark_cluster.models.weight_files import INDEX, indexed, total_size, weight_files


def weights_bytes(folder: Path) -> int | None:
    """Bytes of all tensors of a model, None when the folder has no safetensors.

    From the index when there is one and it says it, else from the headers of the files.

    Raises:
        InvalidFile: the index or a header cannot be read.
    """
    index = folder / INDEX
    if index.is_file() and (total := total_size(_text(index), str(index))):
        return total
    files = sorted(folder.glob("*.safetensors"))
    return sum(total_bytes(_tensors(path)) for path in files) if files else None


def stored_tensors(folder: Path) -> list[Tensor] | None:
    """The tensors of a model, experts together; None when not all of its files are here.

    Raises:
        InvalidFile: the index or a header cannot be read.
    """
    index = folder / INDEX
    if index.is_file():
        names = indexed(_text(index), str(index))
    else:
        names = weight_files(path.name for path in folder.glob("*.safetensors"))
    files = [folder / name for name in names]
    if not files or not all(path.is_file() for path in files):
        return None
    return list(folded(tensor for path in files for tensor in _tensors(path)))


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidFile(f"cannot be read: {error}", where=str(path)) from error


def _tensors(path: Path) -> list[Tensor]:
    try:
        with path.open("rb") as file:
            length = header_length(file.read(LENGTH_BYTES), str(path))
            return tensors(file.read(length), str(path))
    except OSError as error:
        raise InvalidFile(f"cannot be read: {error}", where=str(path)) from error
