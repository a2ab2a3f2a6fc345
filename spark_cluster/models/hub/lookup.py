"""Looking a model up: what is kept of it, and, where that is allowed, the hub."""

from __future__ import annotations

import contextlib
import os

from spark_cluster.config.caches import laptop_cache
from spark_cluster.models.checkpoint import Checkpoint, read_checkpoint
from spark_cluster.models.hub.documents import DocumentSource, HubError
from spark_cluster.models.hub.library import HubLibrary
from spark_cluster.models.hub.store import ModelStore

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
