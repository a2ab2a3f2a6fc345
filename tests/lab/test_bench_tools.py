"""Benchmarks by `vllm bench serve` and by questions, on real vLLM: measured, stopped, refused."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import readme
from bench_results import bench_user, record
from commandline import CommandLine, until
from on_nodes import containers

from spark_cluster.bench.on_node import FOLDER
from spark_cluster.node.measure import CONTAINER

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with bench_user(lab, tmp_path_factory.mktemp("bench-tools"), "open", "slow", "lab") as made:
        yield made


def test_requests_at_a_rate(user, spark1):
    done = user("bench", "run", "open", "--out", "open", "--keep")
    told = record(user.home / "open")
    (cell,) = told["cells"]
    assert cell["status"] == "ok", cell["reason"] + done.printed
    metrics = cell["metrics"]
    assert len(metrics["goodput"]["values"]) == 2
    assert metrics["goodput"]["mean"] > 0
    for name in ("ttft_ms", "tpot_ms", "itl_ms"):
        assert set(metrics[name]["percentiles"]) == {"p5", "p50", "p90", "p95", "p99"}, name
    assert told["tool"]["name"] == "vllm-bench"
    assert told["tool"]["version"] == told["setups"][0]["versions"]["vllm"]
    assert {Path(name).suffixes[-2] for name in cell["raw"] if name.endswith(".json")} == {
        ".1", ".2",
    }  # fmt: skip
    assert "p99" in user("bench", "show", "open").printed
    assert CONTAINER not in containers(spark1, all=True)


def test_its_folders_are_roots(spark1):
    """The login user could put links into folders of its own, which root would follow."""
    argv = ["find", FOLDER, "-mindepth", "1", "!", "-user", "root", "-printf", "%f %u\\n"]
    assert set(spark1.run(argv).stdout.splitlines()) == {"raw nvidia", "home nvidia"}


def test_a_run_that_is_stopped_leaves_no_container(user, spark1):
    started = user.start("bench", "run", "slow", "--out", "slow", "--keep")
    until(lambda: CONTAINER in containers(spark1), what="the load generator's container")
    (found,) = json.loads(spark1.run(["docker", "container", "inspect", CONTAINER]).stdout)
    assert found["HostConfig"]["CapDrop"] == ["ALL"]
    assert not found["HostConfig"]["Privileged"]
    assert not [mount["Destination"] for mount in found["Mounts"] if mount["RW"]]
    user("bench", "stop", "slow")
    until(lambda: user.json("bench", "status", "slow")["measuring"] == "", what="the end")
    started.end(status=None)
    assert CONTAINER not in containers(spark1, all=True)
    assert record(user.home / "slow")["cells"] == []
    argv = ["sh", "-c", "pgrep -af '[v]llm bench|[b]ench.measure' || true"]
    until(lambda: spark1.run(argv).stdout == "", what="the processes' end")


def test_what_a_killed_run_leaves_is_removed(user, spark1):
    """systemd ends what is left of the unit, and with Docker's client its container."""
    started = user.start("bench", "run", "slow", "--out", "killed", "--keep")
    until(lambda: CONTAINER in containers(spark1), what="the load generator's container")
    spark1.run(["pkill", "-KILL", "-f", f"programs.pyz.*measure:main {FOLDER}"])
    until(lambda: user.json("bench", "status", "killed")["measuring"] == "", what="the end")
    started.end(status=None)
    assert user.json("bench", "stop", "killed")["stopped"] == []
    assert CONTAINER not in containers(spark1, all=True)


def test_wrong_tool_calls_are_measured(user):
    """The tiny model knows one answer and no tools. The suite is the one of `make demo-bench`,
    whose place one of the same name takes in the folder where it is run."""
    home = {"HOME": str(user.home), "XDG_STATE_HOME": str(user.home / "state")}
    told = readme.make(*readme.words("make demo-bench"), cwd=user.home, **home)
    assert "report.md" in told
    run = user.home / "bench-results/demo"
    (cell,) = record(run)["cells"]
    assert cell["status"] == "ok"
    assert cell["metrics"]["score"]["mean"] == 0.0
    assert cell["metrics"]["answer_ms"]["mean"] > 0
    asked = {one["question"]: (one["right"], one["asked"]) for one in cell["questions"]}
    assert asked == {"one": (0, 1), "one-streamed": (0, 1)}
    assert all(one["wrong"].startswith("no tool was called") for one in cell["questions"])
    assert [name for name in cell["raw"] if name.endswith(".json")]
    assert "one-streamed" in user("bench", "show", str(run)).printed
