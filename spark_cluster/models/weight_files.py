"""Which files of a repository or folder hold the weights of a model."""

from __future__ import annotations

from collections.abc import Iterable

from spark_cluster.errors import InvalidFile
from spark_cluster.models.json_object import json_object

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
