"""`ray` at the command line: jobs on a server that speaks Ray's Jobs API and runs them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import TWO_NODES, put
from hostile import user
from piped_cluster import Make, PipedCluster
from ray_server import RayServer, ray_server
from waiting import until

from spark_cluster.cli import ray as ray_command
from spark_cluster.cli.terminal import Console
from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import ray, ray_cluster, readiness
from spark_cluster.engine.names import RAY
from spark_cluster.engine.ray import MEASURING, TOKEN_FILE, Job
from spark_cluster.engine.ray_cluster import RayMember, RayStatus
from spark_cluster.engine.vram import NodeVram
from spark_cluster.errors import Failed, Refused, UsageError
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.events import Options

RUNNING = ContainerState("running", labels={"spark-cluster.dashboard": "8300"})


@pytest.fixture
def server(project, monkeypatch, tmp_path_factory):
    """The Ray of the head `spark1`, which is a folder with an agent."""
    put(project / "inventory.yaml", TWO_NODES)
    with ray_server(tmp_path_factory.mktemp("ray")) as server:
        found = replace(RUNNING, labels={"spark-cluster.dashboard": str(server.port)})
        put(project / "spark1" / TOKEN_FILE.lstrip("/"), f"{server.token}\n", 0o600)
        ports = []

        def forward(_self: Any, node: Any, port: int) -> Any:
            ports.append((node.name, port))
            return contextlib.nullcontext(server.port)

        monkeypatch.setattr(Dialer, "forward", forward)
        monkeypatch.setattr(readiness, "container_state", lambda *_: found)
        yield server
        assert set(ports) <= {("spark1", server.port)}


def test_a_job_streams_its_log_and_ends_as_it_does(server, run, tmp_path):
    put(tmp_path / "work/train.py", "import os\nprint('step', os.environ['STEPS'])\nexit(3)\n")
    words = ("--working-dir", "work", "--env", "STEPS=4", "--", sys.executable, "train.py")
    status, out, err = run("ray", "submit", *words)
    assert (status, out) == (3, "step 4\n")
    (name,) = server.jobs
    assert f"job {name} is submitted" in err
    assert f"job {name} failed: Job entrypoint command failed with exit code 3\n" in err


def test_json_of_a_job_has_nothing_else_on_standard_output(server, run):
    status, out, err = run("--json", "ray", "submit", "--", "echo", "hello")
    job = json.loads(out)["job"]
    assert (status, job["status"], job["exit_code"]) == (0, "SUCCEEDED", 0)
    assert "hello" in err.splitlines()
    status, out, _ = run("ray", "submit", "--no-wait", "--", "sleep", "600")
    assert (status, out.strip() in server.jobs) == (0, True), "it is not waited for"


def test_a_ray_that_hangs_gets_no_token():
    """The agent names it among what came late, and has no answer of it."""
    told = {"files": {"token": "a" * 64}, "requests": {}, "late": {"ray": "it hangs"}}
    session = SimpleNamespace(request=lambda *_, **__: told)
    play: Any = SimpleNamespace(session=lambda _: session, head=SimpleNamespace(name="spark1"))
    with pytest.raises(Failed, match="Ray does not answer: it hangs"):
        ray_cluster.token_of(play, 8300)


def test_what_a_job_prints_cannot_steer_the_terminal(server, run):
    hostile = r"\033]0;owned\007\033[31mred\033[0m\033[2J"
    _, out, _ = run("ray", "submit", "--", "printf", hostile)
    assert out == "\\x1b]0;owned\\x07red\\x1b[2J\n", "colours are for a terminal"
    (name,) = server.jobs
    assert run("ray", "logs", name)[1] == out


@user.needs_root
def test_another_user_who_listens_in_rays_place_gets_no_token(server, run, monkeypatch):
    program = """
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    time.sleep(600)
"""
    with user.running("print(flush=True)" + program) as listener:
        port = listener.stdout.readline().strip()
        found = replace(RUNNING, labels={"spark-cluster.dashboard": port})
        monkeypatch.setattr(readiness, "container_state", lambda *_: found)
        status, _, err = run("ray", "submit", "--", "echo", "hello")
    assert status != 0
    assert f"spark1: Ray does not answer: port {port} belongs to another user" in err
    assert not server.requests


def test_a_variable_without_a_value_is_this_machines(server, run, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    show = ("--", "sh", "-c", "echo $WANDB_MODE")
    assert run("ray", "submit", "--env", "WANDB_MODE", *show)[1] == "offline\n"
    status, _, err = run("ray", "submit", "--env", "NOT_SET_HERE", *show)
    assert status == 2
    assert "--env: NOT_SET_HERE is not set here" in err


def test_ctrl_c_leaves_the_job_and_says_how_to_attach(server, run):
    def interrupt() -> None:
        until(lambda: any(path.endswith("/tail") for _, path, _ in server.requests))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    status, _, err = run("ray", "submit", "--", "sleep", "600")
    thread.join()
    (name,) = server.jobs
    assert status == 130
    assert f"interrupted; job {name} goes on" in err
    assert f"spark-cluster ray logs -f {name}" in err
    assert server.jobs[name]["status"] == "RUNNING"
    status, out, _ = run("ray", "stop", name)
    assert (status, out) == (0, f"job {name} is told to end\n")
    assert run("ray", "stop", name)[1] == f"job {name} has ended already\n"
    status, _, err = run("ray", "logs", "-f", name)
    assert status == 1
    assert f"job {name} stopped" in err


def test_the_list_fits_80_columns(server, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    server.job("job-5d1f8a02", "RUNNING", entrypoint="torchrun --nnodes 2 " + "x" * 300)
    server.job("job-00000001", "FAILED", driver_exit_code=7, end_time=1764113065000)
    _, out, _ = run("ray", "list")
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"job-00000001 +failed .* 1 min 5 s +7 +python3 train.py", out)
    assert "…" not in out
    found = json.loads(run("--json", "ray", "list")[1])["jobs"]
    assert [job["status"] for job in found] == ["RUNNING", "FAILED"]


def test_no_jobs_a_job_that_is_not_there_and_no_ray(server, run, monkeypatch):
    assert "there are no jobs" in run("ray", "list")[1]
    status, _, err = run("ray", "logs", "job-none")
    assert (status, "Job job-none does not exist" in err) == (1, True)
    monkeypatch.setattr(readiness, "container_state", lambda *_: ContainerState("absent"))
    status, _, err = run("ray", "list")
    assert (status, "spark1: no Ray cluster is running" in err) == (1, True)
    assert "spark-cluster ray up" in err


def test_a_token_that_is_none(server, run, project):
    put(project / "spark1" / TOKEN_FILE.lstrip("/"), "x\r\nX-Evil: 1\n", 0o600)
    status, _, err = run("ray", "list")
    assert status == 1
    assert "is not a token" in err
    assert server.requests == []


def status_of(**given: Any) -> RayStatus:
    held = (GpuProcess(4711, "python3 train.py", 20_480),)
    nodes = tuple(
        RayMember(name, f"192.168.177.1{n}", True, 1.0, NodeVram(name, held, 122_000, 90_000))
        for n, name in enumerate(("spark1", "spark2"), 1)
    )
    job = Job("job-5d1f8a02", "RUNNING", "python3 train.py --epochs 3", started=1.0)
    return RayStatus(**{"state": "running", "nodes": nodes, "jobs": (job,), **given})


def test_the_status_has_nodes_gpus_jobs_and_memory():
    out = io.StringIO()
    app: Any = SimpleNamespace(console=Console(file=out, width=80))
    ray_command._show(app, status_of(recipe="gemma4-31b-nvfp4", version="2.60.0"))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[0] == "running  Ray 2.60.0, recipe gemma4-31b-nvfp4"
    assert re.search(r"spark2 +192\.168\.177\.12 +alive +1\n", text)
    assert "job-5d1f8a02" in text
    assert re.search(r"spark1 +4711 +python3 train.py +20480", text)


# -- what would end jobs -----------------------------------------------------------------------


class HasJobs:
    """A play whose head has a Ray with jobs."""

    def __init__(self, cluster: PipedCluster, server: RayServer) -> None:
        self.cluster, self.server = cluster, server
        self.runs()
        cluster.head.put(TOKEN_FILE, f"{server.token}\n")

    def runs(self, **labels: str) -> None:
        """Have Docker tell of a Ray with these labels."""
        port = {"spark-cluster.dashboard": str(self.server.port)}
        self.cluster.head.run_container(RAY, {**port, **labels})

    def jobs(self, *rows: Any, status: int = 200) -> None:
        """Have Ray list these jobs."""
        self.server.replies["/api/jobs/"] = status, list(rows)

    def ask(self, *, end_jobs: bool | None) -> None:
        play = self.cluster.play
        ray_cluster.must_have_no_jobs(play, ray_cluster.running_jobs(play), end_jobs=end_jobs)


@pytest.fixture
def head(piped_cluster: Make, tmp_path: Path) -> Iterator[HasJobs]:
    with ray_server(tmp_path) as server:
        yield HasJobs(piped_cluster("spark1"), server)


def row(name: str, status: str = "RUNNING") -> dict[str, Any]:
    return {"submission_id": name, "status": status, "entrypoint": "x"}


def test_running_jobs_are_not_ended_without_a_flag(head):
    head.jobs(row("job-1"), row("job-2", "PENDING"), row("job-0", "FAILED"), {"type": "x"})
    with pytest.raises(Refused, match="jobs job-1, job-2 are running on Ray") as caught:
        head.ask(end_jobs=False)
    assert "ray logs -f job-1" in caught.value.hint
    assert "--end-jobs" in caught.value.hint
    with pytest.raises(Refused, match="running on Ray") as caught:
        head.ask(end_jobs=None)
    assert "--end-jobs" not in caught.value.hint
    head.cluster.play.options = Options(check=True)
    head.ask(end_jobs=True)
    assert head.cluster.notes == ["would end jobs job-1, job-2"]


@pytest.mark.parametrize(
    ("jobs", "labels", "status"),
    [
        ([], {}, 200),
        ([row("job-0", "STOPPED")], {}, 200),
        ([row("job-1")], {}, 500),
        (["nonsense", None], {}, 200),
        ([row("fabric-r0")], {MEASURING: "r0"}, 200),
    ],
    ids=["none", "ended", "no answer", "nonsense", "a measurement that was left"],
)
def test_no_job_of_a_user_is_running(head, jobs, labels, status):
    head.runs(**labels)
    head.jobs(*jobs, status=status)
    head.ask(end_jobs=False)
    assert labels or ("GET", "/api/jobs/", f"Bearer {head.server.token}") in head.server.requests


def test_jobs_are_ended_with_the_flag(head):
    head.server.job("job-1", "RUNNING")
    head.ask(end_jobs=True)
    assert head.server.jobs["job-1"]["status"] == "STOPPED"
    assert head.cluster.notes == ["ended job job-1"]


# -- what is known to be wrong before anything is connected ------------------------------------


def test_what_ray_leaves_out_of_a_folder_does_not_count(project, run, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "LARGEST_FOLDER", 1 << 20)
    put(tmp_path / "train.py", "pass\n")
    put(tmp_path / "data/.gitignore", "*.bin\n")
    for name in (".git/pack", ".venv/lib/x.so", "data/weights.bin"):
        os.truncate(put(tmp_path / name, ""), 2 << 20)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    ray.must_be_sendable(tmp_path)
    os.truncate(put(tmp_path / "src/core", ""), 2 << 20)
    with pytest.raises(UsageError, match="holds more than 1 MiB") as caught:
        ray.must_be_sendable(tmp_path)
    assert ".gitignore" in caught.value.hint
    put(project / "inventory.yaml", TWO_NODES.replace("spark1", "lost"))  # exit status 3
    status, _, err = run("ray", "submit", "--working-dir", "src", "--", "true")
    assert (status, "src holds more than 1 MiB" in err) == (2, True)
