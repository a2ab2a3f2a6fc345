"""A model's checkpoint in a folder of this machine, or in the hub's own cache there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spark_cluster.errors import InvalidFile
from spark_cluster.models.checkpoint import QUANTIZATION_FILES, Checkpoint
from spark_cluster.models.json_object import json_object
from spark_cluster.models.quantization import with_quantization
from spark_cluster.models.safetensors_header import (
    INDEX,
    LENGTH_BYTES,
    Tensor,
    folded,
    header_length,
    indexed,
    must_not_be_gguf,
    tensors,
    weight_files,
)


def read_folder(folder: Path) -> Checkpoint:
    """Read what a folder tells of its model; of weights that cannot be read, why.

    Raises:
        InvalidFile: its config.json cannot be read, or its weights are in GGUF only.
    """
    config = _read(folder / "config.json")
    must_not_be_gguf((path.name for path in folder.iterdir()), str(folder))
    for name in QUANTIZATION_FILES:
        if (folder / name).is_file():
            config = with_quantization(config, name, _read(folder / name))
    beside = folder / "generation_config.json"
    generation = _read(beside) if beside.is_file() else {}
    found, problem = None, ""
    try:
        found = stored_tensors(folder)
    except InvalidFile as error:  # a pointer of git-lfs, say; the shape is known all the same
        problem = str(error)
    tensors = tuple(found) if found is not None else None
    return Checkpoint(config, generation, tensors, problem=problem)


def own_folder(name: str, folders: Iterable[Path] = ()) -> Path | None:
    """A folder of that name with a config.json, as given or below one of `folders`."""
    for parent in (Path(), *folders):
        folder = parent / Path(name).expanduser()
        if (folder / "config.json").is_file():
            return folder
    return None


def hub_cache() -> Path:
    """Return where the hub's library keeps its downloads, by its own variables."""
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given)
    home = os.environ.get("HF_HOME") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface"
    )
    return Path(home) / "hub"


def looks_like_path(text: str) -> bool:
    """Return whether a name can only be meant as a folder."""
    return text.startswith(("/", "./", "../", "~")) or text in (".", "..")


def snapshot(name: str, cache_dir: Path) -> Path | None:
    """The newest snapshot in the hub's cache; that of `main` first."""
    if name.count("/") != 1 or looks_like_path(name):
        return None
    repository = cache_dir / f"models--{name.replace('/', '--')}"
    main = repository / "refs" / "main"
    snapshots = sorted(
        (repository / "snapshots").glob("*/config.json"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    if main.is_file():
        first = repository / "snapshots" / main.read_text().strip() / "config.json"
        snapshots = [first, *snapshots] if first.is_file() else snapshots
    return snapshots[0].parent if snapshots else None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidFile(f"cannot be read: {error.strerror}", where=str(path)) from error
    return json_object(text, str(path))


# The tensors of a model in a folder of this machine, without reading its weights.


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
