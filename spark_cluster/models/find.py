"""The search for a model's shape: a folder, the hub and what is kept of it, our table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_cluster.config.suggest import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.models.checkpoint import Checkpoint
from spark_cluster.models.hub.documents import HubError, is_repository
from spark_cluster.models.hub.lookup import Hub, cached
from spark_cluster.models.local import (
    hub_cache,
    looks_like_path,
    own_folder,
    read_folder,
    snapshot,
)
from spark_cluster.models.naming import of_build
from spark_cluster.models.shape import Geometry
from spark_cluster.models.tables import table


def find(
    name: str | Path,
    *folders: Path,
    cache_dir: Path | None = None,
    base: str | None = None,
    hub: Hub | None = None,
    revision: str = "main",
) -> Geometry:
    """The geometry of a model by its name or folder.

    Looked for in this order: a folder of that name (as given, then below each of `folders`), a
    whole download in the hub's cache, what `hub` has, a download without weights, the table that
    is shipped; and the same for `base`, of which only the shape is taken.

    Args:
        name: repository on the hub (`google/gemma-4-31B-it`), or a folder with a config.json.
        folders: where relative names are looked for too (the project's folder).
        cache_dir: the hub's cache; by default as HF_HUB_CACHE or HF_HOME say.
        base: the model that it is a build of, when its own name is not known.
        hub: what may be asked; by default only what was read from it before, so that nothing goes
            over a network.
        revision: of the model, on the hub.

    Raises:
        UsageError: it is nowhere; a name that is near is suggested, and what the hub said.
        InvalidFile: its config.json cannot be read or lacks a key.
    """
    text, asked = str(name), hub or cached()
    problem: HubError | None = None
    for candidate in (text, base):
        if candidate is None:
            continue
        try:
            at = revision if candidate == text else "main"
            found = _checkpoint(candidate, folders, cache_dir or hub_cache(), asked, at)
        except HubError as error:
            problem = problem or error
            continue
        if found is not None:
            shape = found.geometry(text)
            if candidate == text:
                return shape
            # The base lies on the hub in another format than the build does.
            return replace(shape, stored=None, quantization=of_build(text))
    if problem is not None:
        raise problem
    raise _not_known(text)


def known_models() -> list[str]:
    """Names that the shipped table has, aliases too."""
    return sorted(name for entry in _table() for name in (entry["name"], *entry.get("aliases", ())))


def _checkpoint(
    name: str, folders: Sequence[Path], cache_dir: Path, hub: Hub, revision: str
) -> Checkpoint | None:
    """What is known of a model, the best source first.

    Raises:
        HubError: the hub does not give it, and nothing else has it.
    """
    if folder := own_folder(name, folders):
        return read_folder(folder)
    kept = snapshot(name, cache_dir)
    downloaded = read_folder(kept) if kept else None
    if downloaded is not None and downloaded.tensors:
        return downloaded
    listed = next((entry["config"] for entry in _table() if _is_named(entry, name)), None)
    otherwise = downloaded or (Checkpoint(listed, {}, None) if listed is not None else None)
    if not is_repository(name) or looks_like_path(name):
        return otherwise
    try:
        return hub.checkpoint(name, revision) or otherwise
    except HubError:
        if otherwise is None:
            raise
        return otherwise


def _not_known(text: str) -> UsageError:
    if looks_like_path(text):
        return UsageError(
            f"there is no folder with a config.json at {text}",
            hint="give the folder that holds the model's config.json, or its name on the hub",
        )
    return UsageError(
        f"the shape of the model {text!r} is not known here",
        hint=f"{did_you_mean(text, known_models())}\n  or give the folder with its config.json "
        "(models in the hub's cache are found automatically)",
    )


def _is_named(entry: Mapping[str, Any], name: str) -> bool:
    wanted = name.casefold()
    return any(wanted == known.casefold() for known in (entry["name"], *entry.get("aliases", ())))


def _table() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = table("shapes")["models"]
    return entries
