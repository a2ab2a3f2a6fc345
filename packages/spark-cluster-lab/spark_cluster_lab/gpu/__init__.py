"""Nodes with a real GPU each on one Linux machine (`lab up --gpus`).

A node is this machine seen through namespaces of its own: its root is an overlay over the
machine's, its systemd runs as process 1, its network has addresses of its own, and of the GPUs it
has one. No command is a stand-in: what the machine lacks, the node lacks too.
"""

from spark_cluster_lab.gpu.lab import GpuLab

__all__ = ["GpuLab"]
