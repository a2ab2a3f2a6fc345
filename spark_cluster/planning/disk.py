"""The disk space that a model's files take before it is served."""

from __future__ import annotations

from collections.abc import Iterable

from spark_cluster.config.launch import Launch
from spark_cluster.models.memory import GIB
from spark_cluster.planning import data_parallel
from spark_cluster.planning.room import NodeMemory
from spark_cluster.planning.speed.serving import Serving


def disk_gib(launch: Launch, serving: Serving, peak_gib: float) -> float:
    """Return the size of the model's files: what is loaded at first, less tables of positions.

    Args:
        peak_gib: most that is loaded on one node.
    """
    loaded = (peak_gib - serving.geometry.tables_bytes / GIB) * launch.tp * launch.pp
    return loaded / data_parallel.held(launch, serving)


def lacking_disk(rooms: Iterable[NodeMemory], size_gib: float) -> list[str]:
    """Say which nodes have too little space for a download of that size."""
    return [
        f"{room.name}: {size_gib:.0f} GiB are to be downloaded and {room.disk_free_gib:.0f} are "
        "free"
        for room in rooms
        if room.disk_free_gib is not None and not room.has_model and size_gib > room.disk_free_gib
    ]
