"""The inventory of a lab of GPUs, for any number of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from spark_cluster_lab.gpu.layout import FABRIC, MTU, PREFIX, GpuNodeLayout

NODE = """  {name}:
    address: {address}
    connection: local
    namespaces_of: {leader}
    roles: [{role}]
"""
LINK = """    fabric:
      interfaces: [{{name: {interface}, address: {address}/{prefix}, configure: false}}]
"""
TEXT = """# The nodes of `spark-cluster lab up --gpus`, as they are now.

nodes:
{nodes}
fabric:
  mtu: {mtu}
"""


def inventory(nodes: Sequence[GpuNodeLayout]) -> str:
    """Return the text of the file."""
    parts = []
    for node in nodes:
        role = "head" if node.number == 1 else "worker"
        parts.append(
            NODE.format(name=node.name, address=node.address, leader=node.leader, role=role)
        )
        if len(nodes) > 1:
            address = node.fabric_address
            parts.append(LINK.format(interface=FABRIC, address=address, prefix=PREFIX))
    return TEXT.format(nodes="".join(parts), mtu=MTU)
