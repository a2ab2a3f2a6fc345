"""Paths in the hub cache (`models--ORG--NAME/{refs,snapshots,blobs}`) and of our notes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.node.store.manifest import (
    BadManifest,
    Manifest,
    check_blob,
    check_commit,
    check_path,
    check_repository,
)

HUB = "huggingface/hub"
"""The hub cache below the root of the caches (config/caches.py), where HF_HOME has it."""

OURS = "/var/lib/spark-cluster/models"
"""Folder, root-only, of what is not part of the layout: manifests, pins, last use, progress."""

PREFIX = "models--"

INCOMPLETE = ".incomplete"
"""Ending of a blob that is not whole yet, here and in the hub's own library."""

_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]{0,199}", re.ASCII)


@dataclass(frozen=True)
class Repository:
    """The paths of one repository in a hub cache.

    Args:
        hub: folder of the hub cache.
        name: ORG/NAME.

    Raises:
        BadManifest: on construction, if the hub could not have such a name.
    """

    hub: Path
    name: str

    def __post_init__(self) -> None:
        check_repository(self.name)

    @property
    def folder(self) -> Path:
        """`models--ORG--NAME`."""
        return self.hub / folder_name(self.name)

    @property
    def blobs(self) -> Path:
        return self.folder / "blobs"

    @property
    def refs(self) -> Path:
        return self.folder / "refs"

    @property
    def snapshots(self) -> Path:
        return self.folder / "snapshots"

    def blob(self, blob: str) -> Path:
        """Return the path of a content. Raises BadManifest."""
        return self.blobs / check_blob(blob)

    def incomplete(self, blob: str) -> Path:
        """Return the path of a content of which a part is there. Raises BadManifest."""
        return self.blobs / f"{check_blob(blob)}{INCOMPLETE}"

    def snapshot(self, commit: str) -> Path:
        """Return the folder of a revision's links. Raises BadManifest."""
        return self.snapshots / check_commit(commit)

    def link(self, commit: str, path: str) -> Path:
        """Return the path of a file's link. Raises BadManifest."""
        return self.snapshot(commit) / check_path(path)

    def ref(self, revision: str) -> Path:
        """Return the path of the file with a branch's or tag's commit. Raises BadManifest."""
        return self.refs / check_revision(revision)


def folder_name(repository: str) -> str:
    """Return `models--ORG--NAME` of ORG/NAME."""
    return PREFIX + check_repository(repository).replace("/", "--")


def check_revision(revision: str) -> str:
    """Return a branch, tag or commit. Raises BadManifest if its file could lie elsewhere."""
    parts = revision.split("/") if _REVISION.fullmatch(revision) else [""]
    if any(part in ("", ".", "..") for part in parts):
        raise BadManifest(f"{revision[:80]!r} is not the name of a branch, tag or commit")
    return revision


def manifest_path(ours: Path, manifest: Manifest) -> Path:
    """Return the path of a manifest below OURS: `manifests/models--ORG--NAME@COMMIT.json`."""
    return manifest_path_of(ours, manifest.repository, manifest.commit)


def manifest_path_of(ours: Path, repository: str, commit: str) -> Path:
    """Return the same of a repository and a commit. Raises BadManifest."""
    return ours / "manifests" / f"{folder_name(repository)}@{check_commit(commit)}.json"
