"""The supervision's program: a real server over HTTP, and commands of a node that keep state."""

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from cases import each_row
from factories import make_node, put
from local_docker import DockerNode
from small_server import Answer, answering
from unit_programs import installed
from waiting import HANG_S

from spark_cluster.engine import supervision
from spark_cluster.node import containers, load_watch, local_server, own_program
from spark_cluster.node.containers import KIND, ContainerState
from spark_cluster.node.load_watch import GuardSettings
from spark_cluster.node.supervisor import START, STOP, Supervisor

OWN = "--node-ip-address"
SMI = '#!/bin/sh\ncat "{folder}/apps"\n'


@pytest.fixture
def engine() -> Iterator[Any]:
    """A server that answers completions while it is `alive`; its /metrics page has `tokens`."""
    reply = {"choices": [{"message": {"content": "Paris"}}]}
    told = SimpleNamespace(alive=True, slow=False, tokens=0, ended=Event(), reply=reply)

    def answer(request: Any) -> Answer | None:
        if request.command == "GET":
            return 200, {}, f"vllm:generation_tokens_total {told.tokens}\n"
        assert json.loads(request.received)["model"] == "paris"
        told.tokens += 8 if told.alive else 0
        if told.slow:
            told.ended.wait(60)
            return None
        return 200 if told.alive else 500, {}, json.dumps(told.reply)

    with answering(answer) as told.port:
        yield told
        told.ended.set()


@pytest.fixture
def free_rays(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a dashboard that shows one node that is alive and one that is dead, or what a
    test has it answer."""
    rows = [{"state": "ALIVE"}, {"state": "DEAD"}]
    usual = json.dumps({"data": {"result": {"result": rows}}})
    with answering(lambda _: (200, {}, getattr(request, "param", usual))) as port:
        yield port


class Node(DockerNode):
    """A node's commands and the supervision's files, in a folder."""

    def __init__(self, folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        put(folder / "bin/nvidia-smi", SMI.format(folder=folder), 0o755)
        self.holds("7, VLLM::EngineCor, 900")
        self.labels = {
            "spark-cluster.endpoint": f"http://127.0.0.1:{port}/v1",
            "spark-cluster.model": "paris",
            "spark-cluster.tp": "1",
        }
        self.has("spark-vllm", self.labels)
        limits = {"misses": 2, "pause_s": 10, "answer_s": 5}
        self.config = {
            **supervision.configuration(limits, make_node("h")),
            "lock": str(folder / "locks/run"),
            "unit_folder": str(folder),
            "description": str(folder / "endpoint.json"),
        }
        self.supervisor = self.again()
        self.now = 1000.0

    def again(self) -> Supervisor:
        """The program after a restart of its unit."""
        return Supervisor(self.config, self.root / "state")

    def holds(self, *lines: str) -> None:
        put(self.root / "apps", "".join(f"{line}\n" for line in lines))

    def look(self, seconds: float = 15.0) -> str:
        self.now += seconds
        return self.supervisor.look_once(self.now)

    def dies(self, engine: Any) -> None:
        """Have the server end, and be stopped after two looks."""
        engine.alive = False
        assert [self.look(), self.look()] == ["", STOP]

    @property
    def phase(self) -> str:
        return self.supervisor.state.phase


@pytest.fixture
def node(tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, engine.port, monkeypatch)


def test_a_server_that_dies_is_stopped_and_started_when_its_memory_is_back(node, engine):
    assert (node.look(), node.phase) == ("", "serving")
    assert node.supervisor.need_mib == 900
    node.dies(engine)
    assert node.look() == "", "its process still holds memory"
    assert "PID 7 VLLM::EngineCor (900 MiB)" in node.supervisor.state.reason
    node.holds()
    assert node.look() == START
    engine.alive = True
    assert (node.look(), node.phase) == ("", "serving")
    assert node.acts == ["stop spark-vllm", "start spark-vllm"]
    texts = [event["text"] for event in node.supervisor.events]
    assert texts[0] == "serving"
    assert texts[1].startswith("serving, 1 of 2 looks without an answer: /v1/chat/completions")
    assert texts[2].startswith("waiting (stopped): 2 times no answer: /v1/chat/completions")
    assert texts[-2:] == ["loading (started)", "serving"]


def test_what_it_knows_outlives_a_power_cut(node, engine):
    node.look()
    node.dies(engine)
    node.holds()
    node.supervisor = node.again()
    assert node.look() == START, "a stop of its own is none by hand"


@pytest.mark.parametrize("looks", [4, 0])
def test_a_busy_server_is_not_dead_and_our_own_questions_make_none_busy(node, engine, looks):
    node.look()
    node.look()
    node.supervisor.limits = replace(node.supervisor.limits, answer_s=0.2)
    engine.alive, engine.slow = False, True
    for _ in range(looks):
        engine.tokens += 1
        assert node.look() == ""
    assert [node.look(), node.look()] == ["", STOP]


@each_row(__file__, "kinds.json", "kinds")
def test_a_model_is_asked_for_what_its_kind_answers(node, engine, kind, good, bad):
    node.has("spark-vllm", {**node.labels, **({KIND: kind} if kind else {})})
    engine.reply = good
    node.look()
    assert node.phase == "serving"
    if bad is None:
        return  # it is asked for its health alone
    engine.reply = bad
    assert [node.look(), node.look()] == ["", STOP]
    assert "gives no answer" in node.supervisor.state.reason


def test_nothing_is_done_while_a_run_is_at_work(node, engine):
    node.look()
    engine.alive = False
    with (node.root / "locks/run").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [node.look() for _ in range(5)] == [""] * 5
        assert node.phase == "serving"
    assert [node.look(), node.look()] == ["", STOP]


def test_without_docker_nothing_is_concluded(node):
    node.look()
    with node.state("docker") as docker:
        docker["unreachable"] = "no daemon"
    assert [node.look() for _ in range(5)] == [""] * 5
    assert node.phase == "serving"


def test_memory_that_another_program_holds(node):
    node.holds("9, ollama, 70000")
    why = local_server.memory_obstacle(10**9, node.config["title"])
    assert "MiB of memory are available, the server held 1000000000 MiB" in why
    assert "PID 9 ollama (70000 MiB)" in why
    assert local_server.memory_obstacle(1, node.config["title"]) == ""


def test_an_endpoint_whose_address_has_changed_is_told_and_restarted(node, engine):
    put(node.root / "endpoint.json", json.dumps({"url": "https://192.0.2.7:8000/v1"}))
    node.look()
    assert "192.0.2.7 is none of this node's addresses any more" in node.supervisor.problems[0]
    node.dies(engine)
    node.holds()
    assert node.look() == START


def test_ray_whose_address_has_changed_is_waited_for(node, engine):
    node.has("spark-ray", node.labels, Path="ray", Args=[f"{OWN}=192.0.2.8"])
    node.look()
    node.dies(engine)
    node.holds()
    assert node.look() == ""
    assert "192.0.2.8 is none of this node's addresses" in node.supervisor.state.reason
    assert (
        local_server.lost_of_ray(ContainerState(command=("ray", "start", f"{OWN}=127.0.0.1"))) == []
    )


def test_ray_without_the_other_node(node, free_rays):
    labels = {"spark-cluster.tp": "2", "spark-cluster.dashboard": str(free_rays)}
    server = ContainerState(id="one", labels=labels)
    assert (
        local_server.ray_obstacle(server, node.config)
        == "Ray shows 1 of 2 nodes: is the other one on?"
    )
    alone = ContainerState(id="one", labels={**labels, "spark-cluster.tp": "1"})
    assert local_server.ray_obstacle(alone, node.config) == ""
    mp = ContainerState(id="one", labels={**labels, "spark-cluster.executor": "mp"})
    assert local_server.ray_obstacle(mp, node.config) == ""


@pytest.mark.parametrize("free_rays", [b"[" * 100_000, b"{}", b"x"], indirect=True)
def test_a_dashboard_that_answers_nonsense_ends_no_supervision(node, free_rays):
    labels = {"spark-cluster.tp": "2", "spark-cluster.dashboard": str(free_rays)}
    found = local_server.ray_obstacle(ContainerState(id="one", labels=labels), node.config)
    assert found == "Ray's head does not answer (status 200)"


def test_a_unit_of_the_runtime_venv(node, monkeypatch):
    declared = json.dumps({"spec": "abc", "labels": {"spark-cluster.tp": "1"}, "command": ["x"]})
    put(node.root / "spark-vllm.service", f"[Unit]\n[X-Spark-Cluster]\nDeclared={declared}\n")
    began = "ExecMainStartTimestamp=Fri 2026-11-20 10:00:00.5 UTC"
    shown = f"ActiveState=failed\\nNRestarts=2\\nResult=exit-code\\n{began}\\n"
    put(node.root / "bin/systemctl", f"#!/bin/sh\nprintf '{shown}'\n", 0o755)
    found = local_server.program("spark-vllm", node.config)
    assert (found.id, found.runtime, found.kept_up, found.by_hand) == ("abc", "venv", False, False)
    assert (found.restarts, found.label("spark-cluster.tp")) == (2, "1")
    assert found.started.startswith("2026-11-20T10:00:00.45")
    put(node.root / "bin/systemctl", "#!/bin/sh\nexit 1\n", 0o755)
    assert local_server.program("spark-vllm", node.config).status == "unknown"


def test_a_unit_that_was_stopped_by_hand_keeps_the_result_of_the_run_before():
    shown = "[Unit]\nActiveState={}\nResult=exit-code\nExecMainStatus=1\n"
    assert not containers.parse(shown.format("failed")).by_hand
    assert containers.parse(shown.format("inactive")).by_hand


REASON = {"available_kib": 2**20, "free_kib": 0, "swap_free_kib": 0, "pressure": None, "at": 0}


def test_a_start_of_its_own_is_prepared_and_guarded(node, engine, monkeypatch):
    """P07: caches are dropped before each start; P06: the guard is there while weights load."""
    reason = node.root / "reason.json"
    monkeypatch.setattr(load_watch, "reason_file", lambda _name: str(reason))
    node.look()
    engine.alive = False
    node.holds()
    assert [node.look(), node.look(), node.look()] == ["", STOP, START]
    assert node.memory == ["end spark-vllm", "end spark-vllm", "prepare", "guard spark-vllm"]
    put(reason, json.dumps(REASON))
    node.has("spark-vllm", node.labels, "exited")
    assert (node.look(), node.phase) == (STOP, "waiting")
    said = node.supervisor.state.reason
    assert said.startswith("its load was ended before the node ran out of memory: 1.0 GiB were")
    assert not reason.exists()
    assert node.look(60) == START
    engine.alive = True
    assert (node.look(), node.phase) == ("", "serving")
    assert node.memory[-1] == "end spark-vllm"


def test_a_gpu_with_memory_of_its_own_is_left_alone(node, engine):
    """P07: nothing of its memory is page cache."""
    node.config["unified_memory"] = False
    node.supervisor = node.again()
    node.look()
    engine.alive = False
    node.holds()
    assert [node.look(), node.look(), node.look()] == ["", STOP, START]
    assert node.memory == []


def must_guard(code: str, root: Path) -> None:
    """Run the installed guard to its limit, and drop the caches of a node that has none."""
    told = GuardSettings("spark-vllm", ("spark-vllm",), 0.0, root=str(root))
    put(root / "proc/sys/vm/drop_caches", "0")
    for program, word in (
        (load_watch.__name__, json.dumps(asdict(told))),
        (load_watch.RECLAIM, str(root)),
    ):
        argv = [sys.executable, "-I", "-S", "-B", *own_program.entry(code, program), word]
        subprocess.run(argv, check=True, timeout=HANG_S)
    assert (root / "proc/sys/vm/drop_caches").read_text() == "3"


def test_the_installed_files_are_all_that_it_needs(node, tmp_path):
    """Run as on the node: by its own interpreter, with nothing of this checkout."""
    put(tmp_path / "config.json", json.dumps({**node.config, "folder": str(tmp_path / "kept")}))
    argv = installed(tmp_path, supervision.UNIT.program, str(tmp_path / "config.json"))
    must_guard(argv[4].removesuffix(f"/{own_program.STARTER}"), tmp_path)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "serving\n"
    finally:
        process.kill()
        _, errors = process.communicate()
    assert errors == ""
