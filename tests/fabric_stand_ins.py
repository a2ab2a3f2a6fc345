"""Stand-ins of Ray and PyTorch for the program of `bench fabric`: actors are threads, and an
all-reduce waits until every rank has come."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

WORLD = 2


class Tensor:
    """A number of elements, and the first of them."""

    def __init__(self, count: int, first: float = 0.0, item: int = 4) -> None:
        self.count, self.first, self.bytes = count, first, item

    def element_size(self) -> int:
        return self.bytes

    def item(self) -> float:
        return self.first

    def copy_(self, other: Tensor) -> None:
        self.first = other.first


class Group:
    """The ranks of a process group: each all-reduce is a meeting of all of them."""

    ReduceOp = SimpleNamespace(MAX="max")

    def __init__(self) -> None:
        self.barrier = threading.Barrier(WORLD)
        self.lock = threading.Lock()
        self.values: list[float] = []
        self.joined: list[dict[str, Any]] = []
        self.sizes: list[int] = []

    def init_process_group(self, backend: str, **given: Any) -> None:
        self.joined.append({"backend": backend, **given})

    def all_reduce(self, data: Tensor, op: str = "sum") -> None:
        with self.lock:
            self.values.append(data.first)
            self.sizes.append(data.count * data.bytes)
        self.barrier.wait(timeout=60)
        if op == "max":
            data.first = max(self.values[-WORLD:])
        self.barrier.wait(timeout=60)


def torch_module(group: Group) -> Any:
    """A torch without a GPU."""
    return SimpleNamespace(
        __version__="2.11.0",
        cuda=SimpleNamespace(is_available=lambda: False),
        bfloat16="bfloat16",
        float32="float32",
        distributed=group,
        empty=lambda _count, **_given: Tensor(0),
        zeros=lambda count, **_given: Tensor(count),
        ones=lambda count, **_given: Tensor(count, 1.0),
        tensor=lambda values, **_given: Tensor(len(values), values[0]),
        add=lambda _b, _c, **_given: None,
    )


class Actor:
    """An object whose methods are called in a thread of its own, one after the other."""

    def __init__(self, made: Any) -> None:
        self.made, self.pool = made, ThreadPoolExecutor(1)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.made, name)
        return SimpleNamespace(remote=lambda *given: self.pool.submit(call, *given))


class Ray:
    """A cluster of two nodes.

    Attributes:
        placed: the node of each actor, in the order in which they were made.
    """

    __version__ = "2.60.0"

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.placed: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.ended = False

    def init(self, **_given: Any) -> None:
        pass

    def shutdown(self) -> None:
        self.ended = True

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"NodeManagerAddress": self.addresses[0], "NodeID": "dead", "Alive": False}
        alive = [
            {"NodeManagerAddress": address, "NodeID": f"id of {address}", "Alive": True}
            for address in self.addresses
        ]
        return [*alive[::-1], dead]

    def remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            self.placed.append(given["scheduling_strategy"].node_id)
            self.options.append(given)
            return SimpleNamespace(remote=lambda: Actor(kind()))

        return SimpleNamespace(options=options)

    def get(self, futures: list[Future[Any]], timeout: float) -> list[Any]:
        return [future.result(timeout) for future in futures]


class Affinity:
    """Ray's NodeAffinitySchedulingStrategy."""

    def __init__(self, node_id: str, *, soft: bool) -> None:
        assert not soft, "a task that runs elsewhere measures another node"
        self.node_id = node_id
