"""Tuned parameters of an engine's kernels beside its caches: what there is, and keeping more.

`tuned/IMAGE/MODEL-tpN` below the folder of the caches has the files as the tuner names them and the
engine looks for them, by experts, shape and GPU. Another build of the same version may compile
otherwise, so each image has its own.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from spark_cluster.node.beneath import Folder
from spark_cluster.node.engine_caches import short
from spark_cluster.node.values import ResourceError

FOLDER = "tuned"
"""Below the folder of the caches."""

VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"
"""By which vLLM finds the files, before those that it ships. Source: vllm/envs.py."""

_LARGEST = 1 << 20
_NAME = re.compile(r"[!-.0-~]{1,250}\.json")
_OF_A_MODEL = re.compile(r"([!-~]+)-tp([1-9][0-9]{0,3})")
_SIZE = re.compile(r"[0-9]{1,7}")


def folder_of(root: str, image: str, model: str, tp: int) -> str:
    """Return the folder of what is tuned for a model.

    Args:
        root: folder of the caches.
        image: its id, `sha256:...`.
        model: its name.
        tp: tensor-parallel size.
    """
    return f"{root}/{FOLDER}/{short(image)}/{quote(model, safe='')}-tp{tp}"


def check_name(text: object) -> None:
    """Raise ValueError unless a text is the name of a file with parameters, in whatever folder."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise ValueError(f"{str(text)[:100]!r} is not the name of a file of tuned kernels")


def read(root: Path) -> list[dict[str, Any]]:
    """Return each file of all images: `image` (its short id), `model`, `tp` and `file` (its name).

    Containers could write here once, so names of another form are left out.
    """
    files = Folder(root)
    return [
        {"image": image, "model": unquote(about[1]), "tp": int(about[2]), "file": name}
        for image in _names(files, FOLDER)
        for folder in _names(files, f"{FOLDER}/{image}")
        if (about := _OF_A_MODEL.fullmatch(folder))
        for name in _names(files, f"{FOLDER}/{image}/{folder}")
        if _NAME.fullmatch(name)
    ]


def _names(files: Folder, path: str) -> list[str]:
    """Return the names in a folder, sorted; none where it is not one."""
    with contextlib.suppress(OSError):
        return sorted(name for name, _ in files.entries(path) if not name.startswith("."))
    return []


def sizes(files: Folder, folder: Path) -> set[int]:
    """Return the batch sizes for which something is tuned in a model's folder."""
    found = set[int]()
    for name in _names(files, str(folder)):
        with contextlib.suppress(ResourceError):
            found |= sizes_in(_parameters(files, folder / name))
    return found


def sizes_in(parameters: dict[str, Any]) -> set[int]:
    """Return the batch sizes in a file: all its keys but the version of Triton."""
    return {int(key) for key in parameters if _SIZE.fullmatch(key)}


def keep(files: Folder, folder: Path, output: Path) -> None:
    """Add what the tuner wrote to the file of that name.

    Args:
        files: the folder of the caches.
        folder: the model's, below it.
        output: the folder that the tuner wrote into.

    Raises:
        ResourceError: the tuner, or someone else, wrote another thing than one file of parameters.
        OSError: it cannot be written.
    """
    names = [name for name in _names(files, str(output)) if _NAME.fullmatch(name)]
    if len(names) != 1:
        listed = ", ".join(names)[:300] or "nothing"
        raise ResourceError(f"the tuner ended well and wrote {listed}, expected one file .json")
    files.make(folder)
    before = _parameters(files, folder / names[0]) if names[0] in _names(files, str(folder)) else {}
    merged = {**before, **_parameters(files, output / names[0])}
    files.write(folder / names[0], (json.dumps(merged, indent=4) + "\n").encode())


def _parameters(files: Folder, path: Path) -> dict[str, Any]:
    """Return the object of JSON in a file that containers could write.

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
