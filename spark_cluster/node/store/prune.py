"""Removing revisions: the least recently used first, and never what is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.records import Records
from spark_cluster.node.store.usage import RepositoryUsage, Revision, Usage, is_half
from spark_cluster.node.values import ResourceError

AT_WORK_S = 600.0
"""Seconds after the last write to a half file until which someone is taken to download there."""

LOCK_S = 2.0
"""Seconds in which a repository must be free of a download or copy of ours."""


@dataclass(frozen=True)
class Wish:
    """What is to be removed.

    Attributes:
        keep: (repository, revision) that recipes need; with an unknown branch all is kept.
        only: ORG/NAME or ORG/NAME@COMMIT; empty for all.
        free: bytes that are to be freed, at which it stops; 0 for all that may go.
        unused_s: only what was not used for so many seconds.
    """

    keep: tuple[tuple[str, str], ...] = ()
    only: tuple[str, ...] = ()
    free: int = 0
    unused_s: float = 0.0


@dataclass(frozen=True)
class Pruning:
    """What goes and what stays.

    Attributes:
        removed: in the order in which they go.
        kept: revisions that stay although they were wished away, and why.
        freed: bytes.
    """

    removed: tuple[Revision, ...]
    kept: tuple[tuple[Revision, str], ...]
    freed: int


def plan(cache: HubCache, found: Usage, wish: Wish, now: float) -> Pruning:
    """Choose what may go, the least recently used first; nothing is changed."""
    needed = _needed(cache, wish.keep)
    removed: list[Revision] = []
    kept: list[tuple[Revision, str]] = []
    for revision in found.revisions:
        if wish.only and not {revision.repository, revision.name} & set(wish.only):
            continue
        reason = _reason(found.repositories[revision.repository], revision, needed, now)
        if not reason and now - revision.last_used < wish.unused_s:
            reason = "used recently"
        if not reason and wish.free and found.freed(removed) >= wish.free:
            reason = "enough is freed"
        if reason:
            kept.append((revision, reason))
        else:
            removed.append(revision)
    return Pruning(tuple(removed), tuple(kept), found.freed(removed))


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


def remove(cache: HubCache, records: Records, found: Usage, pruning: Pruning) -> Pruning:
    """Remove what was planned; what is being downloaded just now stays.

    Raises:
        OSError: something cannot be removed.
    """
    removed: list[Revision] = []
    kept = list(pruning.kept)
    for name in dict.fromkeys(revision.repository for revision in pruning.removed):
        group = [revision for revision in pruning.removed if revision.repository == name]
        try:
            with alone(cache, name, LOCK_S):
                _remove(cache, found.repositories[name], group)
        except ResourceError:
            kept += [(revision, "something is being downloaded there") for revision in group]
            continue
        for revision in group:
            records.forget(name, revision.commit)
        removed += group
    return replace(pruning, removed=tuple(removed), kept=tuple(kept), freed=found.freed(removed))


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
