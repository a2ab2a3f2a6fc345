"""Looking a model up: what is kept of it, and, where that is allowed, the hub."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from spark_cluster.config.caches import laptop_cache
from spark_cluster.models.checkpoint import Checkpoint, read_checkpoint
from spark_cluster.models.hub.documents import DocumentSource, HubError, HubLibrary, is_repository
from spark_cluster.models.safetensors_header import Tensor
from spark_cluster.node.durable import make_folder, write_file
from spark_cluster.node.store.manifest import is_commit

# What was read from the hub, kept on this machine by commit.

SCHEMA = "spark-cluster.model.v1"
FRESH_S = 24 * 3600.0
"""How long a branch is taken to be at the commit that it was at, seconds."""
LARGEST = 64 << 20


class KeptModel(TypedDict):
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


K = TypeVar("K", KeptModel, KeptCommit)


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
        kept = _read(self._file(repository, commit), KeptModel)
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
