"""The lab: two simulated Sparks on one Linux machine, booted systems with real Docker inside.

>>> lab = Lab.default()                                     # doctest: +SKIP
>>> lab.up(nodes=2)                                         # doctest: +SKIP
>>> lab.nodes[0].ssh("nvidia-smi -L").stdout                # doctest: +SKIP
"""

from spark_cluster_lab.lab import Lab
from spark_cluster_lab.node import LabNode, ProcessMemory

__all__ = ["Lab", "LabNode", "ProcessMemory"]
