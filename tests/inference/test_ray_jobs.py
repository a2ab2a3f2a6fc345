"""Ray's Jobs API, as a server on this machine speaks it."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_cluster.errors import Failed
from spark_cluster.inference import ray, ray_jobs
from spark_cluster.inference.ray_jobs import RayJobs, last_line
from spark_cluster.node.http import ask
from spark_cluster.runner.session import Answer


class Dashboard(http.server.ThreadingHTTPServer):
    """Takes jobs from who has the token; each question for a state moves a job on by one.

    Attributes:
        states: that a job goes through; the last one stays.
        log: what it prints: a line more at each question.
        log_fails: questions for the log of a job that has ended which it does not answer.
        broken: it answers everything with status 500 and a traceback, as Ray does.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.stopped: list[str] = []
        self.states = ["PENDING", "RUNNING", "SUCCEEDED"]
        self.log = "one\ntwo\nthree\n"
        self.broken = False
        self.log_fails = 0


class Handler(http.server.BaseHTTPRequestHandler):
    server: Dashboard

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        if self.server.broken:
            self._reply(500, "Traceback (most recent call last):\nRuntimeError: no agent\n\n")
        elif self.headers.get("Authorization") != "Bearer 5eed":
            self._reply(401, "Unauthorized")
        elif self.path == "/api/jobs/":
            job = json.loads(body)
            assert self.headers["Content-Type"] == "application/json"
            self.server.jobs[job["submission_id"]] = {**job, "asked": 0}
            self._reply(200, json.dumps({"submission_id": job["submission_id"]}))
        else:
            self.server.stopped.append(self.path.split("/")[3])
            self._reply(200, '{"stopped": true}')

    def do_GET(self) -> None:
        name = self.path.split("/")[3]
        job = self.server.jobs.get(name)
        if self.server.broken or job is None:
            self._reply(404, f"Job {name} does not exist")
            return
        if self.path.endswith("/logs"):
            if self.server.log_fails and job["asked"] >= len(self.server.states):
                self.server.log_fails -= 1
                self._reply(500, "no agent")
                return
            lines = self.server.log.splitlines(keepends=True)
            self._reply(200, json.dumps({"logs": "".join(lines[: job["asked"]])}))
            return
        state = self.server.states[min(job["asked"], len(self.server.states) - 1)]
        job["asked"] += 1
        self._reply(200, json.dumps({"status": state, "message": "what Ray says"}))

    def _reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


class Head:
    """A session whose node is this machine."""

    def http(self, url: str, **options: Any) -> Answer:
        reply = ask({"url": url, **options})
        return Answer(reply["status"], reply["body"], reply.get("reason", ""))


@pytest.fixture
def dashboard(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    (tmp_path / "token").write_text("5eed\n")
    monkeypatch.setattr(ray, "TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setattr(ray_jobs, "POLL_S", 0.001)
    with Dashboard() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def jobs(dashboard: Dashboard) -> RayJobs:
    return RayJobs(Head(), dashboard.server_port, "spark1")


def test_a_job_from_its_beginning_to_its_end(dashboard, jobs):
    lines: list[str] = []
    jobs.submit("exec python3 probe.py", "fabric-1")
    assert jobs.wait("fabric-1", 60, lines.append) == "one\ntwo\nthree\n"
    assert dashboard.jobs["fabric-1"]["entrypoint"] == "exec python3 probe.py"
    assert lines == ["one", "two"], "each new last line while it goes on"
    assert dashboard.stopped == []


@pytest.mark.parametrize("end", ["FAILED", "STOPPED"])
def test_a_job_that_fails_says_why(dashboard, jobs, end):
    dashboard.states = ["RUNNING", end]
    dashboard.log = "Traceback\nRuntimeError: NCCL error: unhandled system error\n"
    jobs.submit("x", "fabric-1")
    with pytest.raises(Failed, match=f"{end.lower()}: RuntimeError: NCCL error") as caught:
        jobs.wait("fabric-1", 60, lambda _line: None)
    assert caught.value.where == "spark1"


def test_a_job_that_printed_nothing(dashboard, jobs):
    dashboard.states, dashboard.log = ["FAILED"], ""
    jobs.submit("x", "fabric-1")
    with pytest.raises(Failed, match="failed: what Ray says"):
        jobs.wait("fabric-1", 60, lambda _line: None)


def test_a_job_without_end_is_stopped(dashboard, jobs):
    dashboard.states = ["RUNNING"]
    jobs.submit("x", "fabric-1")
    with pytest.raises(Failed, match=r"no end after 0\.1 s"):
        jobs.wait("fabric-1", 0.1, lambda _line: None)
    assert dashboard.stopped == ["fabric-1"]


def test_a_ray_that_does_not_answer_any_more(dashboard, jobs, monkeypatch):
    monkeypatch.setattr(ray_jobs, "SILENT_S", 0.1)
    dashboard.states = ["RUNNING"]
    jobs.submit("x", "fabric-1")
    dashboard.broken = True
    with pytest.raises(Failed, match="Ray does not answer any more"):
        jobs.wait("fabric-1", 600, lambda _line: None)


def test_a_ray_that_takes_no_jobs(dashboard, jobs, tmp_path):
    dashboard.broken = True
    with pytest.raises(Failed, match=r"did not take the job: status 500: RuntimeError: no agent"):
        jobs.submit("x", "fabric-1")
    dashboard.broken = False
    (tmp_path / "token").unlink()
    with pytest.raises(Failed, match="status 401: Unauthorized"):
        jobs.submit("x", "fabric-1")
    assert dashboard.jobs == {}


def test_no_server_at_all(dashboard, monkeypatch):
    monkeypatch.setattr(ray_jobs, "SUBMIT_S", 5.0)
    dashboard.server_close()
    with pytest.raises(Failed, match="Ray did not take the job"):
        RayJobs(Head(), dashboard.server_port).submit("x", "fabric-1")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("\n \n", ""),
        ("a\n b \n\n", "b"),
        ("x" * 900, "x" * 200),
        ("Running entrypoint for job a: exec python3 -c ...\n", ""),
    ],
)
def test_the_last_line(log, line):
    assert last_line(log) == line


def test_the_log_of_a_job_that_has_ended_is_asked_for_again(dashboard, jobs, monkeypatch):
    """The job's measurements are in its log alone."""
    dashboard.log_fails = 2
    jobs.submit("exec python3 probe.py", "fabric-1")
    assert jobs.wait("fabric-1", 60, lambda _line: None) == "one\ntwo\nthree\n"
    monkeypatch.setattr(ray_jobs, "SILENT_S", 0.01)
    dashboard.log_fails = 1000
    with pytest.raises(Failed, match="Ray does not answer any more"):
        jobs.wait("fabric-1", 60, lambda _line: None)
