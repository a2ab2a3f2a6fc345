"""A revision that is on this node, whoever fetched it: its manifest, and what of it is missing."""

from __future__ import annotations

import re
from pathlib import Path

from spark_cluster.node.faults import explain
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.records import Records
from spark_cluster.node.values import ResourceError

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".nemo")
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.\w+)")

PULL = "`spark-cluster models pull` fetches what is missing"


def manifest_of(cache: HubCache, records: Records, repository: str, commit: str) -> Manifest:
    """Return the manifest that we keep of a revision, else that of a whole snapshot of another
    tool.

    Raises:
        ResourceError: neither is there; with what is wrong with the snapshot.
    """
    kept = records.manifest(repository, commit)
    return kept or adopted(cache, repository, commit)


def adopted(cache: HubCache, repository: str, commit: str) -> Manifest:
    """Return the manifest of a snapshot that another tool has downloaded, from its links.

    Raises:
        ResourceError: it is not there, not whole, or has a damaged index.
    """
    try:
        found = cache.found(repository, commit)
    except OSError as error:
        raise ResourceError(f"{repository}@{commit[:12]}: {explain(error)}") from error
    names = [Path(file.path).name for file in found.files]
    if not any(name.endswith(_WEIGHTS) for name in names):
        raise ResourceError(
            f"{repository}: {len(names)} files of revision {commit[:12]} are there, and no weights",
            PULL,
        )
    lost = _lost_shards({file.path for file in found.files})
    if lost:
        raise ResourceError(f"{repository}: {lost[0]} is not there ({len(lost)} missing)", PULL)
    return found


def _lost_shards(paths: set[str]) -> list[str]:
    """Return the files that the numbers in the others' names (00001-of-00004) ask for."""
    wanted = set()
    for path in paths:
        found = _SHARD.fullmatch(path)
        if found and int(found["count"]) <= len(paths) * 1000:
            stem, count, end = found["stem"], int(found["count"]), found["end"]
            numbers = range(1, min(count, 10_000) + 1)
            wanted |= {f"{stem}-{number:05}-of-{count:05}{end}" for number in numbers}
    return sorted(wanted - paths)
