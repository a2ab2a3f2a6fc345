"""The program of `bench fabric` that runs as a Ray job: its parts, and all of it on stand-ins."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fabric_stand_ins import Affinity, Group, Ray, torch_module

from spark_cluster.bench import fabric_probe as probe

ADDRESSES = ["192.168.177.11", "192.168.177.12"]
FAKE_RAY = """\
import time


def init(**_given):
    time.sleep(600)
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray and PyTorch as stand-ins."""
    group, ray = Group(), Ray(*ADDRESSES)
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=Affinity)
    modules = {
        "torch": torch_module(group),
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
    return SimpleNamespace(group=group, ray=ray)


def request(**changed: Any) -> str:
    return json.dumps({"addresses": ADDRESSES, "sizes": [8, 10752], "limit_s": 900.0, **changed})


def result(printed: str) -> dict[str, Any]:
    last = printed.splitlines()[-1]
    assert last.startswith(probe.MARK)
    found: dict[str, Any] = json.loads(last.removeprefix(probe.MARK))
    return found


def test_all_of_it(cluster, capsys):
    probe.main(request())
    found = result(capsys.readouterr().out)
    assert cluster.ray.placed == [f"id of {address}" for address in ADDRESSES]
    assert [row["bytes"] for row in found["allreduce"]] == [8, 10752]
    assert {len(row["seconds"]) for row in found["allreduce"]} == {probe.REPEATS}
    assert all(value > 0 for row in found["allreduce"] for value in row["seconds"])
    assert {8, 10752} <= set(cluster.group.sizes)
    assert found["backend"] == "gloo"
    assert (found["torch"], found["ray"]) == ("2.11.0", "2.60.0")
    assert [set(node) for node in found["nodes"]] == [{"device", "memory", "log"}] * 2
    assert min(found["nodes"][0]["memory"]["triad"]) > 0
    assert {one["rank"] for one in cluster.group.joined} == {0, 1}
    assert {one["init_method"].rpartition(":")[0] for one in cluster.group.joined} == {
        f"tcp://{ADDRESSES[0]}"
    }
    assert {option["num_gpus"] for option in cluster.ray.options} == {1}
    assert cluster.ray.ended


@pytest.mark.usefixtures("cluster")
def test_no_size_is_begun_without_time_for_it(capsys):
    probe.main(request(limit_s=probe.RESERVE_S - 1))
    found = result(capsys.readouterr().out)
    assert found["left_out"] == [8, 10752]
    assert found["allreduce"] == []


@pytest.mark.usefixtures("cluster")
def test_a_node_that_is_not_in_the_cluster():
    with pytest.raises(LookupError, match=r"not in the Ray cluster: 10\.0\.0\.9"):
        probe.main(request(addresses=[ADDRESSES[0], "10.0.0.9"]))


def test_it_ends_at_its_limit(tmp_path):
    """Also when Ray never answers, and no laptop is there any more."""
    (tmp_path / "ray/util").mkdir(parents=True)
    (tmp_path / "ray/__init__.py").write_text(FAKE_RAY)
    (tmp_path / "ray/util/__init__.py").write_text("")
    strategies = "class NodeAffinitySchedulingStrategy: pass\n"
    (tmp_path / "ray/util/scheduling_strategies.py").write_text(strategies)
    argv = [sys.executable, str(Path(probe.__file__)), request(limit_s=0.2)]
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
    said = """\
vm:584:584 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
vm:584:584 [0] NCCL INFO dlvsym failed on mlx5dv_reg_dmabuf_mr
vm:584:584 [0] NCCL INFO NET/IB : No device found.
vm:584:584 [0] NCCL INFO Using network Socket
vm:584:584 [0] NCCL INFO Using network Socket
"""
    found = probe.telling_lines(said + "x NET/IB " + "y" * 1000)
    assert [line.rpartition("INFO ")[2] for line in found[:3]] == [
        "NCCL version 2.28.9+cuda13.0",
        "NET/IB : No device found.",
        "Using network Socket",
    ]
    assert len(found[3]) == probe.LOG_CHARACTERS
    assert len(probe.telling_lines("\n".join(f"NET/IB {n}" for n in range(500)))) == probe.LOG_LINES
