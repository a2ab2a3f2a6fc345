"""The main job on two nodes with a GPU each: over Ray, and over vLLM's own executor."""

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_recipes import PARIS
from waiting import until

pytestmark = pytest.mark.gpu

QUERY = ("nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits")
EXECUTORS = ("ray", "mp")

CACHE_MIB = 1024
"""Of the recipe, on each node."""

SLACK_MIB = 64
"""Between two readings of a server that has no requests."""


class Job:
    """The command line, and the recipe of one executor."""

    def __init__(self, pair: Any, executor: str) -> None:
        self.run = pair
        document = json.loads(Path(pair.home, f"recipes/{PARIS}.yaml").read_text())
        self.recipe = f"{PARIS}-{executor}"
        document = {**document, "name": self.recipe, "executor": executor}
        Path(pair.home, f"recipes/{self.recipe}.yaml").write_text(json.dumps(document))
        self.up = ("up", "--tp", "2", "--recipe", self.recipe, *pair.allowed)

    def compute_apps(self) -> dict[str, dict[int, int]]:
        """Node to PID to MiB, as nvidia-smi prints it on each node."""
        found: dict[str, dict[int, int]] = {}
        nodes = [entry["name"] for entry in self.run.json("facts")["nodes"]]
        for node in nodes:
            printed = self.run("--limit", node, "exec", "--", *QUERY).out
            lines = [line.removeprefix(f"{node}: ") for line in printed.splitlines()]
            rows = [line.split(",") for line in lines if "," in line]
            found[node] = {int(pid): int(used) for pid, used in rows}
        return found

    def state(self) -> str:
        return str(self.run.status(timeout=60)["state"])


@pytest.fixture(scope="module", params=EXECUTORS)
def job(request: pytest.FixtureRequest, pair: Any) -> Job:
    """One executor after the other; nothing of the one before serves any more."""
    pair("down")
    return Job(pair, request.param)


def test_two_nodes_answer(job):
    document = job.run.json(*job.up)
    assert "Paris" in document["answer"]
    assert len(document["memory"]) == 2
    assert all(node["ready"] > CACHE_MIB for node in document["memory"])
    job.run("vram")


def test_the_memory_of_each_node_is_that_of_nvidia_smi(job):
    shown = {
        node["name"]: {process["pid"]: process["used_mib"] for process in node["processes"]}
        for node in job.run.json("vram")["nodes"]
    }
    read = job.compute_apps()
    assert len(read) == 2
    for node, processes in read.items():
        assert processes, f"the engine holds no memory of {node}"
        assert shown[node].keys() == processes.keys()
        assert all(abs(shown[node][pid] - used) <= SLACK_MIB for pid, used in processes.items())


def test_again_nothing_is_changed(job):
    document = job.run.json(*job.up)
    assert document["changed"] == 0
    assert "Paris" in document["answer"]
    assert job.state() == "serving"


def test_doctor_finds_no_fault_while_two_nodes_serve(job):
    job.run("doctor", status=0)
    found = {check["id"]: check for check in job.run.json("doctor")["checks"]}
    assert {id for id, check in found.items() if check["status"] == "fail"} == set()
    for id in ("serving.address", "serving.vram-visible", "pair.ray-version", "pair.model-files"):
        assert found[id]["status"] == "ok", found[id]


def test_a_killed_worker_is_told_and_repaired(job):
    worker = list(job.compute_apps().items())[-1]
    node, pid = worker[0], str(next(iter(worker[1])))
    job.run("--limit", node, "exec", "--", "kill", "-9", pid)
    until(lambda: job.state() != "serving", what="status sees it")
    assert "Paris" in job.run.json(*job.up)["answer"]
    assert job.state() == "serving"


def test_down_gives_the_memory_back(job):
    assert all(sum(processes.values()) > CACHE_MIB for processes in job.compute_apps().values())
    job.run("down")
    assert all(processes == {} for processes in job.compute_apps().values())
