"""What a revision of a model consists of: its files, their sizes and the hashes of their content.

A manifest comes from a hub or from another node, so that everything in it is checked when it is
read: a name that leaves the model's folder would be a file anywhere on the node.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from spark_cluster.node.values import ResourceError

# Names and folders of the hub cache (hub_cache.py), of our notes on it, and of its library.

LOCKS = "locks"
"""Below `paths.MODELS`: one file for each repository, locked while one of us writes it."""

HUB = "huggingface/hub"
"""Below the folder of the caches: the hub cache."""

KEPT_FREE = 5 << 30
"""Bytes that a download or copy leaves free on the disk."""

PREFIX = "models--"

INCOMPLETE = ".incomplete"
"""Ending of a blob that is not complete yet, here and in the hub's own library."""

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
    """Return the path of a manifest below `paths.MODELS`. Raises BadManifest."""
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


SHA256 = "sha256"
GIT_SHA1 = "git-sha1"
UNCHECKED = ""
ALGORITHMS = (SHA256, GIT_SHA1, UNCHECKED)

MOST_FILES = 20_000
LATEST_NS = 1 << 63
LARGEST_FILE = 1 << 43
"""Bytes (8 TiB); the disk of a Spark has 4 TB at most."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_HEX = re.compile(r"[0-9a-f]+")
_LENGTHS = {64: SHA256, 40: GIT_SHA1}


class BadManifest(ResourceError):
    """A manifest that cannot be true, or that would write outside of its folder."""


@dataclass(frozen=True, order=True)
class StoredFile:
    """A file of a revision.

    Attributes:
        path: below the snapshot's folder, with `/`.
        size: bytes.
        blob: its name below `blobs/`; with an algorithm it is the hash itself, hex.
        algorithm: `sha256` of large files, `git-sha1` of the others (of `blob SIZE`, a zero byte
            and the content, as git has it); empty where the name is no hash.
        changed: time of its last change, ns; 0 where that is not kept.
    """

    path: str
    size: int
    blob: str
    algorithm: str
    changed: int = 0

    def __post_init__(self) -> None:
        """Raises:
        BadManifest: a value could not be true.
        """
        check_path(self.path)
        size = self.size
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= LARGEST_FILE:
            raise _bad(f"{self.path}: its size is {str(size)[:40]!r}")
        if type(self.changed) is not int or not 0 <= self.changed < LATEST_NS:
            raise _bad(f"{self.path}: its time is {str(self.changed)[:40]!r}")
        if self.algorithm not in ALGORITHMS:
            raise _bad(f"{self.path}: its hash is a {str(self.algorithm)[:40]!r}")
        check_blob(self.blob)
        if self.algorithm and algorithm_of(self.blob) != self.algorithm:
            raise _bad(f"{self.path}: {self.blob[:80]!r} is no {self.algorithm}")

    def hasher(self) -> Any:
        """Return the `hashlib` object that gets the bytes of this file, from its first one on."""
        if self.algorithm == GIT_SHA1:
            return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)
        return hashlib.sha256()

    def fits(self, hasher: Any) -> bool:
        """Return whether what a hasher got is what the name says; True where that is unknown."""
        return not self.algorithm or hasher.hexdigest() == self.blob


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

    def __post_init__(self) -> None:
        """Raises:
        BadManifest: a name could not be true, or two of them contradict each other.
        """
        check_repository(self.repository)
        check_commit(self.commit)
        _must_be_a_tree(self.repository, self.files)

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
        files = [
            {name: value for name, value in vars(file).items() if name != "changed" or value}
            for file in self.files
        ]
        return {"repository": self.repository, "commit": self.commit, "files": files}

    @classmethod
    def from_document(cls, found: object) -> Manifest:
        """Read what another machine has sent or the disk has kept.

        Raises:
            BadManifest: it is none, or names something outside of its folder.
        """
        given = _mapping(found, "the manifest")
        repository, commit = str(given.get("repository")), str(given.get("commit"))
        listed = given.get("files")
        if not isinstance(listed, list) or len(listed) > MOST_FILES:
            raise _bad(f"{repository}: expected 1 to {MOST_FILES} files")
        return cls(repository, commit, tuple(sorted(map(_file, listed))))


def is_repository(text: str) -> bool:
    """Return whether it can be the name of a repository, and so of a folder in the hub cache."""
    return bool(_REPOSITORY.fullmatch(text)) and "--" not in text and ".." not in text


def is_commit(text: str) -> bool:
    """Return whether it is a whole commit."""
    return bool(_COMMIT.fullmatch(text))


def algorithm_of(blob: str) -> str:
    """The hash that a blob's name is: the hub names large files by SHA-256, others as git does."""
    return _LENGTHS.get(len(blob), UNCHECKED) if _HEX.fullmatch(blob) else UNCHECKED


def check_repository(repository: object) -> str:
    """Return the name of a repository. Raises BadManifest if it cannot be one."""
    if not isinstance(repository, str) or not is_repository(repository):
        text = f"{str(repository)[:100]!r} is not the name of a repository: ORG/NAME"
        raise BadManifest(text)
    return repository


def check_commit(commit: object) -> str:
    """Return a commit. Raises BadManifest if it is not 40 hex digits."""
    if not isinstance(commit, str) or not is_commit(commit):
        raise BadManifest(f"{str(commit)[:80]!r} is not a commit (40 hex digits)")
    return commit


def check_path(path: object) -> str:
    """Return a path within a repository. Raises BadManifest if it could lead out of it."""
    if not isinstance(path, str) or not _is_inside(path):
        raise _bad(f"a file is named {str(path)[:100]!r}")
    return path


def check_blob(blob: object) -> str:
    """Return the name of a file below `blobs/`. Raises BadManifest if it cannot be one."""
    if not isinstance(blob, str) or not _BLOB.fullmatch(blob):
        raise _bad(f"blob is {str(blob)[:100]!r}")
    return blob


def _file(found: object) -> StoredFile:
    given = _mapping(found, "a file")
    try:
        path, size, blob, algorithm = (given[k] for k in ("path", "size", "blob", "algorithm"))
        return StoredFile(path, size, blob, algorithm, given.get("changed", 0))
    except KeyError as error:
        raise _bad(f"a file has no {error.args[0]!r}") from None


def _is_inside(path: str) -> bool:
    """Return whether a path is a plain one below its folder."""
    parts = PurePosixPath(path).parts
    plain = path.isprintable() and "\\" not in path and str(PurePosixPath(path)) == path
    return bool(parts) and plain and path[0] != "/" and ".." not in parts and len(path) <= 1024


def _must_be_a_tree(repository: str, files: tuple[StoredFile, ...]) -> None:
    """Raise BadManifest for a name that is there twice, or that is a file and a folder; and for no
    or too many files."""
    if not 0 < len(files) <= MOST_FILES:
        raise _bad(f"{repository}: expected 1 to {MOST_FILES} files")
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


def _bad(what: str) -> BadManifest:
    return BadManifest(
        f"the list of the model's files cannot be used: {what}",
        "what wrote it is not a hub, or it was changed; `models pull` asks for it again",
    )
