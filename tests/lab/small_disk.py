"""A disk of a node that becomes full."""

from collections.abc import Iterator
from contextlib import contextmanager

from spark_cluster_lab import LabNode


@contextmanager
def small_disk(node: LabNode, folder: str, size: str) -> Iterator[None]:
    """A small disk of its own under a folder of a node."""
    node.run(["mkdir", "-p", folder])
    node.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", folder])
    try:
        yield
    finally:
        node.run(["umount", "--lazy", folder])
