"""Measure the link and the memory of nodes as a Ray job: `python3 fabric_probe.py REQUEST`.

It travels as the job's working folder and runs in the engine's image, so it has the standard
library and the image's Ray and PyTorch. One actor is pinned to each node and takes its GPU; they
all-reduce with NCCL, or with gloo where there is no GPU. REQUEST is JSON: `addresses` (of the nodes
for Ray, in the order of the ranks), `sizes` (bytes of a message), `limit_s` (seconds for all of
it). The last line that it prints is `MARK` and the result as JSON. It ends by itself at its limit,
whoever has asked for it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

MARK = "spark-cluster-fabric: "

LATE = 7
"""Exit status at the limit."""

PLACE_S = 90.0
"""Seconds in which Ray must have started an actor on each node."""

JOIN_S = 60.0
"""Seconds in which the ranks must meet."""

REPEATS = 5
"""Times that each figure is taken, so that its spread is known."""

BUDGET_S = 1.0
"""Seconds for a message size, or for a kind of copy."""

MOST = 1000
"""Most operations in one repetition."""

RESERVE_S = 60.0
"""Seconds before the limit at which no further size is begun."""

GPU_BYTES, CPU_BYTES = 1 << 30, 128 << 20
"""Bytes of an array for the memory's bandwidth: far more than any cache holds."""

LOG_LINES, LOG_CHARACTERS = 40, 300
"""What is kept of a rank's NCCL log."""

TELLING = ("NET/", "Using network", "NCCL WARN", "NCCL version")
"""Words of the lines of NCCL's log that say which way it takes."""


def repetitions(seconds: float, budget_s: float) -> int:
    """Return how many operations fit into a time; at least one, at most `MOST`."""
    return max(1, min(MOST, int(budget_s / max(seconds, 1e-9))))


def telling_lines(text: str) -> list[str]:
    """Return the lines of NCCL's log that say which network it uses, each once."""
    found = [line.strip()[:LOG_CHARACTERS] for line in text.splitlines()]
    return list(dict.fromkeys(x for x in found if any(word in x for word in TELLING)))[:LOG_LINES]


def chosen_nodes(nodes: Sequence[dict[str, Any]], addresses: Sequence[str]) -> list[str]:
    """Return Ray's ids of the nodes with these addresses, in their order.

    Raises:
        LookupError: one of them is not in the cluster.
    """
    alive = {node["NodeManagerAddress"]: node["NodeID"] for node in nodes if node.get("Alive")}
    missing = [address for address in addresses if address not in alive]
    if missing:
        raise LookupError(f"not in the Ray cluster: {', '.join(missing)}")
    return [str(alive[address]) for address in addresses]


class Rank:
    """A node's part, in a process of its own there."""

    def prepare(self) -> int:
        """Return a free port of this node, for the ranks to meet at."""
        with socket.socket() as listener:
            listener.bind(("", 0))
            port: int = listener.getsockname()[1]
            return port

    def join(self, rank: int, world: int, address: str, port: int) -> dict[str, str]:
        """Join the other ranks; returns what is used for it."""
        self.log_file = f"/tmp/spark-cluster-nccl.{os.getpid()}"  # noqa: S108  (in the container)
        debug = {"DEBUG": "INFO", "DEBUG_SUBSYS": "INIT,NET", "DEBUG_FILE": self.log_file}
        os.environ.update({f"NCCL_{name}": value for name, value in debug.items()})
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.on_gpu = torch.cuda.is_available()
        self.device = "cuda:0" if self.on_gpu else "cpu"
        # The type of a model's activations; gloo has no bfloat16 in older versions.
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float32
        if self.on_gpu:
            torch.cuda.set_device(0)
        backend = "nccl" if self.on_gpu else "gloo"
        dist.init_process_group(
            backend,
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=JOIN_S),
        )
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if self.on_gpu else ""
        name = torch.cuda.get_device_name(0) if self.on_gpu else "CPU"
        return {"backend": backend, "torch": torch.__version__, "nccl": nccl, "device": name}

    def allreduce(self, size: int, budget_s: float) -> list[float]:
        """Return the seconds of one all-reduce of `size` bytes, a mean for each repetition."""
        torch = self.torch
        item = torch.empty(0, dtype=self.dtype).element_size()
        data = torch.zeros(max(1, size // item), dtype=self.dtype, device=self.device)
        self._reduce(data, 1)  # connects, and makes buffers
        count = repetitions(self._agreed(self._reduce(data, 1)), budget_s / REPEATS)
        return [self._reduce(data, count) / count for _ in range(REPEATS)]

    def memory(self, budget_s: float) -> dict[str, Any]:
        """Return bytes/s of the memory: a copy, and a triad `a = b + 3 c`, a list for each."""
        torch = self.torch
        size = GPU_BYTES if self.on_gpu else CPU_BYTES
        a, b, c = (torch.ones(size // 4, device=self.device) for _ in range(3))

        def rates(arrays: int, work: Callable[[], Any]) -> list[float]:
            self._timed(work, 1)
            count = repetitions(self._timed(work, 1), budget_s / REPEATS)
            moved = arrays * size * count
            return [moved / self._timed(work, count) for _ in range(REPEATS)]

        return {
            "bytes": size,
            "copy": rates(2, lambda: a.copy_(b)),
            "triad": rates(3, lambda: torch.add(b, c, alpha=3.0, out=a)),
        }

    def log(self) -> list[str]:
        """Return the lines of NCCL's log that say which network it uses."""
        path = Path(self.log_file)
        text = path.read_text(errors="replace") if path.exists() else ""
        path.unlink(missing_ok=True)
        return telling_lines(text)

    def _agreed(self, seconds: float) -> float:
        """Return the longest of all ranks, so that they do the same number of operations."""
        found = self.torch.tensor([seconds], device=self.device)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX)
        return float(found.item())

    def _reduce(self, data: Any, count: int) -> float:
        """Return the seconds of so many all-reduces, begun by all ranks at the same time."""
        self._agreed(0.0)
        return self._timed(lambda: self.dist.all_reduce(data), count)

    def _timed(self, work: Callable[[], Any], count: int) -> float:
        if self.on_gpu:
            self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            work()
        if self.on_gpu:
            self.torch.cuda.synchronize()
        return time.perf_counter() - start


def measure(ray: Any, ranks: Sequence[Any], request: dict[str, Any], until: float) -> Any:
    """Return the result of all ranks.

    Args:
        ranks: the actors, in the order of the addresses.
        until: the limit on the monotonic clock.
    """

    def all_of(method: str, *arguments: Any, within: float | None = None) -> list[Any]:
        left = max(1.0, until - time.monotonic())
        asked = [getattr(rank, method).remote(*arguments) for rank in ranks]
        return list(ray.get(asked, timeout=min(left, within or left)))

    ports = all_of("prepare", within=PLACE_S)
    address, world = request["addresses"][0], len(ranks)
    joining = [rank.join.remote(n, world, address, ports[0]) for n, rank in enumerate(ranks)]
    joined = ray.get(joining, timeout=PLACE_S + JOIN_S)
    say("memory")
    memory = all_of("memory", BUDGET_S)
    found, left_out = [], []
    for size in request["sizes"]:
        if time.monotonic() > until - RESERVE_S:
            left_out.append(size)
            continue
        say(f"all-reduce of {size} bytes")
        # An operation ends when its last rank has ended.
        slowest = [max(times) for times in zip(*all_of("allreduce", size, BUDGET_S), strict=True)]
        found.append({"bytes": size, "seconds": slowest})
    logs = all_of("log")
    devices = [one["device"] for one in joined]
    versions = {name: joined[0][name] for name in ("backend", "torch", "nccl")}
    nodes = [
        {"device": device, "memory": rates, "log": lines}
        for device, rates, lines in zip(devices, memory, logs, strict=True)
    ]
    return {**versions, "nodes": nodes, "allreduce": found, "left_out": left_out}


def say(text: str) -> None:
    """Print a line at once: it is read while the job goes on."""
    print(text, flush=True)


def end_at(until: float) -> None:
    """End this process at a time, whatever it waits for then; Ray ends its actors with it."""
    time.sleep(max(0.0, until - time.monotonic()))
    say("the job's time is over")
    os._exit(LATE)


def main(text: str) -> None:
    """Measure what a request asks for, and print the result."""
    request = json.loads(text)
    until = time.monotonic() + float(request["limit_s"])
    threading.Thread(target=end_at, args=(until,), daemon=True).start()
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    actor = ray.remote(Rank)
    places = [
        NodeAffinitySchedulingStrategy(node_id, soft=False)
        for node_id in chosen_nodes(ray.nodes(), request["addresses"])
    ]
    ranks = [
        actor.options(num_cpus=0, num_gpus=1, scheduling_strategy=place).remote()
        for place in places
    ]
    result = measure(ray, ranks, request, until)
    result["ray"] = ray.__version__
    say(MARK + json.dumps(result))
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[-1])
