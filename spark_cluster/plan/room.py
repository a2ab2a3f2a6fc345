"""The resources of a node: its memory and disk, who holds what of it, what a batch adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from spark_cluster.config.facts import Facts, GpuProcess, Memory
from spark_cluster.config.launch import Launch
from spark_cluster.config.schema import Document, Hidden, Rounded, printed
from spark_cluster.models.memory_share import GIB, GIB_KIB
from spark_cluster.plan.speed.constants import Constants
from spark_cluster.plan.speed.serving import BATCHED_TOKENS

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
    held: Annotated[tuple[GpuProcess, ...], Field(serialization_alias="held_by")] = ()
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


def of_facts(name: str, facts: Facts, held: Iterable[GpuProcess], *, has_model: bool) -> NodeMemory:
    """A node that was asked."""
    return NodeMemory(
        name,
        facts.gpu_memory,
        tuple(held),
        facts.disk_free_bytes / GIB if facts.disk_free_bytes else None,
        has_model,
        gpu=facts.gpu.name if facts.gpu else "",
    )


LARGE_GPUS = ((160.0, 16_384), (70.0, 8192))
"""GiB of a GPU's own memory, and the default from there on (source: vllm-source)."""

NEVER_LARGE = "A100"
"""GPUs of this name have the small default whatever their memory is."""

RUNTIME_GIB_PER_TOKEN = 0.6 / (65536 - 2048)
"""What the runtime grows by with each token of a batch above 2,048."""

OWN_RUNTIME_GIB = 0.6
"""What `Constants.runtime_gib` is on a GPU with memory of its own: activations 0.35 to 0.42 and
0.22 outside PyTorch; less with vLLM 0.33 (source: measured-on-h200)."""

OWN_RUNTIME_GIB_PER_TOKEN = 1.1 / (8192 - 2048)
"""The same as RUNTIME_GIB_PER_TOKEN there: 1.6 and 1.8 GiB in all at 8,192, gpt-oss 2.8 and 3.6
(source: measured-on-h200)."""


def batched_tokens(launch: Launch) -> int:
    """--max-num-batched-tokens, or the default."""
    return int(launch.number("max-num-batched-tokens") or BATCHED_TOKENS)


def with_default_batch(launch: Launch, rooms: Sequence[NodeMemory]) -> Launch:
    """Return the launch with the batch that vLLM takes on these GPUs where it is told none."""
    if not has_own_memory(rooms) or launch.number("max-num-batched-tokens"):
        return launch
    least = min(room.total_gib for room in rooms)
    for gib, tokens in LARGE_GPUS:
        if least >= gib and not any(NEVER_LARGE in room.gpu for room in rooms):
            return launch.with_flags({"max-num-batched-tokens": tokens})
    return launch


def has_own_memory(rooms: Sequence[NodeMemory]) -> bool:
    """Return whether the GPUs of nodes have memory of their own."""
    return bool(rooms) and all(room.memory.of_gpu for room in rooms)


def for_batch_gib(tokens: int, *, own: bool = False) -> float:
    """Return what a batch of so many tokens adds to the runtime at 2,048.

    Args:
        own: the GPU has memory of its own.
    """
    each = OWN_RUNTIME_GIB_PER_TOKEN if own else RUNTIME_GIB_PER_TOKEN
    return each * max(0, tokens - 2048)


def runtime_on(launch: Launch, rooms: Sequence[NodeMemory], measured: float | None) -> float:
    """Return the memory of a server that is neither weights nor cache, GiB.

    Args:
        measured: at a batch of 2,048 tokens, of own starts; None for what is published.
    """
    own = has_own_memory(rooms)
    usual = OWN_RUNTIME_GIB if own else Constants.runtime_gib
    least = usual if measured is None else measured
    return least + for_batch_gib(batched_tokens(launch), own=own)
