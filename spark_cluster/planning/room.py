"""The resources of a node: its memory and disk, and who holds what of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from spark_cluster.document import Document, Hidden, Rounded, printed
from spark_cluster.facts.model import Facts, Memory, Process
from spark_cluster.models.memory import GIB, GIB_KIB

SPARK = Memory(total_kib=127_600_748, available_kib=123_731_900)
"""A Spark after boot without a desktop (current firmware): 121.69 GiB, 118 of them available."""


@dataclass(frozen=True)
class NodeMemory(Document):
    """The memory of one node.

    Attributes:
        memory: what is for programs on the GPU: the GPU's own, or as on a Spark the machine's.
        held: processes that hold GPU memory now.
        disk_free_gib: of the root file system; None when it is not known.
        has_model: the model's files are there already.
        assumed: no node was asked.
        gpu: its name; empty when it is not known.
    """

    name: str
    memory: Hidden[Memory] = SPARK
    held: Annotated[tuple[Process, ...], Field(serialization_alias="held_by")] = ()
    disk_free_gib: Hidden[float | None] = None
    has_model: Hidden[bool] = False
    assumed: bool = False
    gpu: Hidden[str] = ""

    @printed
    def total_gib(self) -> Annotated[float, Rounded(2)]:
        return self.memory.total_kib / GIB_KIB

    @printed
    def available_gib(self) -> Annotated[float, Rounded(2)]:
        return self.memory.available_kib / GIB_KIB

    @printed
    def held_gib(self) -> Annotated[float, Rounded(2)]:
        """The GPU memory that processes hold."""
        return sum(p.used_mib or 0 for p in self.held) / 1024


def assumed(count: int, available_gib: float | None = None) -> list[NodeMemory]:
    """Return assumed Sparks: idle, without a desktop, unless the available memory is given."""
    memory = SPARK
    if available_gib is not None:
        memory = Memory(SPARK.total_kib, round(available_gib * GIB_KIB))
    return [NodeMemory(f"spark{n}", memory, assumed=True) for n in range(1, count + 1)]


def of_facts(name: str, facts: Facts, held: Iterable[Process], *, has_model: bool) -> NodeMemory:
    """A node that was asked."""
    return NodeMemory(
        name,
        facts.gpu_memory,
        tuple(held),
        facts.disk_free_bytes / GIB if facts.disk_free_bytes else None,
        has_model,
        gpu=facts.gpu.name if facts.gpu else "",
    )
