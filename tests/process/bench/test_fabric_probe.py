"""The program of `bench fabric` that runs as a Ray job: its parts, and all of it on stand-ins."""

import ast
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from spark_cluster.bench import fabric_probe as probe

ADDRESSES = ["192.168.177.11", "192.168.177.12"]
FAKE_RAY = """\
import time


def init(**_given):
    time.sleep(600)
"""


class Group(SimpleNamespace):
    """A process group of two ranks: each all-reduce is a meeting of both, or the test fails."""

    ReduceOp = SimpleNamespace(MAX="max")

    def init_process_group(self, backend: str, **given: Any) -> None:
        self.joined.append({"backend": backend, **given})

    def all_reduce(self, data: Any, op: str = "sum") -> None:
        self.sizes.add(data.bytes)
        self.barrier.wait(timeout=60)


def tensor(count: int, **_: Any) -> Any:
    """An array of four bytes each."""
    return SimpleNamespace(bytes=4 * count, element_size=lambda: 4, item=float, copy_=lambda _: 0)


class Actor:
    """An object whose methods are called in a thread of its own, one after the other."""

    def __init__(self, made: Any) -> None:
        self.made, self.pool = made, ThreadPoolExecutor(1)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.made, name)
        return SimpleNamespace(remote=lambda *given: self.pool.submit(call, *given))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Ray of two nodes and a PyTorch without a GPU, as far as the program asks them."""
    found = SimpleNamespace(options=[], shutdown=mock.Mock())
    group = Group(joined=[], sizes=set(), barrier=threading.Barrier(2))
    torch = SimpleNamespace(
        __version__="2.11.0", cuda=SimpleNamespace(is_available=lambda: False), float32="",
        distributed=group, empty=tensor, zeros=tensor, ones=tensor,
        tensor=lambda values, **_: tensor(len(values)), add=lambda *_, **_given: None,
    )  # fmt: skip

    def placed(kind: type, **options: Any) -> Any:
        found.options.append(options)
        return SimpleNamespace(remote=lambda: Actor(kind()))

    alive = [
        {"NodeManagerAddress": address, "NodeID": f"id of {address}", "Alive": True}
        for address in reversed(ADDRESSES)
    ]
    dead = {"NodeManagerAddress": ADDRESSES[0], "NodeID": "dead", "Alive": False}
    ray = SimpleNamespace(
        __version__="2.60.0", init=lambda **_: None, shutdown=found.shutdown,
        nodes=lambda: [*alive, dead],
        remote=lambda kind: SimpleNamespace(options=partial(placed, kind)),
        get=lambda futures, timeout: [future.result(timeout) for future in futures],
    )  # fmt: skip
    strategies = SimpleNamespace(
        NodeAffinitySchedulingStrategy=lambda node_id, soft: (node_id, soft)
    )
    modules = {
        "torch": torch,
        "torch.distributed": group,
        "ray": ray,
        "ray.util": SimpleNamespace(scheduling_strategies=strategies),
        "ray.util.scheduling_strategies": strategies,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(probe, "BUDGET_S", 0.0)
    # It would end the tests' own process.
    monkeypatch.setattr(probe, "end_at", lambda _until: None)
    found.group = group
    return found


@pytest.mark.parametrize("limit_s", [900.0, probe.RESERVE_S - 1])
def test_both_nodes_measure_each_size_for_which_there_is_time(cluster, capsys, limit_s):
    sizes = [8, 10752]
    probe.main(json.dumps({"addresses": ADDRESSES, "sizes": sizes, "limit_s": limit_s}))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(probe.MARK)
    found = json.loads(last.removeprefix(probe.MARK))
    measured = [row["bytes"] for row in found["allreduce"]]
    assert (measured, found["left_out"]) == ((sizes, []) if limit_s > 60 else ([], sizes))
    for row in found["allreduce"]:
        assert len(row["seconds"]) == probe.REPEATS
        assert min(row["seconds"]) > 0
    assert {*measured} <= cluster.group.sizes
    assert (found["backend"], found["torch"], found["ray"]) == ("gloo", "2.11.0", "2.60.0")
    assert [set(node) for node in found["nodes"]] == [{"device", "memory", "log"}] * 2
    assert min(found["nodes"][0]["memory"]["triad"]) > 0
    assert {one["rank"] for one in cluster.group.joined} == {0, 1}
    assert {one["init_method"].rpartition(":")[0] for one in cluster.group.joined} == {
        f"tcp://{ADDRESSES[0]}"
    }
    hard = [(f"id of {address}", False) for address in ADDRESSES]
    assert [one["scheduling_strategy"] for one in cluster.options] == hard
    assert {one["num_gpus"] for one in cluster.options} == {1}
    cluster.shutdown.assert_called_once_with()


def test_it_ends_at_its_limit(tmp_path):
    """Also when Ray never answers, and no laptop is there any more."""
    (tmp_path / "ray/util").mkdir(parents=True)
    (tmp_path / "ray/__init__.py").write_text(FAKE_RAY)
    (tmp_path / "ray/util/__init__.py").write_text("")
    strategies = "class NodeAffinitySchedulingStrategy: pass\n"
    (tmp_path / "ray/util/scheduling_strategies.py").write_text(strategies)
    request = json.dumps({"addresses": ADDRESSES, "limit_s": 0.2})
    argv = [sys.executable, str(Path(probe.__file__)), request]
    began = time.monotonic()
    env = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == probe.LATE
    assert done.stdout == "the job's time is over\n"
    assert time.monotonic() - began < 120


def test_it_needs_the_standard_library_only():
    """It is sent as one file, into images that have their own Ray and PyTorch."""
    tree = ast.parse(Path(probe.__file__).read_text())
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("seconds", "budget", "count"),
    [(0.001, 0.2, 200), (5.0, 0.2, 1), (1e-9, 0.2, probe.MOST), (0.0, 0.2, probe.MOST)],
)
def test_repetitions(seconds, budget, count):
    assert probe.repetitions(seconds, budget) == count


def test_lines_of_nccl():
    """As NCCL 2.28 prints them."""
    said = Path(__file__).with_name("nccl.log").read_text()
    found = probe.telling_lines(said + "x NET/IB " + "y" * 1000)
    assert [line.rpartition("INFO ")[2] for line in found[:3]] == [
        "NCCL version 2.28.9+cuda13.0",
        "NET/IB : No device found.",
        "Using network Socket",
    ]
    assert len(found[3]) == probe.LOG_CHARACTERS
    assert len(probe.telling_lines("\n".join(f"NET/IB {n}" for n in range(500)))) == probe.LOG_LINES
