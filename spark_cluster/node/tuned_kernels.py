"""Tuned parameters of an engine's kernels beside its caches: what there is, and keeping more.

A folder for each image (another build of the same version may compile otherwise), in it the files
as the engine looks for them, and `index.json`: for which model, size and GPU each of them is.
"""

from __future__ import annotations

import contextlib
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_cluster.node.beneath import Folder
from spark_cluster.node.engine_caches import short
from spark_cluster.node.values import ResourceError

FOLDER = "tuned"
"""Below the folder of the caches."""

VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"
"""By which vLLM finds the files, before those that it ships. Source: vllm/envs.py."""

INDEX = "index.json"
ENTRY = ("model", "tp", "gpu", "file", "sizes", "engine", "at")
_LARGEST = 1 << 20
_KEYS = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"}


def folder_of(root: str, image: str) -> str:
    """Return the folder of an image's files.

    Args:
        root: folder of the caches.
        image: its id, `sha256:...`.
    """
    return f"{root}/{FOLDER}/{short(image)}"


def read(root: Path) -> list[dict[str, Any]]:
    """Return the entries of all images whose file is there, each with its image's short id."""
    files, found = Folder(root), list[dict[str, Any]]()
    with contextlib.suppress(OSError):
        for image, about in sorted(files.entries(FOLDER), key=lambda entry: entry[0]):
            if stat.S_ISDIR(about.st_mode):
                place = root / FOLDER / image
                entries = _entries(files, place)
                found += [{**e, "image": image} for e in entries if _is_file(files, place, e)]
    return found


def _is_file(files: Folder, place: Path, entry: Mapping[str, Any]) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(files.stat(place / entry["file"]).st_mode)
    return False


def parameters(files: Folder, path: Path) -> dict[str, Any]:
    """Return the parameters by batch size of a file that a tuner wrote.

    Raises:
        ResourceError: it is not what the engine would read.
    """
    try:
        text = files.read(path, _LARGEST + 1)
        if len(text) > _LARGEST:
            raise ResourceError(f"{path.name} is not what a tuner writes: it is too large")
        document = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ResourceError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise ResourceError(f"{path.name} is no object of JSON")
    for size, one in document.items():
        if size == "triton_version":
            continue
        if not (size.isascii() and size.isdigit() and isinstance(one, dict)):
            raise ResourceError(f"{path.name}: {size!r} is no batch size with its parameters")
        if not (one.keys() >= _KEYS and all(isinstance(value, int) for value in one.values())):
            raise ResourceError(f"{path.name}: the parameters of batch size {size} are not whole")
    return document


def keep(
    files: Folder, folder: Path, entry: Mapping[str, Any], made: Mapping[str, Any]
) -> dict[str, Any]:
    """Add parameters to those of a file, and its entry to the index.

    Args:
        files: the folder of the caches.
        folder: the image's, below it.
        entry: of the index, without `sizes`.

    Returns:
        The entry as it is kept.

    Raises:
        ResourceError: the file that is there is not what a tuner writes.
        OSError: it cannot be written.
    """
    files.make(folder)
    path = folder / str(entry["file"])
    whole = {**(parameters(files, path) if _is_file(files, folder, entry) else {}), **made}
    sizes = sorted(int(size) for size in whole if size != "triton_version")
    ordered = {str(size): whole[str(size)] for size in sizes}
    version = {"triton_version": whole["triton_version"]} if "triton_version" in whole else {}
    files.write(path, (json.dumps({**version, **ordered}, indent=4) + "\n").encode())
    new = {**entry, "sizes": sizes}
    same = ("model", "tp", "gpu", "file")
    others = [e for e in _entries(files, folder) if any(e[key] != new[key] for key in same)]
    document = json.dumps({"entries": [*others, new]}, indent=1)
    files.write(folder / INDEX, document.encode())
    return new


def _entries(files: Folder, folder: Path) -> list[dict[str, Any]]:
    """Return the entries of an index that have the form of one: containers can write it."""
    try:
        document = json.loads(files.read(folder / INDEX, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return []
    entries = document.get("entries") if isinstance(document, dict) else None
    return [e for e in entries or () if _is_entry(e)] if isinstance(entries, list) else []


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not entry.keys() >= set(ENTRY):
        return False
    file, sizes = entry["file"], entry["sizes"]
    named = isinstance(file, str) and "/" not in file and file.endswith(".json")
    return named and isinstance(sizes, list) and all(type(size) is int for size in sizes)
