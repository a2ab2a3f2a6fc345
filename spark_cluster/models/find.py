"""The search for a model's config: a folder, the hub's cache on this machine, our table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spark_cluster.config.suggest import did_you_mean
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.config import from_config
from spark_cluster.models.shape import Geometry
from spark_cluster.models.tables import table


def find(
    name: str | Path, *folders: Path, cache_dir: Path | None = None, base: str | None = None
) -> Geometry:
    """The geometry of a model by its name or folder. Nothing is asked over a network.

    Looked for in this order: a folder of that name (as given, then below each of `folders`), the
    hub's cache, the table that is shipped, and the same for `base`.

    Args:
        name: repository on the hub (`google/gemma-4-31B-it`), or a folder with a config.json.
        folders: where relative names are looked for too (the project's folder).
        cache_dir: the hub's cache; by default as HF_HUB_CACHE or HF_HOME say.
        base: the model that it is a build of, when its own name is not known.

    Raises:
        UsageError: it is nowhere; a name that is near is suggested.
        InvalidFile: its config.json cannot be read or lacks a key.
    """
    text = str(name)
    for candidate in (text, base):
        if candidate is None:
            continue
        config = _config(candidate, folders, cache_dir or hub_cache())
        if config is not None:
            return from_config(config, text)
    if looks_like_path(text):
        raise UsageError(
            f"there is no folder with a config.json at {text}",
            hint="give the folder that holds the model's config.json, or its name on the hub",
        )
    raise UsageError(
        f"the shape of the model {text!r} is not known here",
        hint=f"{did_you_mean(text, known_models())}\n  or give the folder with its config.json "
        "(models in the hub's cache are found automatically)",
    )


def known_models() -> list[str]:
    """Names that the shipped table has, aliases too."""
    return sorted(name for entry in _table() for name in (entry["name"], *entry.get("aliases", ())))


def model_folder(
    name: str, folders: Iterable[Path] = (), cache_dir: Path | None = None
) -> Path | None:
    """The folder of this machine that holds the model's config.json (and maybe its weights)."""
    for parent in (Path(), *folders):
        folder = parent / Path(name).expanduser()
        if (folder / "config.json").is_file():
            return folder
    return _snapshot(name, cache_dir or hub_cache())


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


def _config(name: str, folders: Iterable[Path], cache_dir: Path) -> Mapping[str, Any] | None:
    folder = model_folder(name, folders, cache_dir)
    if folder is not None:
        return _read(folder / "config.json")
    return next((entry["config"] for entry in _table() if _is_named(entry, name)), None)


def _is_named(entry: Mapping[str, Any], name: str) -> bool:
    wanted = name.casefold()
    return any(wanted == known.casefold() for known in (entry["name"], *entry.get("aliases", ())))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidFile(f"is not JSON: {error}", where=str(path)) from error
    if not isinstance(config, dict):
        raise InvalidFile("should be a JSON object", where=str(path))
    return config


def _snapshot(name: str, cache_dir: Path) -> Path | None:
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


def _table() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = table("shapes")["models"]
    return entries
