"""The repetitions of `vllm bench serve` on a node, with a stand-in for Docker's client."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import waiting
from fork_server import Forked
from fork_server import program as start_program

from spark_cluster.bench import on_node, vllm_job
from spark_cluster.node import own_program
from spark_cluster.node.bench import vllm_runs, worker
from spark_cluster.runner.session import Output

DOCKER = """\
#!{python} -IS
import os, pathlib, sys, time
state = pathlib.Path({state!r})
with (state / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
verb, last = sys.argv[1], sys.argv[-1]
if verb == "create":
    if (state / "refuse").exists():
        sys.exit("Error response from daemon: no such image")
    made = state / "containers" / ("id-" + last)
    made.write_text(sys.argv[sys.argv.index("--label") + 1].partition("=")[2])
    print(made.name)
elif verb == "container":
    for path in (state / "containers").iterdir():
        print(path.name, path.read_text())
elif verb == "rm":
    time.sleep(1 if (state / "slow").exists() else 0)
    (state / "containers" / last).unlink(missing_ok=True)
    print(last)
elif verb == "start":
    out = pathlib.Path({out!r})
    target = out / (last.removeprefix("id-") + ".json")
    exec((state / "program").read_text())
"""
WRITES = "target.write_text('{\"seed\": \"' + last + '\"}')\nprint('measured')\n"
HANGS = "(state / 'begun').touch()\ntime.sleep(600)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A step's folder with a cell of two repetitions, and Docker's stand-in next to it."""
    state, step = tmp_path / "state", tmp_path / "step"
    (state / "containers").mkdir(parents=True)
    (step / "raw").mkdir(parents=True)
    docker = tmp_path / "docker"
    text = DOCKER.format(python=sys.executable, state=str(state), out=str(step / "out"))
    docker.write_text(text)
    docker.chmod(0o755)
    write_plan(step, docker=str(docker))
    (state / "program").write_text(WRITES)
    return step


def write_plan(step: Path, *, run_s: float = 60.0, **more: Any) -> None:
    # The stand-in takes the last word of a command for the container's name and the result's.
    runs = [{"argv": ["bench", f"a.{n}"], "file": f"a.{n}.json", "run_s": run_s} for n in (1, 2)]
    plan = {"runtime": "docker", "create": ["--network", "host", "image"], "cells": {
        "a": {"runs": runs}}, **more}  # fmt: skip
    (step / "vllm.json").write_text(json.dumps(plan))


def with_limit(step: Path, seconds: float) -> None:
    plan = json.loads((step / "vllm.json").read_text())
    write_plan(step, run_s=seconds, docker=plan["docker"])


def program(step: Path, text: str) -> None:
    (step.parent / "state/program").write_text(text)


def start(step: Path) -> Forked:
    return start_program(on_node.VLLM_RUNS, str(step), "a", stderr="stdout")


def run(step: Path) -> tuple[int, str]:
    process = start(step)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out


def containers(step: Path) -> list[str]:
    return [path.name for path in (step.parent / "state/containers").iterdir()]


def calls(step: Path) -> list[str]:
    return (step.parent / "state/calls").read_text().splitlines()


def raw(step: Path) -> list[str]:
    return sorted(path.name for path in (step / "raw").iterdir())


def test_each_repetition_is_a_container_of_its_own(folder):
    (folder / "raw/a.7.json").write_text("of an earlier try")
    assert run(folder)[0] == 0
    assert raw(folder) == ["a.1.json", "a.2.json"]
    assert json.loads((folder / "raw/a.2.json").read_text()) == {"seed": "id-a.2"}
    assert containers(folder) == []
    assert not (folder / "out").exists()
    made = [call for call in calls(folder) if call.startswith("create")]
    assert made == [
        f"create --name {vllm_runs.CONTAINER} --label spark-cluster.bench=load "
        f"--network host image bench a.{n}"
        for n in (1, 2)
    ]


def test_a_container_that_a_power_cut_left_is_removed_first(folder):
    (folder.parent / "state/containers/id-old").write_text("load")
    (folder / "out").mkdir()
    (folder / "out/a.1.json").write_text("old")
    assert run(folder)[0] == 0
    assert calls(folder)[:2] == [" ".join(vllm_runs.LIST), "rm --force --volumes id-old"]
    assert containers(folder) == []
    assert "old" not in (folder / "raw/a.1.json").read_text()


class Node:
    """The node with Docker's stand-in, as a session asks it."""

    def __init__(self, step: Path, lock: Path) -> None:
        self.path, self.lock = f"{step.parent}:{os.environ['PATH']}", lock

    def run(self, argv: list[str], **_: Any) -> Output:
        words = [str(self.lock) if word == on_node.LOCK else word for word in argv]
        env = {**os.environ, "PATH": self.path}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
        return Output(done.returncode, done.stdout, done.stderr)


def test_what_a_killed_run_left_is_removed_unless_another_measures(folder, tmp_path):
    left = folder.parent / "state/containers"
    (left / "id-old").write_text("load")
    (left / "theirs").write_text("")
    node: Any = Node(folder, tmp_path)
    with worker._opened(tmp_path) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not vllm_job.remove_left(node)
        assert "id-old" in containers(folder)
    assert vllm_job.remove_left(node)
    assert containers(folder) == ["theirs"]
    assert not vllm_job.remove_left(node)


def test_a_container_of_somebody_else_with_that_name_stays(folder):
    (folder.parent / "state/containers/0123456789abcdef").write_text("")
    status, printed = run(folder)
    assert status == 1
    assert (
        "run 1: a container spark-bench that is not ours is in the way (0123456789ab): " in printed
    )
    assert containers(folder) == ["0123456789abcdef"]
    assert {call.split()[0] for call in calls(folder)} == {"container"}


def test_a_repetition_that_hangs_is_ended_with_its_container(folder):
    program(folder, HANGS)
    with_limit(folder, 1)
    status, printed = run(folder)
    assert status == 1
    assert "run 1: it did not end within 1 s" in printed
    assert (containers(folder), raw(folder)) == ([], [])
    assert calls(folder)[-1] == "rm --force --volumes id-a.1"


def test_nothing_is_left_when_it_is_stopped(folder):
    program(folder, HANGS)
    process = start(folder)
    waiting.until((folder.parent / "state/begun").exists)
    assert containers(folder) == ["id-a.1"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert containers(folder) == []
    assert not (folder / "out").exists()


def test_a_second_signal_does_not_cut_the_removal_off(folder):
    """As when systemd ends the unit: it signals each process, and the worker its cell again."""
    program(folder, HANGS)
    process = start(folder)
    waiting.until((folder.parent / "state/begun").exists)
    (folder.parent / "state/slow").touch()
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        waiting.until(lambda: calls(folder)[-1] == "rm --force --volumes id-a.1")
    process.communicate(timeout=60)
    assert containers(folder) == []


def test_a_signal_in_between_is_not_lost(folder):
    """While the first container is removed: the second one is not begun."""
    (folder.parent / "state/slow").touch()
    process = start(folder)
    waiting.until(lambda: (folder.parent / "state/calls").exists()
                  and "rm --force --volumes id-a.1" in calls(folder))  # fmt: skip
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert not [call for call in calls(folder) if call.endswith("bench a.2")]
    assert containers(folder) == []


def test_the_limit_of_the_cell_ends_the_container_too(folder):
    """As the worker measures it: its SIGTERM goes to all processes of the cell."""
    program(folder, HANGS)
    argv = own_program.argv(on_node.VLLM_RUNS, str(folder), "a")
    cell = {"id": "a", "argv": argv, "result": "raw/a.1.json", "timeout_s": 2.0}
    found = worker.measure(folder, cell)
    assert found["error"] == "it did not end within 2 s"
    assert containers(folder) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("print('import error')\n", "it wrote no result"),
        ("target.symlink_to('/etc/passwd')\n", "its result cannot be read: Too many levels"),
        ("os.mkfifo(target)\n", "its result is no plain file"),
        ("target.mkdir()\n", "its result is no plain file"),
        ("os.link(state / 'secret', target)\n", "its result is no plain file"),
    ],
)
def test_only_a_plain_file_is_taken_from_the_program(folder, text, why):
    (folder.parent / "state/secret").write_text("{}")
    program(folder, text)
    status, printed = run(folder)
    assert (status, raw(folder)) == (1, [])
    assert f"run 1: {why}" in printed
    assert containers(folder) == []


def test_what_docker_refuses_is_said(folder):
    (folder.parent / "state/refuse").touch()
    status, printed = run(folder)
    assert status == 1
    assert "run 1: docker create: Error response from daemon: no such image" in printed


def test_without_docker(folder):
    write_plan(folder, docker="/nowhere/docker")
    status, printed = run(folder)
    assert status == 1
    assert "docker container: No such file or directory" in printed


def test_a_large_result_is_kept_without_its_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_runs, "WHOLE_BYTES", 100)
    data = {"completed": 3, "errors": [""], "itls": [[0.5] * 100], "generated_texts": ["x" * 500]}
    (tmp_path / "r.json").write_text(json.dumps(data))
    kept = json.loads(vllm_runs.result(tmp_path, "r.json"))
    assert kept == {"completed": 3, "errors": [""]}
    (tmp_path / "r.json").write_text("[" * 500)
    with pytest.raises(vllm_runs.Ended, match="no JSON"):
        vllm_runs.result(tmp_path, "r.json")
    monkeypatch.setattr(vllm_runs, "LARGEST_BYTES", 200)
    with pytest.raises(vllm_runs.Ended, match="has more than"):
        vllm_runs.result(tmp_path, "r.json")


# -- without containers ----------------------------------------------------------------------------


def venv(folder: Path, text: str, run_s: float = 60.0) -> None:
    """Have the cell run a program of a virtual environment."""
    path = folder.parent / "vllm"
    path.write_text(f"#!{sys.executable}\nimport os, subprocess, sys, time\n{text}")
    path.chmod(0o755)
    runs = [{"argv": [str(path), f"a.{n}.json"], "file": f"a.{n}.json", "run_s": run_s}
            for n in (1, 2)]  # fmt: skip
    plan = {"runtime": "venv", "user": getpass.getuser(), "env": {"HF_HUB_OFFLINE": "1"},
            "cells": {"a": {"runs": runs}}}  # fmt: skip
    (folder / "vllm.json").write_text(json.dumps(plan))


def test_the_program_of_an_environment(folder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    venv(folder, "import json\njson.dump(dict(os.environ), open(sys.argv[1], 'w'))\n")
    assert run(folder)[0] == 0
    assert raw(folder) == ["a.1.json", "a.2.json"]
    seen = json.loads((folder / "raw/a.1.json").read_text())
    assert seen["HF_HUB_OFFLINE"] == "1"
    assert seen["HOME"] == str(folder / "out")
    assert "OPENAI_API_KEY" not in seen, "it has no variables but its own"


def test_a_program_that_hangs_is_ended_with_its_children(folder):
    text = "child = subprocess.Popen(['sleep', '600'])\n"
    text += f"open({str(folder / 'pid')!r}, 'w').write(str(child.pid))\ntime.sleep(600)\n"
    venv(folder, text, run_s=1.5)
    status, printed = run(folder)
    assert status == 1
    assert "did not end within 1.5 s" in printed
    child = int((folder / "pid").read_text())
    waiting.until(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"
