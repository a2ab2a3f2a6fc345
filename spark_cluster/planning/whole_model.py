"""The weights of a whole model and its drafter, of which each node holds a share."""

from __future__ import annotations

from spark_cluster.config.launch import Launch
from spark_cluster.models.memory import GIB
from spark_cluster.models.weights import drafter_bytes
from spark_cluster.planning.kv.drafter import is_mtp
from spark_cluster.planning.speed.serving import Serving


def whole_gib(launch: Launch, serving: Serving) -> float:
    """Return the weights of the whole model and its drafter, GiB: of the tensors where they are
    known and lie in the format that is served, else as a server logged it, else computed; with the
    tables of positions of every rank.

    Raises:
        UsageError: nothing says it.
    """
    geometry = serving.geometry
    more = launch.tp * launch.pp * geometry.tables_bytes / GIB
    drafter = drafter_bytes(geometry.drafter) / GIB
    if geometry.stored is not None and serving.weights.counted:
        mtp = is_mtp(launch.speculative, launch.model)
        return serving.weights.memory_bytes(drafter=mtp) / GIB + more + drafter
    return (launch.weights_gib or serving.weights.memory_bytes() / GIB + more) + drafter
