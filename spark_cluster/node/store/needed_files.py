"""Which files of a repository an engine needs: each weight in one format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

OTHER_FORMATS = (
    *(".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx", ".onnx_data", ".ot"),
    *(".tflite", ".mlmodel", ".ckpt"),
)
"""Endings of files that hold the weights again where a repository has safetensors."""
OTHER_FOLDERS = ("original", "onnx", "openvino", "coreml", "metal")
"""Folders at the top of a repository with the weights in another format, with their own indexes."""
OTHER_INDEXES = (".bin.index.json", ".msgpack.index.json", ".h5.index.json")


def needed(paths: Iterable[str]) -> list[str]:
    """Return the files to fetch, in the order given.

    Where safetensors are at the top of the repository, the same weights in other formats are left
    out, with the folders that hold such. Configuration, tokenizers, code and indexes are kept. A
    repository without safetensors is taken whole.
    """
    known = list(paths)
    if not any(path.endswith(".safetensors") and "/" not in path for path in known):
        return known
    return [path for path in known if not _again(path)]


def _again(path: str) -> bool:
    """Return whether a file holds weights that the safetensors hold."""
    parts, name = PurePosixPath(path).parts, path.lower()
    if len(parts) > 1 and parts[0].lower() in OTHER_FOLDERS:
        return True
    return name.endswith((*OTHER_FORMATS, *OTHER_INDEXES))
