"""Clusters as programs use them: `from spark_cluster import Cluster`."""

from __future__ import annotations

from spark_cluster.cluster.opened import Opened


class Cluster(Opened):
    """One or more nodes of an inventory, and what can be done with them."""
