"""What the models in a hub cache take, who needs them, and when they were last used."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_cluster.node.faults import explain
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.layout import INCOMPLETE
from spark_cluster.node.store.records import Records, manifest_of
from spark_cluster.node.values import ResourceError

_SEPARATORS = re.compile(rb"[\0\s='\"]+")
_FOLDER = re.compile(r"models--([\w.-]+)(?:/snapshots/([0-9a-f]{40}))?", re.ASCII)

LONGEST_COMMAND = 256 * 1024
"""Bytes of a command line that are read."""


@dataclass(frozen=True)
class Blob:
    """A file below `blobs/`.

    Attributes:
        size: bytes.
        shared: another cache has a hard link to it, so that removing it here frees nothing.
        used: when it was last read or written, seconds since 1970, as far as the disk keeps it.
        changed: when it was last written.
        inode: device and number.
    """

    size: int
    shared: bool
    used: float
    changed: float
    inode: tuple[int, int]


@dataclass(frozen=True)
class Revision:
    """A snapshot that is in the cache.

    Attributes:
        refs: branches and tags that have this commit.
        size: bytes of its blobs.
        freed: bytes that removing it alone would free.
        last_used: when it last served, else when a blob of it was last read or written; seconds
            since 1970.
        served: `last_used` is when it served.
        in_use: the process that has it; empty for none.
        problem: what is missing or damaged, as far as names and sizes show; empty if it is whole.
    """

    repository: str
    commit: str
    refs: tuple[str, ...]
    files: int
    size: int
    freed: int
    last_used: float
    served: bool
    pinned: bool
    in_use: str
    problem: str

    @property
    def name(self) -> str:
        """ORG/NAME@COMMIT."""
        return f"{self.repository}@{self.commit}"


@dataclass
class RepositoryUsage:
    """The blobs of a repository, and which revision has which."""

    name: str
    blobs: Mapping[str, Blob] = field(default_factory=dict)
    holders: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Commit to the names of its blobs."""
    refs: Mapping[str, str] = field(default_factory=dict)

    def freed(self, commits: Collection[str]) -> int:
        """Bytes that removing these revisions would free; with all of them, all blobs go."""
        return sum(self.blobs[blob].size for blob in self.goes(commits) if not self._shared(blob))

    def goes(self, commits: Collection[str]) -> set[str]:
        """Blobs that no other revision has; half files go with the last revision."""
        kept = [blobs for commit, blobs in self.holders.items() if commit not in commits]
        if not kept:
            return set(self.blobs)
        own = set().union(*(self.holders.get(commit, frozenset()) for commit in commits))
        return (own & set(self.blobs)).difference(*kept)

    def _shared(self, blob: str) -> bool:
        return self.blobs[blob].shared


@dataclass(frozen=True)
class Usage:
    """All models of a hub cache.

    Attributes:
        revisions: the least recently used first.
        size: bytes of all blobs, each counted once.
        unfinished: bytes of half files.
        unused: bytes of whole blobs that no revision has.
    """

    revisions: tuple[Revision, ...]
    repositories: Mapping[str, RepositoryUsage]
    size: int
    unfinished: int
    unused: int

    def freed(self, revisions: Collection[Revision]) -> int:
        """Bytes that removing these revisions together would free."""
        names = {revision.repository for revision in revisions}
        return sum(
            self.repositories[name].freed({r.commit for r in revisions if r.repository == name})
            for name in names
        )


def usage(cache: HubCache, records: Records, proc: Path = Path("/proc")) -> Usage:
    """Return what is in a hub cache. Names and sizes are read, and no content.

    Raises:
        ResourceError: our own notes cannot be read.
    """
    repositories = {name: _repository(cache, name) for name in cache.repositories()}
    known = _Known(records.used(), records.pins(), in_use(proc, repositories))
    revisions = [
        _revision(repository, commit, known, problem_of(cache, records, repository.name, commit))
        for repository in repositories.values()
        for commit in repository.holders
    ]
    blobs = [
        (name, blob, repository)
        for repository in repositories.values()
        for name, blob in repository.blobs.items()
    ]
    held = {r.name: set().union(*r.holders.values()) for r in repositories.values()}
    return Usage(
        tuple(sorted(revisions, key=lambda revision: (revision.last_used, revision.name))),
        repositories,
        size=sum({blob.inode: blob.size for _, blob, _ in blobs}.values()),
        unfinished=sum(blob.size for name, blob, _ in blobs if name.endswith(INCOMPLETE)),
        unused=sum(
            blob.size
            for name, blob, repository in blobs
            if not name.endswith(INCOMPLETE) and name not in held[repository.name]
        ),
    )


def _repository(cache: HubCache, name: str) -> RepositoryUsage:
    blobs: dict[str, Blob] = {}
    holders = {}
    with contextlib.suppress(OSError):  # what is behind a link is not this cache's
        blobs = {blob: _blob(blob, about) for blob, about in cache.contents(name).items()}
    for commit in cache.commits(name):
        with contextlib.suppress(OSError):
            holders[commit] = frozenset(filter(None, cache.links(name, commit).values()))
    return RepositoryUsage(name, blobs, holders, cache.refs(name))


def _blob(name: str, about: os.stat_result) -> Blob:
    return Blob(
        min(about.st_size, about.st_blocks * 512) if name.endswith(INCOMPLETE) else about.st_size,
        about.st_nlink > 1,
        max(about.st_atime, about.st_mtime),
        about.st_mtime,
        (about.st_dev, about.st_ino),
    )


@dataclass(frozen=True)
class _Known:
    """What is known of revisions by their names; see `Records` and `in_use`."""

    used: Mapping[str, float]
    pins: Collection[str]
    busy: Mapping[str, str]


def _revision(repository: RepositoryUsage, commit: str, known: _Known, problem: str) -> Revision:
    name = repository.name
    own = repository.holders[commit]
    here = [repository.blobs[blob] for blob in own if blob in repository.blobs]
    whole = f"{name}@{commit}"
    read = max((blob.used for blob in here), default=0.0)
    return Revision(
        name,
        commit,
        refs=tuple(ref for ref, its_commit in repository.refs.items() if its_commit == commit),
        files=len(own),
        size=sum(blob.size for blob in here),
        freed=repository.freed({commit}),
        last_used=known.used.get(whole, read),
        served=whole in known.used,
        pinned=name in known.pins or whole in known.pins,
        in_use=known.busy.get(whole) or known.busy.get(name, ""),
        problem=problem,
    )


def problem_of(cache: HubCache, records: Records, repository: str, commit: str) -> str:
    """Return what is missing or damaged in a revision, as names and sizes show; else nothing."""
    try:
        lacking = cache.lacking(manifest_of(cache, records, repository, commit))
    except ResourceError as error:
        return error.message
    except OSError as error:
        return explain(error)
    if lacking.foreign:
        return f"others can write {len(lacking.foreign)} files; `models pull` copies them"
    if lacking.blobs:
        return f"{len(lacking.blobs)} files with {lacking.size} bytes are missing"
    return f"{len(lacking.links)} links are missing or broken" if lacking.links else ""


def in_use(proc: Path, repositories: Collection[str]) -> dict[str, str]:
    """Return which revisions (or, where a process names none, repositories) are in use, and by
    which process.

    Args:
        proc: `/proc`.
        repositories: the ones that are looked for.

    Returns:
        ORG/NAME@COMMIT or ORG/NAME to the process's number and name.
    """
    folders = {name.replace("/", "--"): name for name in repositories}
    found: dict[str, str] = {}
    for line in sorted(proc.glob("[0-9]*/cmdline")):
        try:
            with line.open("rb") as opened:
                words = _SEPARATORS.split(opened.read(LONGEST_COMMAND))
        except OSError:  # it has ended
            continue
        for name in _named(words, repositories, folders):
            program = words[0].rpartition(b"/")[2].decode("utf-8", "replace")[:40]
            found.setdefault(name, f"process {line.parent.name} ({program})")
    return found


def _named(
    words: Collection[bytes], repositories: Collection[str], folders: dict[str, str]
) -> set[str]:
    names = set()
    for word in words:
        text = word.decode("utf-8", "replace")
        if text in repositories:
            names.add(text)
        for folder, commit in _FOLDER.findall(text):
            if folder in folders:
                names.add(folders[folder] + (f"@{commit}" if commit else ""))
    return names
