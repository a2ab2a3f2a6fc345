"""Tuned parameters of an engine's kernels beside its caches: what there is, and keeping more.

A folder for each image (another build of the same version may compile otherwise), in it the files
as the tuner names them and the engine looks for them, and `index.json`: for which model, size and
GPU each of them is.
"""

from __future__ import annotations

import contextlib
import json
import re
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
ENTRY: Mapping[str, type] = {"model": str, "tp": int, "gpu": str, "file": str, "sizes": list}
_LARGEST = 1 << 20
_SIZE = re.compile(r"[0-9]{1,7}")


def folder_of(root: str, image: str) -> str:
    """Return the folder of an image's files.

    Args:
        root: folder of the caches.
        image: its id, `sha256:...`.
    """
    return f"{root}/{FOLDER}/{short(image)}"


def read(root: Path) -> list[dict[str, Any]]:
    """Return the entries of all images whose file is there, each with its image's short id.

    Of an image the entry that was tuned last is the last one.
    """
    files, found = Folder(root), list[dict[str, Any]]()
    with contextlib.suppress(OSError):
        for image, about in sorted(files.entries(FOLDER), key=lambda entry: entry[0]):
            if stat.S_ISDIR(about.st_mode):
                place = root / FOLDER / image
                entries = _entries(files, place)
                found += [{**e, "image": image} for e in entries if _is_file(files, place, e)]
    return found


def sizes_of(request: Mapping[str, Any]) -> set[int]:
    """Return the batch sizes that are tuned for a model, its size, a GPU and an image.

    Args:
        request: `root`, `image` (its id) and `entry` (model, tp, gpu).
    """
    wanted = {**request["entry"], "image": short(str(request["image"]))}
    entries = read(Path(request["root"]))
    return {size for one in entries if wanted.items() <= one.items() for size in one["sizes"]}


def keep(files: Folder, folder: Path, entry: Mapping[str, Any], output: Path) -> None:
    """Add what the tuner wrote to the file of that name, and its entry to the index.

    Args:
        files: the folder of the caches.
        folder: the image's, below it.
        entry: model, tp and gpu.
        output: the folder that the tuner wrote into.

    Raises:
        ResourceError: the tuner, or someone else, wrote another thing than one file of parameters.
        OSError: it cannot be written.
    """
    names = sorted(name for name, _ in files.entries(output) if name.endswith(".json"))
    if len(names) != 1:
        listed = ", ".join(names)[:300] or "nothing"
        raise ResourceError(f"the tuner ended well and wrote {listed}, expected one file .json")
    new = {**entry, "file": names[0]}
    files.make(folder)
    before = _parameters(files, folder / names[0]) if _is_file(files, folder, new) else {}
    merged = {**before, **_parameters(files, output / names[0])}
    files.write(folder / names[0], (json.dumps(merged, indent=4) + "\n").encode())
    sizes = sorted(int(size) for size in merged if _SIZE.fullmatch(size))
    others = [e for e in _entries(files, folder) if any(e[key] != new[key] for key in new)]
    document = json.dumps({"entries": [*others, {**new, "sizes": sizes}]}, indent=1)
    files.write(folder / INDEX, document.encode())


def _parameters(files: Folder, path: Path) -> dict[str, Any]:
    """Return the object of JSON in a file that containers can write.

    Raises:
        ResourceError: it is not one.
    """
    try:
        found = json.loads(files.read(path, _LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise ResourceError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ResourceError(f"{path.name} is not an object of JSON")
    return found


def _is_file(files: Folder, place: Path, entry: Mapping[str, Any]) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(files.stat(place / entry["file"]).st_mode)
    return False


def _entries(files: Folder, folder: Path) -> list[dict[str, Any]]:
    """Return the entries of an index that have the form of one: containers can write it."""
    try:
        document = json.loads(files.read(folder / INDEX, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return []
    entries = document.get("entries") if isinstance(document, dict) else None
    return [e for e in entries or () if _is_entry(e)] if isinstance(entries, list) else []


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    right = all(type(entry.get(name)) is kind for name, kind in ENTRY.items())
    named = right and "/" not in entry["file"] and entry["file"].endswith(".json")
    return named and all(type(size) is int for size in entry["sizes"])
