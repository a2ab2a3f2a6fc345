"""The files of a model's revision; read from nodes and hubs, so nothing in it is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.node.values import ResourceError

MOST_FILES = 20_000
"""Files of a revision; the hub recommends fewer than 100,000 and the largest models have 400."""

LARGEST_FILE = 1 << 43
"""Bytes (8 TiB); the hub takes files of up to 50 GB, 500 GB on request."""

LONGEST_PATH = 1024
"""Characters of a file's path within the repository."""

SHA256 = "sha256"
GIT_SHA1 = "git-sha1"
ALGORITHMS = {SHA256: 64, GIT_SHA1: 40, "": 0}
"""Algorithm to the length of its digest in hex; "" is an ETag that is no hash."""

_REPOSITORY = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOB = re.compile(r"[A-Za-z0-9_][\w.-]{0,199}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]+")


class BadManifest(ResourceError, ValueError):
    """What should be a manifest is none, or it names something outside its own folder."""


@dataclass(frozen=True)
class StoredFile:
    """One file of a revision.

    Args:
        path: within the repository, relative, with "/".
        size: bytes.
        blob: name of the content's file below `blobs/`.
        algorithm: what `blob` is: "sha256" of the content (LFS and Xet files), "git-sha1" (of
            "blob SIZE", a zero byte and the content), or "" for an ETag that is no hash, where
            only the size can be checked.

    Raises:
        BadManifest: on construction, if a value could not be right.
    """

    path: str
    size: int
    blob: str
    algorithm: str

    def __post_init__(self) -> None:
        check_path(self.path)
        check_blob(self.blob)
        if type(self.size) is not int or not 0 <= self.size <= LARGEST_FILE:
            raise BadManifest(f"{self.path}: size {self.size!r} is not a number of bytes")
        length = ALGORITHMS.get(self.algorithm) if isinstance(self.algorithm, str) else None
        if length is None:
            raise BadManifest(f"{self.path}: unknown algorithm {self.algorithm!r}")
        if length and not (len(self.blob) == length and _HEX.fullmatch(self.blob)):
            raise BadManifest(f"{self.path}: {self.blob!r} is not a {self.algorithm} digest")

    @classmethod
    def from_document(cls, document: object) -> StoredFile:
        """Read it from what JSON holds. Raises BadManifest."""
        if not isinstance(document, Mapping):
            raise BadManifest(f"a file of the manifest is {type(document).__name__}, not an object")
        try:
            return cls(*(document[name] for name in ("path", "size", "blob", "algorithm")))
        except KeyError as error:
            raise BadManifest(f"a file of the manifest has no {error.args[0]!r}") from None

    def document(self) -> dict[str, Any]:
        """Return what JSON holds of it."""
        return {
            "path": self.path,
            "size": self.size,
            "blob": self.blob,
            "algorithm": self.algorithm,
        }


@dataclass(frozen=True)
class Manifest:
    """The files of one revision that are wanted on a node.

    Args:
        repository: ORG/NAME, or NAME of the hub's oldest repositories.
        commit: 40 hex digits.
        files: in the order in which they are fetched and copied.

    Raises:
        BadManifest: on construction, if a value could not be right.
    """

    repository: str
    commit: str
    files: tuple[StoredFile, ...]

    def __post_init__(self) -> None:
        check_repository(self.repository)
        check_commit(self.commit)
        if len(self.files) > MOST_FILES:
            raise BadManifest(
                f"{self.repository} has {len(self.files)} files; up to {MOST_FILES} are taken"
            )
        self._check_paths()
        self._check_blobs()

    def _check_paths(self) -> None:
        paths = {file.path for file in self.files}
        if len(paths) < len(self.files):
            raise BadManifest(f"{self.repository}: the manifest names a path twice")
        for path in paths:
            parts = path.split("/")
            for count in range(1, len(parts)):
                if "/".join(parts[:count]) in paths:
                    raise BadManifest(f"{self.repository}: {path!r} lies below another file")

    def _check_blobs(self) -> None:
        known: dict[str, StoredFile] = {}
        for file in self.files:
            other = known.setdefault(file.blob, file)
            if (other.size, other.algorithm) != (file.size, file.algorithm):
                raise BadManifest(
                    f"{self.repository}: {other.path} and {file.path} are one blob of two sizes"
                )

    @classmethod
    def from_document(cls, document: object) -> Manifest:
        """Read it from what JSON holds. Raises BadManifest."""
        if not isinstance(document, Mapping):
            raise BadManifest(f"the manifest is {type(document).__name__}, not an object")
        files = document.get("files")
        if not isinstance(files, list):
            raise BadManifest("the manifest has no list `files`")
        if len(files) > MOST_FILES:
            raise BadManifest(f"the manifest has {len(files)} files; up to {MOST_FILES} are taken")
        read = tuple(StoredFile.from_document(file) for file in files)
        try:
            return cls(document["repository"], document["commit"], read)
        except KeyError as error:
            raise BadManifest(f"the manifest has no {error.args[0]!r}") from None

    @classmethod
    def from_text(cls, text: str | bytes) -> Manifest:
        """Read it from JSON text. Raises BadManifest."""
        try:
            return cls.from_document(json.loads(text))
        except (ValueError, RecursionError) as error:
            if isinstance(error, BadManifest):
                raise
            raise BadManifest(f"the manifest is not JSON: {error}") from None

    def document(self) -> dict[str, Any]:
        """Return what JSON holds of it."""
        return {
            "repository": self.repository,
            "commit": self.commit,
            "files": [file.document() for file in self.files],
        }

    @property
    def name(self) -> str:
        """REPOSITORY@COMMIT, as people are told of it."""
        return f"{self.repository}@{self.commit}"

    @property
    def size(self) -> int:
        """Bytes on a disk: a blob of several files counts once."""
        return sum(file.size for file in self.blobs())

    def blobs(self) -> tuple[StoredFile, ...]:
        """Return the first file of each blob, in the order of the files."""
        return tuple({file.blob: file for file in reversed(self.files)}.values())[::-1]


def check_path(path: object) -> str:
    """Return a path within a repository. Raises BadManifest if it could leave the folder."""
    if not isinstance(path, str) or not path or len(path) > LONGEST_PATH:
        raise BadManifest(f"{str(path)[:80]!r} is not a path of a file")
    if any(part in ("", ".", "..") or len(part) > 255 for part in path.split("/")):
        raise BadManifest(f"the path {path[:200]!r} leads out of the repository's folder")
    if not path.isprintable() or "\\" in path:
        raise BadManifest(f"the path {path[:200]!r} has characters that no file of a model has")
    return path


def check_blob(blob: object) -> str:
    """Return the name of a file below `blobs/`. Raises BadManifest if it could not be one."""
    if not isinstance(blob, str) or not _BLOB.fullmatch(blob) or blob.endswith(".incomplete"):
        raise BadManifest(f"{str(blob)[:80]!r} is not the name of a blob")
    return blob


def check_commit(commit: object) -> str:
    """Return a commit. Raises BadManifest if it is not 40 hex digits."""
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise BadManifest(f"{str(commit)[:80]!r} is not a commit (40 hex digits)")
    return commit


def check_repository(repository: object) -> str:
    """Return the name of a repository. Raises BadManifest if the hub could not have it."""
    known = isinstance(repository, str) and _REPOSITORY.fullmatch(repository)
    if not known or "--" in str(repository) or ".." in str(repository):
        raise BadManifest(f"{str(repository)[:80]!r} is not a repository (ORG/NAME)")
    return str(repository)
