"""What was read from the hub, kept on this machine by commit."""

from __future__ import annotations

import json
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

from spark_cluster.models.checkpoint import Checkpoint
from spark_cluster.models.hub.documents import is_repository
from spark_cluster.models.safetensors_header import Tensor
from spark_cluster.node.durable import make_folder, write_file
from spark_cluster.node.store.manifest import is_commit

SCHEMA = "spark-cluster.model.v1"
FRESH_S = 24 * 3600.0
"""How long a branch is taken to be at the commit that it was at, seconds."""
LARGEST = 64 << 20
FIELDS = 5


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
        found = _json(self._reference(repository, revision))
        commit, seen = found.get("commit"), found.get("seen")
        if not isinstance(commit, str) or not is_commit(commit):
            return None
        recent = isinstance(seen, int | float) and 0 <= time.time() - seen < FRESH_S
        return commit, recent

    def load(self, repository: str, commit: str) -> Checkpoint | None:
        """A checkpoint that was kept; None when there is none that can be read."""
        document = _json(self._file(repository, commit))
        if document.get("schema") != SCHEMA or not isinstance(document.get("config"), dict):
            return None
        generation = document.get("generation")
        return Checkpoint(
            document["config"],
            generation if isinstance(generation, dict) else {},
            _tensors(document.get("tensors")),
            commit,
            str(document.get("problem", "")),
        )

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


def _json(path: Path) -> dict[str, Any]:
    """An object from a file; empty for anything that is none."""
    try:
        if path.stat().st_size > LARGEST:
            return {}
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _tensors(listed: Any) -> tuple[Tensor, ...] | None:
    if not isinstance(listed, list):
        return None
    try:
        return tuple(
            Tensor(str(n), str(dtype), tuple(map(int, shape)), int(size), int(number))
            for n, dtype, shape, size, number in listed
        )
    except (TypeError, ValueError):
        return None
