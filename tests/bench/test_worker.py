"""The process on the node that measures cell by cell: what it does when things go wrong."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import waiting
from fork_server import Forked, program

from spark_cluster.bench import on_node
from spark_cluster.node.bench import worker
from spark_cluster.node.bench.main import measure_plan
from spark_cluster.resources import Command, Directory

TOOL = """\
import json, os, sys, time
with open("calls", "a") as calls:
    calls.write(sys.argv[1] + "\\n")
{more}
open(sys.argv[2], "w").write(json.dumps({{"cell": sys.argv[1]}}))
"""


class Health(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(type(self).status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def health() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/health"
    Health.status = 200
    server.shutdown()
    server.server_close()


@pytest.fixture
def plan(tmp_path: Path, health: str) -> Any:
    def make(*ids: str, more: str = "", timeout_s: float = 60.0) -> Path:
        (tmp_path / "tool.py").write_text(TOOL.format(more=more))
        cells = [
            {
                "id": id,
                "argv": [sys.executable, "tool.py", id, f"raw/{id}.json"],
                "result": f"raw/{id}.json",
                "timeout_s": timeout_s,
            }
            for id in ids
        ]
        (tmp_path / "plan.json").write_text(json.dumps({"health": [health], "cells": cells}))
        return tmp_path

    return make


def start(folder: Path) -> Forked:
    return program(on_node.MAIN, str(folder))


def run(folder: Path) -> tuple[int, str]:
    process = start(folder)
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


def test_each_cell_once_and_again_nothing(plan):
    folder = plan("a", "b")
    status, said = run(folder)
    assert status == worker.DONE, said
    assert "cell 2 of 2: b: ok" in said
    assert json.loads((folder / "raw/b.json").read_text()) == {"cell": "b"}
    assert json.loads((folder / "cells/a.json").read_text())["status"] == 0
    assert (folder / worker.COMPLETE).exists()
    assert run(folder) == (worker.DONE, "")
    assert calls(folder) == ["a", "b"]


def test_a_cell_that_was_cut_is_measured_again_and_no_other(plan):
    folder = plan("a", "b", "c", more="if sys.argv[1] == 'b' and not os.path.exists('again'):\n"
                  "    open('begun', 'w').close(); time.sleep(60)\n")  # fmt: skip
    process = start(folder)
    waiting.until((folder / "begun").exists)
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    (folder / "again").touch()
    assert run(folder)[0] == worker.DONE
    assert calls(folder) == ["a", "b", "b", "c"]


def test_no_process_of_a_load_generator_is_left(plan):
    more = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    folder = plan("a", more=f"{more}open('pid', 'w').write(str(child.pid))\ntime.sleep(600)\n")
    process = start(folder)
    waiting.until(lambda: (folder / "pid").exists() and (folder / "pid").read_text())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == worker.STOPPED
    pid = int((folder / "pid").read_text())
    waiting.until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))
    assert not (folder / "cells/a.json").exists()


def test_an_end_that_comes_while_a_load_generator_is_started_ends_that_too(tmp_path, monkeypatch):
    started: list[subprocess.Popen[bytes]] = []

    class Slow(subprocess.Popen):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(worker.subprocess, "Popen", Slow)
    (tmp_path / "raw").mkdir()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(worker.STOPPED))
    try:
        cell = {"id": "a", "argv": ["sleep", "600"], "result": "raw/a.json", "timeout_s": 60}
        with pytest.raises(SystemExit):
            worker.measure(tmp_path, cell)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started[0].returncode == -signal.SIGTERM


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_one_that_hangs_is_ended_and_the_next_is_measured(plan):
    folder = plan("a", "b", more="time.sleep(600 if sys.argv[1] == 'a' else 0)\n", timeout_s=1)
    (folder / "plan.json").write_text(
        (folder / "plan.json").read_text().replace('"timeout_s": 1}]', '"timeout_s": 60}]')
    )
    assert run(folder)[0] == worker.DONE
    told = json.loads((folder / "cells/a.json").read_text())
    assert (told["status"], told["error"]) == (None, "it did not end within 1 s")
    assert json.loads((folder / "cells/b.json").read_text())["status"] == 0


def test_stopped_in_the_middle(plan):
    folder = plan("a", "b", more="open('begun', 'w').close(); time.sleep(600)\n")
    process = start(folder)
    waiting.until((folder / "begun").exists)
    (folder / "stop").touch()
    assert process.communicate(timeout=60)[1] == "stopped\n"
    assert process.returncode == worker.STOPPED
    assert calls(folder) == ["a"]
    assert not (folder / worker.COMPLETE).exists()


def test_two_at_once(plan):
    folder = plan("a", more="open('begun', 'w').close(); time.sleep(600)\n")
    process = start(folder)
    waiting.until((folder / "begun").exists)
    status, said = run(folder)
    assert status == worker.BUSY
    assert "another process measures" in said
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def test_another_run_on_the_node(plan, tmp_path_factory):
    """By the command that root runs there: the lock is in a folder that only root opens."""
    folder, lock = plan("a"), tmp_path_factory.mktemp("lock")
    (folder / on_node.ARCHIVE).write_bytes(on_node.own_programs())
    command = on_node.measure_command(str(folder), "root", str(lock))

    def measure() -> tuple[int, str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stderr

    handle = os.open(lock, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert measure() == (worker.BUSY, f"{on_node.BUSY_TEXT}\n")
    assert not (folder / "calls").exists()
    os.close(handle)
    assert measure()[0] == worker.DONE
    assert calls(folder) == ["a"]
    lock.rmdir()
    status, said = measure()
    assert status not in (worker.DONE, worker.BUSY)
    assert str(lock) in said


def test_no_other_user_can_hold_a_lock():
    job = on_node.Job(f"{on_node.FOLDER}/r/s", ("http://x",), (), {}, "nvidia")
    folders = {r.path: r for r in job.resources if isinstance(r, Directory)}
    lock = folders[on_node.LOCK]
    assert (lock.mode, lock.owner) == (0o700, "root")
    (command,) = [r for r in job.resources if isinstance(r, Command)]
    assert command.user is None, "root opens the lock, and gives up its rights then"
    assert command.argv[3:5] == (on_node.LOCK, "nvidia")


def test_the_lock_of_a_step_is_for_its_user_only(plan):
    folder = plan("a")
    (folder / "lock").touch(0o644)
    assert run(folder)[0] == worker.DONE
    assert (folder / "lock").stat().st_mode & 0o777 == 0o600


def test_a_cell_that_lost_its_server_is_measured_again_once(plan, monkeypatch, capsys):
    """The first time the server is to blame, the second time the cell."""
    monkeypatch.setattr(worker, "LOST_S", 0.0)
    folder = plan("a", "b")
    monkeypatch.setattr(worker, "may_begin", lambda *_: None)
    Health.status = 503
    assert measure_plan(folder) == worker.NO_SERVER
    assert "the server ended in cell a" in capsys.readouterr().err
    assert not (folder / "cells/a.json").exists()
    Health.status = 200
    assert measure_plan(folder) == worker.DONE
    assert calls(folder) == ["a", "a", "b"]


def test_a_server_that_has_ended(plan, monkeypatch, capsys):
    Health.status = 503
    monkeypatch.setattr(worker, "HEALTH_S", 0.0)
    folder = plan("a")
    assert measure_plan(folder) == worker.NO_SERVER
    assert "does not answer" in capsys.readouterr().err
    assert not (folder / "cells/a.json").exists()


def test_one_replica_that_has_ended(plan, monkeypatch, capsys):
    """What the other one does alone is no result of both."""
    monkeypatch.setattr(worker, "HEALTH_S", 0.0)
    folder = plan("a")
    told = json.loads((folder / "plan.json").read_text())
    told["health"].append("http://127.0.0.1:9/health")
    (folder / "plan.json").write_text(json.dumps(told))
    assert measure_plan(folder) == worker.NO_SERVER
    assert "does not answer at http://127.0.0.1:9/health" in capsys.readouterr().err
    assert not (folder / "calls").exists()


def test_a_full_disk(plan, monkeypatch, capsys):
    folder = plan("a")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker.os, "fsync", full)
    assert measure_plan(folder) == worker.NO_SPACE
    assert "no space is left" in capsys.readouterr().err
    monkeypatch.undo()
    assert measure_plan(folder) == worker.DONE


def test_a_cell_that_met_a_full_disk_is_measured_again(plan, monkeypatch, capsys):
    folder = plan("a", "b", more="if os.path.exists('full'): sys.exit(1)")
    (folder / "full").touch()
    free = os.statvfs(folder)
    looks = iter([free.f_bavail])

    def look(_folder: Path) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=free.f_frsize, f_bavail=next(looks, 0))

    monkeypatch.setattr(worker.os, "statvfs", look)
    assert measure_plan(folder) == worker.NO_SPACE
    assert "64 MiB are free" in capsys.readouterr().err
    assert not (folder / "cells/a.json").exists()
    monkeypatch.undo()
    (folder / "full").unlink()
    assert measure_plan(folder) == worker.DONE
    assert calls(folder) == ["a", "a", "b"]
