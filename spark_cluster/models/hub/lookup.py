"""Looking a model up: what is kept of it, and, where that is allowed, the hub."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from spark_cluster.config.caches import laptop_cache
from spark_cluster.errors import InvalidFile
from spark_cluster.models.checkpoint import QUANTIZATION_FILES, Checkpoint
from spark_cluster.models.hub.documents import DocumentSource, HubError, Listing
from spark_cluster.models.hub.library import HubLibrary
from spark_cluster.models.hub.store import ModelStore
from spark_cluster.models.json_object import json_object
from spark_cluster.models.quantization import with_quantization
from spark_cluster.models.safetensors_header import (
    INDEX,
    LENGTH_BYTES,
    MOST_FILES,
    Tensor,
    folded,
    header_length,
    indexed,
    must_not_be_gguf,
    tensors,
    weight_files,
)
from spark_cluster.node.store.hub_problems import HubProblem

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


# A model's checkpoint as a source has it: documents, and the headers of its files of weights.

LARGEST_DOCUMENT = 4 << 20
LARGEST_INDEX = 64 << 20
FIRST_READ = 128 << 10
"""Bytes of a file of weights that are asked for at first: most headers are shorter."""
LARGEST_HEADERS = 64 << 20
"""Bytes of a header from the network; the format allows 100 MB, published ones have up to 20."""


def read_checkpoint(source: DocumentSource, repository: str, listing: Listing) -> Checkpoint:
    """Read what there is to know of a model without its weights.

    Raises:
        HubError: it has no config.json, or the source does not give it.
        InvalidFile: its config.json is none, or its weights are in GGUF only.
    """
    if "config.json" not in listing.names:
        without_shape = HubProblem(
            "file",
            f"{repository} has no config.json on the hub, so its shape is not known",
            "models in other formats (GGUF, LoRA adapters) cannot be planned: name the model in "
            "the safetensors format",
        )
        raise HubError(without_shape)
    must_not_be_gguf(listing.names, repository)
    config = _document(source, repository, listing, "config.json")
    for name in QUANTIZATION_FILES:
        if name in listing.names:
            config = with_quantization(config, name, _document(source, repository, listing, name))
    generation: Mapping[str, Any] = {}
    if "generation_config.json" in listing.names:
        generation = _document(source, repository, listing, "generation_config.json")
    found, problem = None, ""
    try:
        found = _tensors(source, repository, listing)
    except (HubError, InvalidFile) as error:
        problem = error.message
    return Checkpoint(config, generation, found, listing.commit, problem)


def _document(
    source: DocumentSource, repository: str, listing: Listing, name: str
) -> Mapping[str, Any]:
    text, whole = source.read(repository, listing.commit, name, most=LARGEST_DOCUMENT)
    where = f"{name} of {repository}"
    if not whole:
        raise InvalidFile(f"is longer than {LARGEST_DOCUMENT >> 20} MiB", where=where)
    return json_object(text, where)


def _tensors(
    source: DocumentSource, repository: str, listing: Listing
) -> tuple[Tensor, ...] | None:
    """The tensors of all files; None when there are no safetensors."""
    if INDEX in listing.names:
        text, whole = source.read(repository, listing.commit, INDEX, most=LARGEST_INDEX)
        if not whole:
            raise InvalidFile(f"is longer than {LARGEST_INDEX >> 20} MiB", where=INDEX)
        files = indexed(text, f"{INDEX} of {repository}")
    else:
        files = weight_files(listing.names)
    if not files or len(files) > MOST_FILES:
        return None
    found: list[Tensor] = []
    starts = source.beginnings(repository, listing.commit, files, FIRST_READ)
    for name, start in zip(files, starts, strict=True):
        where = f"{name} of {repository}"
        begin, missing, more = len(start), _missing(start, where), b""
        if missing:
            more = source.read(repository, listing.commit, name, begin=begin, most=missing)[0]
        end = LENGTH_BYTES + header_length(start, where)
        found += folded(tensors((start + more)[LENGTH_BYTES:end], where))
    return tuple(folded(found))


def _missing(start: bytes, where: str) -> int:
    """Return how many bytes of a header are not in the start of its file."""
    length = header_length(start, where)
    if length > LARGEST_HEADERS:
        raise InvalidFile(f"its header is {length} bytes long", where=where)
    return max(0, LENGTH_BYTES + length - len(start))
