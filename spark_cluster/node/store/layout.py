"""Names and folders of the hub cache (hub_cache.py), of our notes on it, and of its library."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from spark_cluster.node import paths
from spark_cluster.node.store.manifest import BadManifest, check_commit, check_repository

OURS = paths.MODELS
"""Folder, root-only, of what is not part of the layout: manifests, pins, last use, progress."""

LOCKS = "locks"
"""Below OURS: one file for each repository, which is locked while someone of ours writes it."""

LIBRARY = paths.HUB_LIBRARY
"""Folder of the virtual environment with the hub's own library."""

HUB = "huggingface/hub"
"""Below the folder of the caches: the hub cache."""

KEPT_FREE = 5 << 30
"""Bytes that a download or copy leaves free on the disk."""

PREFIX = "models--"

INCOMPLETE = ".incomplete"
"""Ending of a blob that is not whole yet, here and in the hub's own library."""

_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]{0,199}", re.ASCII)


def folder_name(repository: str) -> str:
    """Return `models--ORG--NAME` of ORG/NAME."""
    return PREFIX + check_repository(repository).replace("/", "--")


def repository_of(name: str) -> str:
    """Return ORG/NAME of `models--ORG--NAME`."""
    return name.removeprefix(PREFIX).replace("--", "/")


def check_revision(revision: str) -> str:
    """Return a branch, tag or commit. Raises BadManifest if its file could lie elsewhere."""
    parts = revision.split("/") if _REVISION.fullmatch(revision) else [""]
    if any(part in ("", ".", "..") for part in parts):
        raise BadManifest(f"{revision[:80]!r} is not the name of a branch, tag or commit")
    return revision


def manifest_path(ours: Path, repository: str, commit: str) -> Path:
    """Return the path of a manifest below OURS. Raises BadManifest."""
    return ours / "manifests" / f"{folder_name(repository)}@{check_commit(commit)}.json"


def trusted(hub: Path) -> Path:
    """Return the folder from which on no link is followed to a hub cache.

    Before images had caches of their own, a container could write to all that is below the folder
    of the caches; only that folder itself may be reached through an administrator's links.
    """
    return hub.parents[1] if hub.parts[-2:] == tuple(HUB.split("/")) else hub


def snapshot_folder(hub: str, repository: str, commit: str) -> str:
    """Return the folder of a revision in the hub cache `hub`. Raises BadManifest."""
    return f"{hub}/{folder_name(repository)}/snapshots/{check_commit(commit)}"


def revision_of(path: str) -> str:
    """Return ORG/NAME@COMMIT of the folder of a revision."""
    repository, _, commit = path.partition("/snapshots/")
    return f"{repository_of(repository.rpartition('/')[2])}@{commit}"


def whole_folder(path: str) -> str:
    """Return the folder that a program must see to read the model at `path`.

    The files of a revision are links into the `blobs` of its repository.
    """
    places = PurePosixPath(path).parents
    if len(places) > 1 and places[0].name == "snapshots" and places[1].name.startswith(PREFIX):
        return str(places[1])
    return path
