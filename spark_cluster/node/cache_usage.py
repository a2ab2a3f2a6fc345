"""Usage of the engine's caches on this node, and the removal of what is chosen from it.

The entries are what can be removed by itself: a compiled configuration of vLLM, the kernels of a
version of FlashInfer, Triton's and Inductor's folders as wholes. Containers wrote all of it, so
names, links and sizes in there are not trusted: `beneath` follows no link.
"""

from __future__ import annotations

import os
import posixpath
import stat
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.node.beneath import Folder
from spark_cluster.node.engine_caches import IMAGES
from spark_cluster.node.tuned_kernels import FOLDER as TUNED

WALK_S = 20.0
"""Seconds that counting may take; what was not counted by then makes the sum a lower bound."""

MOST_FILES = 2_000_000
"""Files that are counted."""

MOST_ENTRIES = 2000
"""Entries of one kind that are listed."""

COMPILED_IN = "torch_compile_cache"
"""vLLM's folder of compiled configurations, one for each key."""

_FLASHINFER = "flashinfer/.cache/flashinfer"
_HEX = frozenset("0123456789abcdef")
_LEFTOVER = ".removing-"
_REMOVED_FROM = (
    "vllm",
    f"vllm/{COMPILED_IN}",
    f"vllm/{COMPILED_IN}/torch_aot_compile",
    "triton",
    "torchinductor",
    _FLASHINFER,
    "",
)


@dataclass(frozen=True)
class CacheEntry:
    """A part of the caches that can be removed by itself.

    Attributes:
        kind: compile, triton, inductor, flashinfer, vllm (its other files), downloads (of an
            engine itself), tuned or huggingface (models).
        path: below the folder of the caches.
        bytes: on the disk.
        files: how many.
        modified: when a file in it was last written, seconds since 1970 (UTC); of an empty folder
            when it was.
        whole: False when not all of it could be counted.
    """

    kind: str
    path: str
    bytes: int
    files: int
    modified: float
    whole: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as it is sent."""
        return dict(vars(self))


class Count:
    """A count of files that ends at its limits, shared by all folders of one question."""

    def __init__(self) -> None:
        self._until = time.monotonic() + WALK_S
        self._left = MOST_FILES

    def entry(self, kind: str, root: Path, path: str) -> CacheEntry:
        """Count one folder or file below `root`."""
        size = files = 0
        modified, whole = 0.0, True
        for found in _found(Folder(root), path, self._left):
            self._left -= 1
            if found is None or self._left < 0 or time.monotonic() > self._until:
                whole = False
                break
            size += found.st_blocks * 512
            files += 1
            modified = max(modified, found.st_mtime)
        return CacheEntry(kind, path, size, files, modified or _modified(root, path), whole)


def places(root: Path) -> list[tuple[str, str]]:
    """Return kind and path of every entry below the folder of the caches.

    Those of an image are below `images/ID`; what all images shared before is next to that.
    """
    found = []
    for above in _owners(root):
        found += [(kind, f"{above}{path}") for kind, path in _of_an_image(root / above)]
    models = [("huggingface", "huggingface")] if _is_folder(root, "huggingface") else []
    tuned = (("tuned", f"{TUNED}/{name}") for name in _names(root, TUNED) if name[0] != ".")
    return [*found, *models, *tuned]


def _owners(root: Path) -> list[str]:
    """Return what stands before the paths of each image's caches; nothing before shared ones."""
    return ["", *(f"{IMAGES}/{name}/" for name in _names(root, IMAGES))]


def _of_an_image(root: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and path of what is in the folder that programs of one image see."""
    yield from _compiled(root)
    yield from (("vllm", f"vllm/{name}") for name in _names(root, "vllm") if name != COMPILED_IN)
    single = [("triton", "triton"), ("inductor", "torchinductor")]
    if root.parent.name == IMAGES:
        single.append(("downloads", "huggingface"))
    yield from ((kind, name) for kind, name in single if _is_folder(root, name))
    yield from _flashinfer(root)


def usage(root: Path) -> list[CacheEntry]:
    """Return every entry with its size."""
    count = Count()
    return [count.entry(kind, root, path) for kind, path in places(root)]


def compiled_keys(root: Path) -> dict[str, list[str]]:
    """Return the compiled configurations by the folder of their image (engine_caches.py).

    They are named as records name them (`KEY` or `torch_aot_compile/KEY`); only those in which a
    rank has left something.
    """
    prefix = f"vllm/{COMPILED_IN}/"
    return {
        name: [path.removeprefix(prefix) for _, path in _compiled(at) if _has_rank(at, path)]
        for name in _names(root, IMAGES)
        for at in [root / IMAGES / name]
    }


def remove(root: Path, chosen: Collection[str]) -> list[str]:
    """Remove entries; what is none of them is left alone. Also what a cut left of an earlier one.

    A whole folder that the containers expect (Triton's, Inductor's) is left there, empty.

    Returns:
        What was removed.

    Raises:
        OSError: a file cannot be removed.
    """
    files, removed = Folder(root), []
    for kind, path in places(root):
        if path not in chosen or kind == "huggingface":
            continue
        keep = kind in ("triton", "inductor")
        for part in [f"{path}/{name}" for name in _names(root, path)] if keep else [path]:
            _remove(files, part)
        removed.append(path)
    for folder in (TUNED, *(f"{above}{name}" for above in _owners(root) for name in _REMOVED_FROM)):
        for name in _all_names(root, folder):
            if name.startswith(_LEFTOVER):
                files.remove(f"{folder}/{name}")
    return removed


def _remove(files: Folder, path: str) -> None:
    """Give it another name first: what is half removed must not be taken for a cache."""
    aside = posixpath.join(posixpath.dirname(path), f"{_LEFTOVER}{uuid.uuid4().hex[:12]}")
    files.rename(path, aside)
    files.remove(aside)


def _compiled(root: Path) -> Iterator[tuple[str, str]]:
    for folder in (f"vllm/{COMPILED_IN}", f"vllm/{COMPILED_IN}/torch_aot_compile"):
        for name in _names(root, folder):
            if len(name) in (10, 64) and set(name) <= _HEX:
                yield "compile", f"{folder}/{name}"


def _flashinfer(root: Path) -> Iterator[tuple[str, str]]:
    """Yield a folder for each version, in which there is one for each set of architectures.

    Source: flashinfer/jit/env.py, `_get_workspace_dir_name`.
    """
    for version in _names(root, _FLASHINFER):
        if _is_folder(root, f"{_FLASHINFER}/{version}"):
            yield "flashinfer", f"{_FLASHINFER}/{version}"


def _has_rank(root: Path, path: str) -> bool:
    return any(n.startswith("rank_") and _names(root, f"{path}/{n}") for n in _names(root, path))


def _names(root: Path, path: str) -> list[str]:
    return [name for name in _all_names(root, path) if not name.startswith(_LEFTOVER)]


def _all_names(root: Path, path: str) -> list[str]:
    """Return the names in a folder that is reached without a link; as many as are listed."""
    try:
        return sorted(name for name, _ in Folder(root).entries(path))[:MOST_ENTRIES]
    except OSError:
        return []


def _is_folder(root: Path, path: str) -> bool:
    """Return True for a folder, none of whose parents below `root` is a link."""
    try:
        with Folder(root).at(path):
            return True
    except OSError:
        return False


def _modified(root: Path, path: str) -> float:
    try:
        return Folder(root).stat(path).st_mtime
    except OSError:
        return 0.0


def _found(files: Folder, path: str, most: int) -> Iterator[os.stat_result | None]:
    """Yield the files at or below a path; None where not all of it can be counted."""
    try:
        about = files.stat(path)
        if not stat.S_ISDIR(about.st_mode):
            yield from [about] if stat.S_ISREG(about.st_mode) else []
            return
        for entry in files.walk(path, most):
            if stat.S_ISREG(entry.about.st_mode):
                yield entry.about
            elif stat.S_ISDIR(entry.about.st_mode):
                yield None  # too deep
    except OSError:
        yield None
