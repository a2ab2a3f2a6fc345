"""The search for a model's shape: a folder, the hub and what is kept of it, our table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_cluster.config.yamlfile import did_you_mean
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.checkpoint import Checkpoint, read_checkpoint
from spark_cluster.models.hub.documents import HubError, Listing, is_repository
from spark_cluster.models.hub.lookup import Hub, cached
from spark_cluster.models.naming import of_build
from spark_cluster.models.safetensors_header import SUFFIX
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


# A model's checkpoint in a folder of this machine, or in the hub's own cache there.


class Folders:
    """Folders of this machine as a source of their models' documents, each a repository.

    Raises:
        InvalidFile: of each method, for a file that cannot be read.
    """

    def listing(self, repository: str, revision: str = "") -> Listing:
        """The files; of weights those that are missing behind a link, too."""
        entries = Path(repository).iterdir()
        names = [one.name for one in entries if one.is_file() or one.name.endswith(SUFFIX)]
        return Listing(revision, tuple(names))

    def read(
        self, repository: str, commit: str, name: str, *, begin: int = 0, most: int
    ) -> tuple[bytes, bool]:
        """Bytes of a file from a place on, `most` at most, and whether the file ends there."""
        del commit  # a folder has one state only
        path = Path(repository, name)
        try:
            if not path.is_file():
                raise InvalidFile("is not here", where=str(path))
            with path.open("rb") as file:
                file.seek(begin)
                text = file.read(most + 1)
        except OSError as error:
            raise InvalidFile(f"cannot be read: {error.strerror}", where=str(path)) from error
        return text[:most], len(text) <= most

    def beginnings(
        self, repository: str, commit: str, names: Sequence[str], most: int
    ) -> list[bytes]:
        """The first bytes of several files, `most` of each at most."""
        return [self.read(repository, commit, name, most=most)[0] for name in names]


def read_folder(path: Path) -> Checkpoint:
    """Read what a folder tells of its model.

    Raises:
        InvalidFile: as `read_checkpoint`.
    """
    source, name = Folders(), str(path)
    return read_checkpoint(source, name, source.listing(name), lambda file: str(path / file))


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
