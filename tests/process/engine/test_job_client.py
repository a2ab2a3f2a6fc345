"""Jobs over Ray's own client, with a server that speaks its Jobs API and runs them."""

import sys

import pytest
from cases import cases
from free_ports import free_port
from ray_server import TOKEN, RayServer, ray_server
from waiting import HANG_S, until

from spark_cluster.engine import ray_cluster
from spark_cluster.engine.ray import Job, job_of
from spark_cluster.engine.ray_cluster import RayJobs, last_line
from spark_cluster.errors import Failed, Unreachable, UsageError

PYTHON = sys.executable
ROWS = cases(__file__, "jobs.json")


@pytest.fixture
def server(tmp_path):
    with ray_server(tmp_path) as found:
        yield found


def jobs_of(server: RayServer, token: str = TOKEN) -> RayJobs:
    return RayJobs(f"http://127.0.0.1:{server.port}", token, "spark1")


@pytest.fixture
def jobs(server):
    return jobs_of(server)


def test_a_job_with_a_folder_from_its_beginning_to_its_end(server, jobs, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("import os, sys\nprint(os.environ['STEPS'], sys.argv[1:])\n")
    name = jobs.submit(
        [PYTHON, "train.py", "it's; touch /tmp/no", "$HOME"], working_dir=folder, env={"STEPS": "4"}
    )
    lines: list[str] = []
    assert jobs.wait(name, HANG_S, lines.append) == "4 [\"it's; touch /tmp/no\", '$HOME']\n"
    assert lines == ["4 [\"it's; touch /tmp/no\", '$HOME']"]
    job = jobs.job(name)
    assert (job.status, job.exit_code, job.exit_status) == ("SUCCEEDED", 0, 0)
    assert job.ended >= job.started > 1.7e9
    assert [one.id for one in jobs.list()] == [name], "a server on this Ray is not a job"
    assert not jobs.stop(name), "it has ended"


def test_the_log_comes_while_the_job_goes_on(server, jobs, tmp_path):
    go_on = tmp_path / "go-on"
    name = jobs.submit(
        ["sh", "-c", f"echo one; until test -e {go_on}; do sleep 0.01; done; echo two"]
    )
    log = jobs.follow(name)
    assert next(log) == "one\n"
    assert jobs.job(name).status == "RUNNING"
    go_on.touch()
    assert "".join(log) == "two\n"
    assert "".join(jobs.follow(name)) == jobs.log(name) == "one\ntwo\n", "attached again"


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_a_job_that_fails_says_why(jobs, script, status):
    name = jobs.submit(["sh", "-c", f"echo RuntimeError: NCCL error >&2; {script}"])
    with pytest.raises(Failed, match=r"failed: (RuntimeError: NCCL error|Killed)") as caught:
        jobs.wait(name, HANG_S, lambda _line: None)
    assert caught.value.where == "spark1"
    assert jobs.job(name).exit_status == status


def test_a_job_without_end_is_stopped(server, jobs):
    name = jobs.submit(["sleep", "600"])
    with pytest.raises(Failed, match=r"no end after 0\.1 s"):
        jobs.wait(name, 0.1, lambda _line: None)
    assert jobs.job(name).status == "STOPPED"


def test_a_log_that_is_cut_says_how_to_attach_again(server, jobs):
    server.cuts = True
    name = jobs.submit(["sh", "-c", "echo one; sleep 600"])
    with pytest.raises(Unreachable, match="the log was cut while the job goes on") as caught:
        list(jobs.follow(name))
    assert caught.value.hint == f"spark-cluster ray logs -f {name}"


def test_a_ray_that_ends_during_a_silent_job_is_noticed(server, jobs, monkeypatch):
    monkeypatch.setattr(ray_cluster, "SILENT_S", 0.05)
    name = jobs.submit(["sleep", "600"])
    log = jobs.follow(name)
    server.replies[f"/api/jobs/{name}"] = (500, "no agent")
    with pytest.raises(Failed, match="status code 500: no agent"):
        next(log)


def test_a_wrong_token_and_no_server_at_all(server):
    with pytest.raises(Failed, match="it refuses the token"):
        jobs_of(server, "f" * 64)
    with pytest.raises(Failed, match="Ray does not answer"):
        RayJobs(f"http://127.0.0.1:{free_port()}", TOKEN, "spark1")


def test_the_token_goes_to_the_given_head_only(server, tmp_path, monkeypatch):
    """Whatever a proxy, another cluster or ~/.netrc of the user says; and to no other process."""
    with ray_server(tmp_path) as other:
        elsewhere = f"http://127.0.0.1:{other.port}"
        monkeypatch.setenv("RAY_ADDRESS", elsewhere)
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", elsewhere)
        monkeypatch.setenv("http_proxy", elsewhere)
        (tmp_path / ".netrc").write_text("default login user password secret\n")
        monkeypatch.setenv("HOME", str(tmp_path))
        jobs = jobs_of(server)
        name = jobs.submit(["sh", "-c", "env"])
        environment = jobs.wait(name, HANG_S, lambda _line: None)
        server.replies["/api/jobs/"] = (302, f"{elsewhere}/api/jobs/")
        with pytest.raises(Failed):
            jobs.list()
        assert other.requests == []
    assert {given for _, _, given in server.requests} == {f"Bearer {TOKEN}"}
    assert TOKEN not in environment
    assert "RAY_ADDRESS" in environment, "of the user, as before"


@pytest.mark.parametrize(
    "body",
    [
        "", "nonsense", "[" * 100_000, b"\xff\xfe", {"status": "RUNNING"}, [], 7, None,
        {"type": "SUBMISSION", "status": "EXPLODED", "entrypoint": ""},
        {"type": "SUBMISSION", "status": ["RUNNING"], "entrypoint": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_head_that_lies(server, jobs, body):
    server.replies["/api/jobs/a"] = (200, body)
    server.replies["/api/jobs/"] = (200, body)
    server.replies["/api/jobs/a/logs"] = (200, body)
    for question in (lambda: jobs.job("a"), lambda: jobs.log("a")):
        with pytest.raises(Failed):
            question()
    if body != []:
        with pytest.raises(Failed):
            jobs.list()


def test_a_job_that_does_not_exist_is_said_without_the_status_of_http(server, jobs):
    with pytest.raises(Failed, match="Ray did not show job nosuch: Job nosuch does not exist"):
        jobs.job("nosuch")


def test_an_answer_without_end_is_not_kept(server, jobs, monkeypatch):
    monkeypatch.setattr(ray_cluster, "LARGEST", 1 << 20)
    server.replies["/api/jobs/a"] = (200, b"x" * (3 << 20))
    with pytest.raises(Failed, match="more than 1 MiB"):
        jobs.job("a")


def test_a_head_that_hangs(server, jobs, monkeypatch):
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.1)
    server.hangs = "/api/jobs/"
    with pytest.raises(Failed, match="Ray did not list its jobs"):
        jobs.list()


def test_an_id_that_is_not_there_or_taken_or_none(jobs):
    for question in (jobs.job, jobs.stop):
        with pytest.raises(Failed, match="Job none does not exist"):
            question("none")
    with pytest.raises(UsageError, match="is not the id of a job"):
        jobs.job("../version")
    jobs.submit(["true"], name="fabric-1")
    until(lambda: jobs.job("fabric-1").has_ended)
    with pytest.raises(Failed, match="fabric-1 exists"):
        jobs.submit(["true"], name="fabric-1")


def test_a_folder_that_is_too_large(server, jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "LARGEST_FOLDER", 1 << 20)
    folder = tmp_path / "large"
    folder.mkdir()
    with (folder / "weights").open("wb") as file:
        file.truncate(2 << 20)
    with pytest.raises(Failed, match=r"the working folder is 2 MiB packed.*\.gitignore"):
        jobs.submit(["true"], working_dir=folder)
    assert server.jobs == {}


@pytest.mark.parametrize(("log", "line"), ROWS["last_lines"])
def test_the_last_line(log, line):
    assert last_line(log) == line


def test_a_last_line_has_a_limit():
    assert last_line("x" * 900) == "x" * 200


def test_a_row_that_is_no_job_and_figures_that_are_none():
    odd = {"submission_id": 7, "status": "RUNNING"}
    for row in (None, [], "text", {}, odd, {"submission_id": "a"}):
        assert job_of(row) is None
    row = {"submission_id": "a", "status": "RUNNING", "start_time": True, "end_time": 1e300}
    assert job_of({**row, "driver_exit_code": "7"}) == Job("a", "RUNNING")


@pytest.mark.parametrize(("status", "code", "expected"), ROWS["exit_statuses"])
def test_the_exit_status_of_who_waited(status, code, expected):
    assert Job("a", status, exit_code=code).exit_status == expected
