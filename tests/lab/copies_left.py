"""What a copy between nodes must not leave on them: its folder with the keys, and its processes."""

from __future__ import annotations

from spark_cluster_lab import LabNode

FOLDER = "/run/spark-cluster/copies"


def left_of_copies(node: LabNode) -> list[str]:
    """Return the folders and the numbers of processes of copies on a node, but for their lock."""
    folders = node.run(["ls", FOLDER], check=False).stdout.split()
    processes = node.run(["pgrep", "--full", "copy_work:main"], check=False).stdout.split()
    return [*(name for name in folders if "lock" not in name), *processes]
