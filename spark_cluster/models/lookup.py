"""Looking a model up by name: in folders, in what is kept of it, and where allowed on the hub."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from spark_cluster.config.folders import laptop_cache
from spark_cluster.errors import InvalidFile, UsageError, naming
from spark_cluster.models.checkpoint import SUFFIX, Checkpoint, Tensor, read_checkpoint
from spark_cluster.models.hub import DocumentSource, HubError, HubLibrary, Listing, is_repository
from spark_cluster.models.naming import base_of, nearest_model, of_build, table
from spark_cluster.models.shape import Geometry
from spark_cluster.node.durable import make_folder, write_file
from spark_cluster.node.store.manifest import is_commit

# What was read from the hub, kept on this machine by commit.

SCHEMA = "spark-cluster.model.v1"
FRESH_S = 24 * 3600.0
"""How long a branch is taken to be at the commit that it was at, seconds."""
LARGEST = 64 << 20


class CachedModel(TypedDict):
    """The file of a checkpoint; its tensors by name, type, shape, size and count."""

    schema: Literal["spark-cluster.model.v1"]
    config: dict[str, Any]
    generation: dict[str, Any]
    problem: str
    tensors: list[tuple[str, str, tuple[int, ...], int, int]] | None


class KeptCommit(TypedDict):
    """The file of a branch or tag: its commit, and when that was seen, seconds since 1970."""

    commit: str
    seen: float


K = TypeVar("K", CachedModel, KeptCommit)


class ModelStore:
    """Checkpoints by repository and commit, and which commit a branch was at.

    Args:
        folder: where they are kept; made when something is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def commit(self, repository: str, revision: str) -> tuple[str, bool] | None:
        """The commit of a revision as last seen, and whether that was within a day."""
        if is_commit(revision):
            return revision, True
        found = _read(self._reference(repository, revision), KeptCommit)
        if found is None or not is_commit(found["commit"]):
            return None
        return found["commit"], 0 <= time.time() - found["seen"] < FRESH_S

    def load(self, repository: str, commit: str) -> Checkpoint | None:
        """A checkpoint that was kept; None when there is none that can be read."""
        kept = _read(self._file(repository, commit), CachedModel)
        if kept is None:
            return None
        listed, problem = kept["tensors"], kept["problem"]
        tensors = None if listed is None else tuple(Tensor(*one) for one in listed)
        return Checkpoint(kept["config"], kept["generation"], tensors, commit, problem)

    def save(self, repository: str, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint.

        Raises:
            OSError: the folder cannot be written.
        """
        listed = None
        if checkpoint.tensors is not None:
            listed = [astuple(tensor) for tensor in checkpoint.tensors]
        document = {
            "schema": SCHEMA,
            "repository": repository,
            "commit": checkpoint.commit,
            "config": checkpoint.config,
            "generation": checkpoint.generation,
            "problem": checkpoint.problem,
            "tensors": listed,
        }
        _write(self._file(repository, checkpoint.commit), document)

    def remember(self, repository: str, revision: str, commit: str) -> None:
        """Keep which commit a branch or tag is at.

        Raises:
            OSError: the folder cannot be written.
        """
        if not is_commit(revision):
            _write(self._reference(repository, revision), {"commit": commit, "seen": time.time()})

    def _place(self, repository: str) -> Path:
        if not is_repository(repository):
            raise ValueError(f"{repository!r} is no repository")
        return self.folder / repository.replace("/", "--")

    def _file(self, repository: str, commit: str) -> Path:
        return self._place(repository) / f"{commit}.json"

    def _reference(self, repository: str, revision: str) -> Path:
        plain = "".join(c if c.isalnum() or c in "-_." else f"%{ord(c):x}" for c in revision[:100])
        return self._place(repository) / "refs" / f"{plain}.json"


def _write(path: Path, document: dict[str, Any]) -> None:
    make_folder(path.parent)
    write_file(path, json.dumps(document, separators=(",", ":")).encode())


def _read(path: Path, kind: type[K]) -> K | None:
    """What a file holds; None for anything else, which is read again."""
    try:
        if path.stat().st_size <= LARGEST:
            return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValueError):
        pass
    return None


_TRUE = ("1", "ON", "YES", "TRUE")


class Hub:
    """Models on the hub, as far as this machine may ask for them.

    Args:
        source: what is asked; None: only what is kept is used.
        store: where it is kept.
    """

    def __init__(self, source: DocumentSource | None, store: ModelStore) -> None:
        self._source = source
        self._store = store
        self._found: dict[str, Checkpoint] = {}
        self._refused: dict[str, HubError] = {}
        self._down: HubError | None = None

    def checkpoint(self, repository: str, revision: str = "main") -> Checkpoint | None:
        """A model; None when nothing is kept of it and nobody may be asked.

        Of a branch the commit is asked for once a day; what was read of a commit is never read
        again. When the hub cannot be reached, what is kept is used, however old.

        Raises:
            HubError: the hub has no such model, or does not give it.
            InvalidFile: its config.json is none.
        """
        if before := self._found.get(f"{repository}@{revision}"):
            return before
        seen = self._store.commit(repository, revision)
        kept = self._store.load(repository, seen[0]) if seen else None
        complete = kept is not None and not kept.problem
        if self._source is None or (seen and seen[1] and complete):
            return kept
        try:
            return self._ask(self._source, repository, revision)
        except HubError as error:
            if kept is not None and error.kind in ("unreachable", "busy", "server"):
                return kept
            raise

    @property
    def may_be_asked(self) -> bool:
        """Whether it is asked for a model that is not kept here."""
        return self._source is not None

    def ask_through(self, source: DocumentSource) -> bool:
        """Ask another source from now on, where the hub could not be reached; False where it could
        or where nobody may be asked.
        """
        if self._source is None or self._down is None or self._down.kind != "unreachable":
            return False
        self._source, self._down = source, None
        self._refused.clear()
        return True

    def problem(self, repository: str) -> str:
        """Why the hub did not give a model that was asked for; empty when it did."""
        about = (error for key, error in self._refused.items() if key.startswith(f"{repository}@"))
        found = next(about, None)
        return found.message if found is not None else ""

    def _ask(self, source: DocumentSource, repository: str, revision: str) -> Checkpoint:
        key = f"{repository}@{revision}"
        if before := self._refused.get(key) or self._down:
            self._refused[key] = before
            raise before
        try:
            listing = source.listing(repository, revision)
            found = self._store.load(repository, listing.commit)
            if found is None or found.problem:
                found = read_checkpoint(source, repository, listing)
        except HubError as error:
            if error.kind in ("unreachable", "busy"):
                self._down = error
            self._refused[key] = error
            raise
        with contextlib.suppress(OSError):  # a full disk: it is read again the next time
            self._store.save(repository, found)
            self._store.remember(repository, revision, listing.commit)
        self._found[key] = found
        return found


def cached() -> Hub:
    """Only what is kept on this machine."""
    return Hub(None, ModelStore(laptop_cache() / "models"))


def online(known: tuple[str, ...] = ()) -> Hub:
    """The hub, unless HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids it.

    Args:
        known: names of models, for suggestions.
    """
    forbidden = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    if forbidden.upper() in _TRUE:
        return cached()
    return Hub(HubLibrary(known=known), ModelStore(laptop_cache() / "models"))


# The search for a model's shape: a folder, the hub and what is kept of it, our table.


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
        base: the model that it is a build of, when its own name is not known; by default what
            its name says.
        hub: what may be asked; by default only what was read from it before, so that nothing goes
            over a network.
        revision: of the model, on the hub.

    Raises:
        UsageError: it is nowhere; a name that is near is suggested, and what the hub said.
        InvalidFile: its config.json cannot be read or lacks a key.
    """
    text, asked = str(name), hub or cached()
    base = base or base_of(text)
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
    raise _not_known(text, asked)


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


def _not_known(text: str, hub: Hub) -> UsageError:
    if looks_like_path(text):
        return UsageError(
            f"there is no folder with a config.json at {text}",
            hint="give the folder that holds the model's config.json, or its name on the hub",
        )
    near = nearest_model(text, known_models())
    hints = [f"did you mean '{near}'?"] if near else []
    if not is_repository(text):
        hints.append("give its whole name on the hub, ORG/NAME")
    elif not hub.may_be_asked:
        hints.append("without --offline (and HF_HUB_OFFLINE) the hub is asked for its config")
    hints.append("give the folder with its config.json; models in the hub's cache are found")
    return UsageError(
        f"the shape of the model {text!r} is not known here", hint="\n  or ".join(hints)
    )


def _is_named(entry: Mapping[str, Any], name: str) -> bool:
    wanted = name.casefold()
    return any(wanted == known.casefold() for known in (entry["name"], *entry.get("aliases", ())))


def _table() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = table("shapes")["models"]
    return entries


# A model's checkpoint in a folder of this machine, or in the hub's own cache there.


class Folders(DocumentSource):
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
        with naming(InvalidFile, "cannot be read", where=str(path)):
            if not path.is_file():
                raise InvalidFile("is not here", where=str(path))
            with path.open("rb") as file:
                file.seek(begin)
                text = file.read(most + 1)
        return text[:most], len(text) <= most


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
