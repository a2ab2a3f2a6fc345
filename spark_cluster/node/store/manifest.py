"""What a revision of a model consists of: its files, their sizes and the hashes of their content.

A manifest comes from a hub or from another node, so that everything in it is checked when it is
read: a name that leaves the model's folder would be a file anywhere on the node.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from spark_cluster.node.values import ResourceError

SHA256 = "sha256"
GIT_SHA1 = "git-sha1"
UNCHECKED = ""
ALGORITHMS = (SHA256, GIT_SHA1, UNCHECKED)

MOST_FILES = 20_000
LARGEST_FILE = 1 << 43
"""Bytes (8 TiB); the disk of a Spark has 4 TB at most."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_LENGTHS = {SHA256: 64, GIT_SHA1: 40}


class BadManifest(ResourceError):
    """A manifest that cannot be true, or that would write outside of its folder."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a revision.

    Attributes:
        path: below the snapshot's folder, with `/`.
        size: bytes.
        blob: its name below `blobs/`; with an algorithm it is the hash itself, hex.
        algorithm: `sha256` of large files, `git-sha1` of the others (of `blob SIZE`, a zero byte
            and the content, as git has it); empty where the name is no hash.
    """

    path: str
    size: int
    blob: str
    algorithm: str

    def hasher(self) -> Hasher:
        """Return what computes the hash of this file, from its first byte on."""
        return Hasher(self)


class Hasher:
    """The hash of a file, computed as its bytes come."""

    def __init__(self, file: StoredFile) -> None:
        self._wanted = file.blob if file.algorithm else None
        if file.algorithm == GIT_SHA1:
            header = f"blob {file.size}\0".encode()
            self._hash = hashlib.sha1(header, usedforsecurity=False)
        else:
            self._hash = hashlib.sha256()

    @property
    def update(self) -> Callable[[Any], None]:
        """Take the next bytes."""
        return self._hash.update

    def fits(self) -> bool:
        """Return whether all that was taken is what the name says; True where that is unknown."""
        return self._wanted is None or self._hash.hexdigest() == self._wanted


@dataclass(frozen=True)
class Manifest:
    """A revision of a repository.

    Attributes:
        repository: `ORG/NAME` (some old ones have no organisation).
        commit: 40 hex digits.
        files: sorted by path.
    """

    repository: str
    commit: str
    files: tuple[StoredFile, ...]

    @cached_property
    def blobs(self) -> dict[str, StoredFile]:
        """One file for each blob: several files can have the same content."""
        return {file.blob: file for file in self.files}

    @property
    def size(self) -> int:
        """Bytes of all blobs, each counted once."""
        return sum(file.size for file in self.blobs.values())

    def document(self) -> dict[str, Any]:
        """As it is sent and kept."""
        files = [vars(file) for file in self.files]
        return {"repository": self.repository, "commit": self.commit, "files": files}

    @classmethod
    def from_document(cls, found: object) -> Manifest:
        """Read what another machine has sent or the disk has kept.

        Raises:
            BadManifest: it is none, or names something outside of its folder.
        """
        given = _mapping(found, "the manifest")
        repository = _text(given, "repository", _REPOSITORY)
        commit = _text(given, "commit", _COMMIT)
        listed = given.get("files")
        if not isinstance(listed, list) or not 0 < len(listed) <= MOST_FILES:
            raise _bad(f"{repository}: expected 1 to {MOST_FILES} files")
        files = tuple(sorted((_file(one) for one in listed), key=lambda file: file.path))
        _must_be_a_tree(repository, files)
        return cls(repository, commit, files)


def is_repository(text: str) -> bool:
    """Return whether it can be the name of a repository, and so of a folder in the hub cache."""
    return bool(_REPOSITORY.fullmatch(text)) and "--" not in text and ".." not in text


def is_commit(text: str) -> bool:
    """Return whether it is a whole commit."""
    return bool(_COMMIT.fullmatch(text))


def _file(found: object) -> StoredFile:
    given = _mapping(found, "a file")
    path, size = given.get("path"), given.get("size")
    if not isinstance(path, str) or not _is_inside(path):
        raise _bad(f"a file is named {str(path)[:100]!r}")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= LARGEST_FILE:
        raise _bad(f"{path}: its size is {str(size)[:40]!r}")
    algorithm = given.get("algorithm")
    if algorithm not in ALGORITHMS:
        raise _bad(f"{path}: its hash is a {str(algorithm)[:40]!r}")
    blob = _text(given, "blob", _BLOB)
    digits = _LENGTHS.get(algorithm)
    if digits and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", blob):
        raise _bad(f"{path}: {blob[:80]!r} is no {algorithm}")
    return StoredFile(path, size, blob, algorithm)


def _is_inside(path: str) -> bool:
    """Return whether a path is a plain one below its folder."""
    parts = PurePosixPath(path).parts
    plain = path.isprintable() and "\\" not in path and str(PurePosixPath(path)) == path
    return bool(parts) and plain and path[0] != "/" and ".." not in parts and len(path) <= 1024


def _must_be_a_tree(repository: str, files: tuple[StoredFile, ...]) -> None:
    """Raise BadManifest for a name that is there twice, or that is a file and a folder."""
    names = {file.path for file in files}
    folders = {str(parent) for file in files for parent in PurePosixPath(file.path).parents}
    if len(names) < len(files) or names & folders:
        raise _bad(f"{repository}: a name is there twice")
    sizes: dict[str, int] = {}
    for file in files:
        if sizes.setdefault(file.blob, file.size) != file.size:
            raise _bad(f"{file.path}: the same content has two sizes")


def _mapping(found: object, what: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise _bad(f"{what} is no object")
    return found


def _text(given: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value) or ".." in value:
        raise _bad(f"{key} is {str(value)[:100]!r}")
    return value


def _bad(what: str) -> BadManifest:
    return BadManifest(
        f"the list of the model's files cannot be used: {what}",
        "what wrote it is not a hub, or it was changed; `models pull` asks for it again",
    )
