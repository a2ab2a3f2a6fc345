"""Tuned parameters of an engine's kernels beside its caches: what there is, and keeping more.

A folder for each image (another build of the same version may compile otherwise), in it the files
as the engine looks for them, and `index.json`: for which model, size and GPU each of them is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_cluster.node.durable import make_folder, write_file
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
    return f"{root}/{FOLDER}/{image.removeprefix('sha256:')[:12]}"


def read(root: Path) -> list[dict[str, Any]]:
    """Return the entries of all images whose file is there, each with its image's short id."""
    found = []
    folder = root / FOLDER
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        for entry in _entries(place):
            if (place / str(entry["file"])).is_file():
                found.append({**entry, "image": place.name})
    return found


def parameters(path: Path) -> dict[str, Any]:
    """Return the parameters by batch size of a file that a tuner wrote.

    Raises:
        ResourceError: it is not what the engine would read.
    """
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST:
            raise ResourceError(f"{path.name} is not what a tuner writes")
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
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


def keep(folder: Path, entry: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Add parameters to those of a file, and its entry to the index.

    Args:
        entry: of the index, without `sizes`.

    Returns:
        The entry as it is kept.

    Raises:
        ResourceError: the file that is there is not what a tuner writes.
        OSError: it cannot be written.
    """
    make_folder(folder, 0o755)
    path = folder / str(entry["file"])
    whole = {**(parameters(path) if path.exists() else {}), **made}
    sizes = sorted(int(size) for size in whole if size != "triton_version")
    ordered = {str(size): whole[str(size)] for size in sizes}
    version = {"triton_version": whole["triton_version"]} if "triton_version" in whole else {}
    write_file(path, (json.dumps({**version, **ordered}, indent=4) + "\n").encode(), 0o644)
    new = {**entry, "sizes": sizes}
    same = ("model", "tp", "gpu", "file")
    others = [e for e in _entries(folder) if any(e[key] != new[key] for key in same)]
    document = json.dumps({"entries": [*others, new]}, indent=1)
    write_file(folder / INDEX, document.encode(), 0o644)
    return new


def _entries(folder: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads((folder / INDEX).read_text())
    except (OSError, ValueError):
        return []
    entries = document.get("entries") if isinstance(document, dict) else None
    return [e for e in entries or () if isinstance(e, dict) and e.keys() >= set(ENTRY)]
