"""The header of a safetensors file: name, type and shape of every tensor, without the weights.

The format: https://huggingface.co/docs/safetensors/index#format. Headers come from anywhere, so
nothing in them is believed that does not fit the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.errors import InvalidFile
from spark_cluster.models.tables import json_object

LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, little-endian."""
LONGEST_HEADER = 100_000_000
"""More than this the format does not allow, bytes."""
LARGEST_WEIGHTS = 10**15
"""Bytes; a header that says more says nothing."""
MOST_TENSORS = 2_000_000
MOST_DIMENSIONS = 16

BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "C64": 64,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
"""Types of the format (safetensors 0.6, `Dtype`) and the bits of an element."""


@dataclass(frozen=True)
class Tensor:
    """A tensor, or several that differ in the number of an expert only.

    Attributes:
        name: as in the file; with `*` for the number of an expert where `count` is above 1.
        dtype: as the header names it; one that is not known here counts by its bytes.
        size: bytes of one.
        count: how many.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    count: int = 1

    @property
    def elements(self) -> int:
        """Elements of one."""
        return math.prod(self.shape)


def header_length(first: bytes, where: str) -> int:
    """The length of a header by the first 8 bytes of its file.

    Raises:
        InvalidFile: it is none that a header can have.
    """
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if len(first) < LENGTH_BYTES or not 0 < length <= LONGEST_HEADER:
        raise _broken(f"its header would be {length} bytes long", where)
    return length


def tensors(header: bytes, where: str) -> list[Tensor]:
    """The tensors that a header lists.

    Args:
        header: the JSON text.
        where: the file, for messages.

    Raises:
        InvalidFile: it is no header, or tensors in it contradict each other: sizes that do not fit
            their shape, or places that overlap.
    """
    try:
        document = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise _broken(str(error), where) from error
    if not isinstance(document, dict):
        raise _broken("it should be a JSON object", where)
    if len(document) > MOST_TENSORS:
        raise _broken(f"it lists {len(document)} tensors", where)
    entries = [(n, entry) for n, entry in document.items() if n != "__metadata__"]
    found, places = [], []
    for name, entry in entries:
        tensor, place = _tensor(name, entry, where)
        found.append(tensor)
        places.append(place)
    _must_not_overlap(places, where)
    return found


def _tensor(name: str, entry: Any, where: str) -> tuple[Tensor, tuple[int, int]]:
    if not isinstance(entry, dict):
        raise _broken(f"{name[:100]!r} has no description", where)
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    numbers = _whole(offsets)
    if numbers is None or len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1] <= LARGEST_WEIGHTS:
        raise _broken(f"{name[:100]!r} has no place in the file", where)
    sides = _whole(shape if shape is not None else [numbers[1] - numbers[0]])
    if sides is None or len(sides) > MOST_DIMENSIONS or any(side < 0 for side in sides):
        raise _broken(f"{name[:100]!r} has no shape", where)
    size, bits = numbers[1] - numbers[0], BITS.get(str(dtype))
    if bits is not None and shape is not None and math.prod(sides) * bits != size * 8:
        raise _broken(f"{name[:100]!r} is {size} bytes long, which does not fit its shape", where)
    begin, end = numbers
    return Tensor(name, str(dtype)[:20], tuple(sides), size), (begin, end)


def _whole(value: Any) -> list[int] | None:
    """A list of whole numbers; None for anything else."""
    if not isinstance(value, list):
        return None
    whole = all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    return value if whole else None


def _must_not_overlap(places: list[tuple[int, int]], where: str) -> None:
    last = 0
    for begin, end in sorted(place for place in places if place[0] < place[1]):
        if begin < last:
            raise _broken("two tensors lie in the same place", where)
        last = end


def folded(found: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors with those together that differ in the number of an expert only: a model with
    many experts has hundreds of thousands.
    """
    together: dict[tuple[str, str, tuple[int, ...], int], int] = {}
    for tensor in found:
        key = (_without_expert(tensor.name), tensor.dtype, tensor.shape, tensor.size)
        together[key] = together.get(key, 0) + tensor.count
    for (name, dtype, shape, size), count in together.items():
        yield Tensor(name, dtype, shape, size, count)


def _without_expert(name: str) -> str:
    words = name.split(".")
    for place, word in enumerate(words[1:], start=1):
        if word.isdecimal() and "expert" in words[place - 1]:
            words[place] = "*"
    return ".".join(words)


def _broken(what: str, where: str) -> InvalidFile:
    return InvalidFile(
        f"has no safetensors header: {what}",
        where=where,
        hint="the file may be cut short, or a pointer of git-lfs; download it again",
    )


# Which files of a repository or folder hold the weights of a model.

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SUFFIX = ".safetensors"

MOST_FILES = 2000
"""The largest models have about 200."""


def weight_files(names: Iterable[str]) -> list[str]:
    """The files that hold the weights, where no index says it.

    Mistral's `consolidated` files hold them a second time, so they count only without others.
    """
    files = sorted(n for n in names if n.endswith(SUFFIX) and "/" not in n)
    if SINGLE in files:
        return [SINGLE]
    usual = [name for name in files if not name.startswith("consolidated")]
    return usual or files


def must_not_be_gguf(names: Iterable[str], where: str) -> None:
    """Check that the weights are not in GGUF alone: their size and types are not read here.

    Raises:
        InvalidFile: they are.
    """
    files = [name.lower() for name in names]
    others = (SUFFIX, INDEX, ".bin", ".pt", ".pth")
    if any(n.endswith(".gguf") for n in files) and not any(n.endswith(others) for n in files):
        raise InvalidFile(
            "has its weights in GGUF only, which is not planned",
            where=where,
            hint="name the same model in the safetensors format; vLLM reads GGUF only with its "
            "plugin vllm-gguf-plugin, and calls that highly experimental",  # source: vllm-gguf
        )


def indexed(text: bytes, where: str) -> list[str]:
    """The files that an index names.

    Raises:
        InvalidFile: it is not an index, or names files outside its folder.
    """
    mapping = json_object(text, where).get("weight_map")
    if not isinstance(mapping, dict):
        raise InvalidFile("is not a safetensors index: it lacks 'weight_map'", where=where)
    names = sorted({str(name) for name in mapping.values()})
    strange = [n for n in names if "/" in n or "\\" in n or not n.endswith(SUFFIX)]
    if strange or len(names) > MOST_FILES:
        found = repr(strange[0][:100]) if strange else f"{len(names)} files"
        raise InvalidFile(f"is not a safetensors index: it names {found}", where=where)
    return names
