"""What the models in a hub cache take, who needs them, and when they were last used."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class RepositoryUsage:
    """The files below `blobs/` of a repository, and which revision has which.

    Attributes:
        holders: commit to the names of its blobs.
    """

    name: str
    blobs: Mapping[str, os.stat_result]
    holders: Mapping[str, frozenset[str]]
    refs: Mapping[str, str]

    def size(self, blobs: Iterable[str]) -> int:
        """Bytes of some of its blobs; what a half file has not yet is a hole."""
        return sum(
            min(about.st_size, about.st_blocks * 512) if is_half(name) else about.st_size
            for name, about in ((name, self.blobs[name]) for name in blobs)
        )

    def freed(self, commits: Collection[str]) -> int:
        """Bytes that removing these revisions would free; with all of them, all blobs go. A file
        of which another cache has a hard link frees nothing."""
        return self.size(blob for blob in self.goes(commits) if self.blobs[blob].st_nlink == 1)

    def goes(self, commits: Collection[str]) -> set[str]:
        """Blobs that no other revision has; half files go with the last revision."""
        kept = [blobs for commit, blobs in self.holders.items() if commit not in commits]
        if not kept:
            return set(self.blobs)
        own = set().union(*(self.holders.get(commit, frozenset()) for commit in commits))
        return (own & set(self.blobs)).difference(*kept)


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
    used, pins, busy = records.used(), records.pins(), in_use(proc, repositories)

    def revision(repository: RepositoryUsage, commit: str) -> Revision:
        name, whole = repository.name, f"{repository.name}@{commit}"
        own = repository.holders[commit]
        here = [blob for blob in own if blob in repository.blobs]
        read = max((_last_access(repository.blobs[blob]) for blob in here), default=0.0)
        return Revision(
            name,
            commit,
            refs=tuple(ref for ref, its_commit in repository.refs.items() if its_commit == commit),
            files=len(own),
            size=repository.size(here),
            freed=repository.freed({commit}),
            last_used=used.get(whole, read),
            served=whole in used,
            pinned=bool({name, whole} & pins),
            in_use=busy.get(whole) or busy.get(name, ""),
            problem=problem_of(cache, records, name, commit),
        )

    revisions = [revision(one, commit) for one in repositories.values() for commit in one.holders]
    revisions.sort(key=lambda one: (one.last_used, one.name))
    return Usage(tuple(revisions), repositories, *_totals(repositories.values()))


def _totals(repositories: Iterable[RepositoryUsage]) -> tuple[int, int, int]:
    """Return the bytes of all blobs, of half files, and of whole blobs that no revision has."""
    size = unfinished = unused = 0
    known = set[tuple[int, int]]()
    for repository in repositories:
        halves = set(filter(is_half, repository.blobs))
        held = set().union(*repository.holders.values())
        unfinished += repository.size(halves)
        unused += repository.size(set(repository.blobs) - halves - held)
        for name, about in repository.blobs.items():
            size += 0 if (about.st_dev, about.st_ino) in known else repository.size([name])
            known.add((about.st_dev, about.st_ino))
    return size, unfinished, unused


def is_half(blob: str) -> bool:
    """Return whether a file below `blobs/` is still being fetched, or was cut."""
    return blob.endswith(INCOMPLETE)


def _last_access(about: os.stat_result) -> float:
    """When a blob was last read or written, as far as the disk keeps it."""
    return max(about.st_atime, about.st_mtime)


def _repository(cache: HubCache, name: str) -> RepositoryUsage:
    blobs: dict[str, os.stat_result] = {}
    holders = {}
    with contextlib.suppress(OSError):  # what is behind a link is not this cache's
        blobs = cache.contents(name)
    for commit in cache.commits(name):
        with contextlib.suppress(OSError):
            holders[commit] = frozenset(filter(None, cache.links(name, commit).values()))
    return RepositoryUsage(name, blobs, holders, cache.refs(name))


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
