"""The program on the node that measures cell by cell: what it does when things go wrong."""

import getpass
import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import waiting
from factories import put
from fork_server import Forked, program
from health_server import HealthServer

from spark_cluster.bench import on_node
from spark_cluster.node import measure
from spark_cluster.resources import Command, Directory, File
from spark_cluster.runner.session import Output

TOOL = """\
import json, os, sys, time
with open("calls", "a") as calls:
    calls.write(sys.argv[1] + "\\n")
{more}
open(sys.argv[2], "w").write(json.dumps({{"cell": sys.argv[1]}}))
"""


@pytest.fixture
def server() -> Iterator[HealthServer]:
    with HealthServer() as served:
        yield served


@pytest.fixture
def health(server: HealthServer) -> str:
    return f"{server.url}/health"


def cell(id: str, commands: list[list[str]], **changed: Any) -> dict[str, Any]:
    runs = [{"argv": argv, "prints": ""} for argv in commands]
    return {"id": id, "runs": runs, "env": {}, "timeout_s": 60.0, "as_root": False, **changed}


def write_plan(folder: Path, health: str, *cells: dict[str, Any]) -> Path:
    plan = {"health": [health], "cells": cells, "user": getpass.getuser()}
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def change(folder: Path, number: int = 0, **changed: Any) -> None:
    """Change a cell of the plan, or with `health` and `user` the plan."""
    plan = json.loads((folder / "plan.json").read_text())
    (plan if changed.keys() & plan.keys() else plan["cells"][number]).update(changed)
    (folder / "plan.json").write_text(json.dumps(plan))


def told(folder: Path, cell: str = "a") -> dict[str, Any]:
    return json.loads((folder / f"cells/{cell}.json").read_text())


@pytest.fixture
def plan(tmp_path: Path, health: str) -> Any:
    def make(*ids: str, more: str = "", timeout_s: float = 60.0) -> Path:
        (tmp_path / "tool.py").write_text(TOOL.format(more=more))
        cells = [
            cell(id, [[sys.executable, "tool.py", id, f"raw/{id}.json"]], timeout_s=timeout_s)
            for id in ids
        ]
        return write_plan(tmp_path, health, *cells)

    return make


def lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-lock") / "measuring"


def start(folder: Path) -> Forked:
    return program(on_node.MAIN, str(folder), str(lock(folder)))


def here(folder: Path) -> int:
    """Measure in this process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        return measure.main(str(folder), str(lock(folder)))
    finally:
        signal.signal(signal.SIGTERM, before)


def run(folder: Path) -> tuple[int, str]:
    process = start(folder)
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


def test_each_cell_once_and_again_nothing(plan):
    folder = plan("a", "b")
    status, said = run(folder)
    assert status == measure.DONE, said
    assert "cell 2 of 2: b: ok" in said
    assert json.loads((folder / "raw/b.json").read_text()) == {"cell": "b"}
    assert told(folder)["status"] == 0
    assert (folder / measure.COMPLETE).exists()
    assert run(folder) == (measure.DONE, "")
    assert calls(folder) == ["a", "b"]


def test_a_cell_that_was_cut_is_measured_again_and_no_other(plan):
    folder = plan("a", "b", "c", more="if sys.argv[1] == 'b' and not os.path.exists('again'):\n"
                  "    open('begun', 'w').close(); time.sleep(60)\n")  # fmt: skip
    process = start(folder)
    waiting.until((folder / "begun").exists)
    process.kill()
    process.communicate(timeout=60)
    (folder / "again").touch()
    assert run(folder)[0] == measure.DONE
    assert calls(folder) == ["a", "b", "b", "c"]


@pytest.mark.parametrize("by", ["a signal", "its user"])
def test_no_process_of_a_load_generator_is_left_when_it_is_stopped(plan, by):
    more = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    more += "open('pid', 'w').write(str(child.pid))\ntime.sleep(600)\n"
    folder = plan("a", "b", more=more)
    process = start(folder)
    waiting.until(lambda: (folder / "pid").exists() and (folder / "pid").read_text())
    if by == "a signal":
        process.send_signal(signal.SIGTERM)
    else:
        (folder / "stop").touch()
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (measure.STOPPED, "stopped\n")
    pid = int((folder / "pid").read_text())
    waiting.until(lambda: gone(pid))
    assert calls(folder) == ["a"]
    assert not (folder / "cells/a.json").exists()
    assert not (folder / measure.COMPLETE).exists()


def test_a_step_that_was_stopped_before_it_begins_measures_nothing(plan):
    folder = plan("a")
    (folder / "stop").touch()
    assert here(folder) == measure.STOPPED
    assert not (folder / "calls").exists()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_one_that_hangs_is_ended_and_the_next_is_measured(plan):
    folder = plan("a", "b", more="time.sleep(600 if sys.argv[1] == 'a' else 0)\n", timeout_s=1)
    change(folder, 1, timeout_s=60)
    assert run(folder)[0] == measure.DONE
    ended = told(folder)
    assert (ended["status"], ended["error"]) == (None, "it did not end within 1 s")
    assert told(folder, "b")["status"] == 0


class Node:
    """A node whose lock is in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.lock = str(lock(folder))

    def run(self, argv: list[str], **_: Any) -> Output:
        words = [self.lock if word == measure.LOCK else word for word in argv]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return Output(done.returncode, done.stdout, done.stderr)


def test_one_benchmark_at_a_time_and_which_one_is_known(plan, tmp_path_factory):
    folder = plan("a", more="open('begun', 'w').close(); time.sleep(600)\n")
    node: Any = Node(folder)
    assert on_node.measured(node) == ""
    process = start(folder)
    waiting.until((folder / "begun").exists)
    assert on_node.measured(node) == str(folder)
    assert run(folder) == (measure.BUSY, f"{measure.BUSY_TEXT}\n")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert on_node.measured(node) == "", "the kernel releases it, whoever ends"
    assert not (folder / "cells/a.json").exists()


def test_what_root_works_in_is_roots():
    """The login user could put links into folders of its own, which root would follow."""
    plan = {"health": ("http://x",), "cells": (), "user": "nvidia"}
    work = on_node.measuring(f"{on_node.FOLDER}/r/s", plan, 600.0)
    assert {r.owner for r in work if isinstance(r, Directory)} == {"root"}
    assert {r.owner for r in work if isinstance(r, File)} <= {None, "root"}
    (command,) = [r for r in work if isinstance(r, Command)]
    assert command.user is None, "it gives each load generator the login user's rights"


def test_a_link_that_a_load_generator_left_is_not_followed(plan, tmp_path_factory):
    """The folder of its results is its own: it can put anything there."""
    secret = tmp_path_factory.mktemp("of-root") / "secret"
    secret.write_text("mine")
    folder = plan("a", "b", more=f"os.symlink({str(secret)!r}, 'raw/b.log')\n"
                  f"os.symlink({str(secret)!r}, 'raw/a.more')\n"
                  f"os.mkfifo('raw/b.pipe') if sys.argv[1] == 'a' else None\n")  # fmt: skip
    assert run(folder)[0] == measure.DONE
    assert secret.read_text() == "mine"
    assert not (folder / "raw/b.pipe").exists()
    assert told(folder, "b")["status"] == 1, "the link is there"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives rights away")
def test_a_load_generator_has_the_rights_of_the_login_user(tmp_path, health):
    argv = ["sh", "-c", "id -u; echo $HOME; echo {} > raw/a.json"]
    folder = write_plan(tmp_path, health, cell("a", [argv]))
    change(folder, user="nobody")
    for above in (folder, *folder.parents[:2]):
        above.chmod(above.stat().st_mode | 0o111)
    (folder / "raw").mkdir()  # by root, who was killed before it gave the folder away
    assert run(folder)[0] == measure.DONE
    nobody = pwd.getpwnam("nobody").pw_uid
    assert (folder / "raw/a.log").read_text() == f"{nobody}\n{folder}/home\n"
    assert {(folder / name).stat().st_uid for name in ("raw", "home", "raw/a.json")} == {nobody}
    assert (folder / "cells").stat().st_uid == 0


def test_a_cell_that_lost_its_server_is_measured_again_once(plan, server, monkeypatch, capsys):
    """The first time the server is to blame, the second time the cell."""
    monkeypatch.setattr(measure, "LOST_S", 0.0)
    folder = plan("a", "b")
    monkeypatch.setattr(measure.MeasureStep, "may_begin", lambda _: None)
    server.status = 503
    assert here(folder) == measure.NO_SERVER
    assert "the server ended in cell a" in capsys.readouterr().err
    assert not (folder / "cells/a.json").exists()
    server.status = 200
    assert here(folder) == measure.DONE
    assert calls(folder) == ["a", "a", "b"]


def test_one_replica_that_has_ended(plan, health, monkeypatch, capsys):
    """What the other one does alone is no result of both."""
    monkeypatch.setattr(measure, "HEALTH_S", 0.0)
    folder = plan("a")
    change(folder, health=[health, "http://127.0.0.1:9/health"])
    assert here(folder) == measure.NO_SERVER
    assert "does not answer at http://127.0.0.1:9/health" in capsys.readouterr().err
    assert not (folder / "calls").exists()


def test_a_full_disk(plan, monkeypatch, capsys):
    folder = plan("a")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(measure.os, "fsync", full)
    assert here(folder) == measure.NO_SPACE
    assert "no space is left" in capsys.readouterr().err
    monkeypatch.undo()
    assert here(folder) == measure.DONE


def test_a_cell_that_met_a_full_disk_is_measured_again(plan, monkeypatch, capsys):
    folder = plan("a", "b", more="if os.path.exists('full'): sys.exit(1)")
    (folder / "full").touch()
    free = os.statvfs(folder)
    looks = iter([free.f_bavail])

    def look(_folder: Path) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=free.f_frsize, f_bavail=next(looks, 0))

    monkeypatch.setattr(measure.os, "statvfs", look)
    assert here(folder) == measure.NO_SPACE
    assert "64 MiB are free" in capsys.readouterr().err
    assert not (folder / "cells/a.json").exists()
    monkeypatch.undo()
    (folder / "full").unlink()
    assert here(folder) == measure.DONE
    assert calls(folder) == ["a", "a", "b"]


# -- in a container --------------------------------------------------------------------------------

DOCKER = """\
#!{python} -IS
import os, pathlib, sys, time
state = pathlib.Path({state!r})
with (state / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
if sys.argv[1] == "run":
    (state / "left").write_text("id-1")
    exec((state / "program").read_text())
    (state / "left").unlink()
elif sys.argv[2] == "ls":
    print((state / "left").read_text() if (state / "left").exists() else "")
elif sys.argv[2] == "rm":
    (state / "left").unlink()
"""
RUN = ["docker", "run", "image"]


@pytest.fixture
def contained(tmp_path: Path, health: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A step with a cell of two runs in containers, whose results are printed."""
    state, step = tmp_path / "state", tmp_path / "step"
    for folder in (state, step):
        folder.mkdir()
    put(state / "docker", DOCKER.format(python=sys.executable, state=str(state)), 0o755)
    path = f"{state}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    runs = [{"argv": [*RUN, str(n)], "prints": f"a.{n}.json"} for n in (1, 2)]
    made = cell("a", [], runs=runs, as_root=True, env={"PATH": path})
    (state / "program").write_text("print('measured', file=sys.stderr)\nprint(sys.argv[-1])\n")
    return write_plan(step, health, made)


def docker(step: Path) -> list[str]:
    return [line.partition(" --")[0] for line in (step.parent / "state/calls").open()]


def test_each_run_is_a_container_of_its_own_that_prints_its_result(contained):
    assert here(contained) == measure.DONE
    came = {path.name: path.read_text() for path in (contained / "raw").iterdir()}
    assert came == {"a.1.json": "1\n", "a.2.json": "2\n", "a.log": "measured\nmeasured\n"}
    runs = [line.strip() for line in docker(contained) if line.startswith("run")]
    assert runs == ["run image 1", "run image 2"]


def test_a_run_that_fails_is_the_last_one(contained):
    (contained.parent / "state/program").write_text("sys.exit('Error: no such image')\n")
    assert here(contained) == measure.DONE
    assert told(contained)["status"] == 1
    assert "no such image" in (contained / "raw/a.log").read_text()
    assert [path.name for path in (contained / "raw").iterdir()] == ["a.log"], "no result is left"
    assert docker(contained).count("container rm") == 1, "what is left of it"


@pytest.mark.parametrize("how", ["stopped", "too long", "without end"])
def test_no_container_is_left(contained, how, monkeypatch):
    monkeypatch.setattr(measure, "ENDLESS_BYTES", 1 << 20)
    program, stop = "time.sleep(600)\n", ""
    if how == "without end":
        program = "while True:\n    print('x' * 100_000)\n"
    if how == "too long":
        change(contained, timeout_s=1)
    if how == "stopped":
        stop = f"pathlib.Path({str(contained)!r}, 'stop').touch()\n"
    (contained.parent / "state/program").write_text(stop + program)
    assert here(contained) == (measure.STOPPED if how == "stopped" else measure.DONE)
    assert not (contained.parent / "state/left").exists()
    why = {"too long": "it did not end within 1 s", "without end": "it prints without end"}
    assert how == "stopped" or told(contained)["error"] == why[how]


def test_docker_reads_no_settings_of_the_login_user(contained):
    """They name programs, which its client runs as root."""
    (contained.parent / "state/program").write_text("print(os.environ['HOME'])\n")
    assert here(contained) == measure.DONE
    assert (contained / "raw/a.1.json").read_text() == "/root\n"


def test_a_container_that_a_power_cut_left_is_removed_first(contained):
    (contained.parent / "state/left").write_text("id-0")
    assert here(contained) == measure.DONE
    assert docker(contained)[:3] == ["container ls", "container rm", "run image 1\n"]


def test_without_docker(contained):
    change(contained, env={"PATH": "/nowhere"})
    assert here(contained) == measure.DONE
    assert "docker: no such command" in told(contained)["error"]
