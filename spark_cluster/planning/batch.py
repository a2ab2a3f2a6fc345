"""The batch of a launch, and the memory of a server that grows with it."""

from __future__ import annotations

from collections.abc import Sequence

from spark_cluster.config.launch import Launch
from spark_cluster.planning.room import NodeMemory
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.planning.speed.serving import BATCHED_TOKENS

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


def runtime_gib(launch: Launch, rooms: Sequence[NodeMemory], measured: float | None) -> float:
    """Return the memory of a server that is neither weights nor cache, GiB.

    Args:
        measured: at a batch of 2,048 tokens, of own starts; None for what is published.
    """
    own = has_own_memory(rooms)
    usual = OWN_RUNTIME_GIB if own else Constants.runtime_gib
    least = usual if measured is None else measured
    return least + for_batch_gib(batched_tokens(launch), own=own)
