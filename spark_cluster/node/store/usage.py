"""What the models in a hub cache take, who needs them, and when they were last used; and their
removal: the least recently used first, and never what is needed."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import INCOMPLETE, folder_name
from spark_cluster.node.values import ResourceError

_SEPARATORS = re.compile(r"[\0\s='\"]+")
_FOLDER = re.compile(r"(models--[\w.-]+)(?:/snapshots/([0-9a-f]{40}))?", re.ASCII)

LONGEST_COMMAND = 256 * 1024
"""Bytes of a command line that are read."""

READ_S = 10.0
"""Seconds for the command lines of all processes."""

AT_WORK_S = 600.0
"""Seconds after the last write to a half file until which someone is taken to download there."""

LOCK_S = 2.0
"""Seconds in which a repository must be free of a download or copy of ours."""


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


def usage(cache: HubCache, used: Mapping[str, float], proc: Path) -> Usage:
    """Return what is in a hub cache. Names and sizes are read, and no content.

    Args:
        used: when revisions last served, ORG/NAME@COMMIT to seconds since 1970.
        proc: `/proc`.

    Raises:
        ResourceError: our own notes cannot be read.
    """
    repositories = {name: _repository(cache, name) for name in cache.repositories()}
    pins, busy = cache.records.pins(), in_use(proc, repositories)

    def revision(repository: RepositoryUsage, commit: str) -> Revision:
        name, full = repository.name, f"{repository.name}@{commit}"
        own = repository.holders[commit]
        here = [blob for blob in own if blob in repository.blobs]
        seen = [repository.blobs[blob] for blob in here]
        read = max((max(about.st_atime, about.st_mtime) for about in seen), default=0.0)
        return Revision(
            name,
            commit,
            refs=tuple(ref for ref, its_commit in repository.refs.items() if its_commit == commit),
            files=len(own),
            size=repository.size(here),
            freed=repository.freed({commit}),
            last_used=used.get(full, read),
            served=full in used,
            pinned=bool({name, full} & pins),
            in_use=busy.get(full) or busy.get(name, ""),
            problem=_problem(cache, name, commit),
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


def _repository(cache: HubCache, name: str) -> RepositoryUsage:
    blobs: dict[str, os.stat_result] = {}
    holders = {}
    with contextlib.suppress(OSError):  # what is behind a link is not this cache's
        blobs = cache.contents(name)
    for commit in cache.commits(name):
        with contextlib.suppress(OSError):
            holders[commit] = frozenset(filter(None, cache.links(name, commit).values()))
    return RepositoryUsage(name, blobs, holders, cache.refs(name))


def _problem(cache: HubCache, repository: str, commit: str) -> str:
    """Return what is missing or damaged in a revision, as names and sizes show; else nothing."""
    _, missing, problem = cache.held(repository, commit)
    return problem if missing is None else missing.problem


def in_use(proc: Path, repositories: Collection[str]) -> dict[str, str]:
    """Return which revisions (or, where a process names none, repositories) are in use, and by
    which process.

    Args:
        proc: `/proc`.
        repositories: the ones that are looked for.

    Returns:
        ORG/NAME@COMMIT or ORG/NAME to the process's number and name.

    Raises:
        ResourceError: a process does not let its words be read.
    """
    folders = {folder_name(name): name for name in repositories}
    found: dict[str, str] = {}
    for line, text in _command_lines(proc):
        words = _SEPARATORS.split(text)
        names = set(words) & set(repositories)
        for folder, commit in _FOLDER.findall(text):
            if folder in folders:
                names.add(folders[folder] + (f"@{commit}" if commit else ""))
        program = words[0].rpartition("/")[2][:40]
        for name in names:
            found.setdefault(name, f"process {line.parent.name} ({program})")
    return found


def _command_lines(proc: Path) -> list[tuple[Path, str]]:
    """Return the command line of each process. Its words may be in a file of a file system of its
    user's own, which need not answer: so they are read in a thread."""
    lines, found = sorted(proc.glob("[0-9]*/cmdline")), list[tuple[Path, str]]()

    def read() -> None:
        for line in lines:
            text = ""
            with contextlib.suppress(OSError), line.open("rb") as opened:  # it may have ended
                text = opened.read(LONGEST_COMMAND).decode("utf-8", "replace")
            found.append((line, text))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(READ_S)
    if reader.is_alive():
        number = lines[min(len(found), len(lines) - 1)].parent.name
        raise ResourceError(
            f"process {number} does not let its command line be read, which tells what it uses",
            f"look at it there, and end it: ls -l /proc/{number}/exe; kill -9 {number}",
        )
    return found


Kept = list[tuple[Revision, str]]
"""Revisions that stay although they were wished away, and why."""


def plan(
    cache: HubCache,
    found: Usage,
    now: float,
    *,
    keep: Iterable[tuple[str, str]] = (),
    only: Collection[str] = (),
    free: int = 0,
    unused_s: float = 0.0,
) -> tuple[list[Revision], Kept]:
    """Choose what may go, the least recently used first; nothing is changed.

    Args:
        keep: (repository, revision) that recipes need; with an unknown branch all is kept.
        only: ORG/NAME or ORG/NAME@COMMIT; empty for all.
        free: bytes that are to be freed, at which it stops; 0 for all that may go.
        unused_s: only what was not used for so many seconds.

    Returns:
        What goes, in this order, and what stays.
    """
    needed = _needed(cache, keep)
    removed: list[Revision] = []
    kept: Kept = []
    for revision in found.revisions:
        if only and not {revision.repository, revision.name} & set(only):
            continue
        reason = _reason(found.repositories[revision.repository], revision, needed, now)
        if not reason and now - revision.last_used < unused_s:
            reason = "used recently"
        if not reason and free and found.freed(removed) >= free:
            reason = "enough is freed"
        if reason:
            kept.append((revision, reason))
        else:
            removed.append(revision)
    return removed, kept


def _needed(cache: HubCache, keep: Iterable[tuple[str, str]]) -> set[str]:
    """The revisions that recipes need: ORG/NAME@COMMIT, or ORG/NAME where the commit is unknown."""
    names = set()
    for repository, revision in keep:
        with contextlib.suppress(ResourceError):  # no hub has such a name, and no cache
            commit = cache.commit_of(repository, revision)
            known = commit is not None and commit in cache.commits(repository)
            names.add(f"{repository}@{commit}" if known else repository)
    return names


def _reason(
    repository: RepositoryUsage, revision: Revision, needed: Collection[str], now: float
) -> str:
    if revision.in_use:
        return f"in use by {revision.in_use}"
    if revision.pinned:
        return "pinned"
    if revision.name in needed or revision.repository in needed:
        return "a recipe needs it"
    halves = [about for name, about in repository.blobs.items() if is_half(name)]
    if any(now - half.st_mtime < AT_WORK_S for half in halves):
        return "something is being downloaded there"
    return ""


def remove(
    cache: HubCache, found: Usage, chosen: Iterable[Revision]
) -> tuple[list[Revision], Kept]:
    """Remove what was chosen; what is being downloaded just now stays.

    Returns:
        What was removed, and what stays.

    Raises:
        OSError: something cannot be removed.
    """
    removed: list[Revision] = []
    kept: Kept = []
    groups: dict[str, list[Revision]] = {}
    for revision in chosen:
        groups.setdefault(revision.repository, []).append(revision)
    for name, group in groups.items():
        try:
            with alone(cache, name, LOCK_S):
                _remove(cache, found.repositories[name], group)
        except ResourceError:
            kept += [(revision, "something is being downloaded there") for revision in group]
            continue
        for revision in group:
            cache.records.forget(name, revision.commit)
        removed += group
    return removed, kept


def _remove(cache: HubCache, repository: RepositoryUsage, revisions: list[Revision]) -> None:
    """Remove refs, then links, then blobs: what a power cut leaves is not taken for whole."""
    folder = cache.folder(repository.name)
    commits = {revision.commit for revision in revisions}
    going = repository.goes(commits)
    for revision in revisions:
        for ref in revision.refs:
            cache.files.remove(folder / "refs" / ref)
        cache.files.remove(cache.snapshot(repository.name, revision.commit))
    if commits >= set(repository.holders):
        cache.files.remove(folder)
        return
    for blob in sorted(going):
        cache.files.remove(folder / "blobs" / blob)
    if going:
        cache.files.sync(folder / "blobs")
