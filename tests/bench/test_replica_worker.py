"""Workers of several replicas: the same cell at the same time, and together or not at all."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import waiting
from fork_server import Forked, program
from free_ports import free_port
from test_worker import calls, health  # noqa: F401  (a fixture)

from spark_cluster.bench import on_node, replica_run
from spark_cluster.node.bench import replica_group, worker
from spark_cluster.node.bench.main import measure_plan

TOOL = """\
import json, os, sys, time
from pathlib import Path
with open("calls", "a") as calls:
    calls.write(sys.argv[1] + "\\n")
open("begun", "w").close()
me, other = Path.cwd(), Path(os.environ["OTHER"])
{more}
open(sys.argv[2], "w").write(json.dumps({{"cell": sys.argv[1]}}))
"""
MEET = """\
until = time.monotonic() + 60
seen = other / "calls"
while not seen.exists() or sys.argv[1] not in seen.read_text().split():
    assert time.monotonic() < until, "the other one is not loaded"
    time.sleep(0.01)
"""
"""Ends only when the other replica's load generator has begun the same cell."""


class Nodes:
    """Two nodes' folders of one step, and their workers."""

    def __init__(self, place: Path, url: str) -> None:
        self.health = url
        self.folders = [place / name / "run" for name in ("one", "two")]
        self.port = free_port()
        for folder in self.folders:
            folder.mkdir(parents=True)

    def plan(self, *ids: str, more: str = MEET, tokens: tuple[str, str] = ("t", "t")) -> None:
        for index, folder in enumerate(self.folders):
            (folder / "tool.py").write_text(TOOL.format(more=more))
            argv = [sys.executable, "tool.py"]
            other = str(self.folders[1 - index])
            cells = [
                {"id": id, "argv": [*argv, id, f"raw/{id}.json"], "env": {"OTHER": other},
                 "result": f"raw/{id}.json", "timeout_s": 60.0}
                for id in ids
            ]  # fmt: skip
            settings = {"index": index, "names": ["one", "two"], "address": "127.0.0.1",
                        "port": self.port, "token": tokens[index]}  # fmt: skip
            plan = {"health": self.health, "cells": cells, "replicas": settings}
            (folder / "plan.json").write_text(json.dumps(plan))

    def start(self, index: int) -> Forked:
        return program(on_node.MAIN, str(self.folders[index]))

    def run(self) -> list[tuple[int, str]]:
        return [ended(process) for process in (self.start(0), self.start(1))]

    def results(self, cell: str) -> list[dict[str, Any]]:
        paths = [folder / f"cells/{cell}.json" for folder in self.folders]
        return [json.loads(path.read_text()) for path in paths if path.exists()]


def ended(process: Forked) -> tuple[int, str]:
    out, err = process.communicate(timeout=100)
    return process.returncode, out + err


@pytest.fixture
def nodes(tmp_path: Path, health: str) -> Nodes:  # noqa: F811
    return Nodes(tmp_path, health)


def test_each_cell_is_measured_on_all_at_the_same_time(nodes):
    nodes.plan("a", "b")
    assert [status for status, _ in nodes.run()] == [worker.DONE] * 2
    for cell in ("a", "b"):
        first, second = nodes.results(cell)
        assert first["status"] == second["status"] == 0
        assert first["attempt"] == second["attempt"]
        assert first["clock_s"] == 0.0
        assert abs(second["clock_s"]) < 60
        assert max(first["started"], second["started"]) < min(first["finished"], second["finished"])
    assert nodes.results("a")[0]["attempt"] != nodes.results("b")[0]["attempt"]
    assert all((folder / worker.COMPLETE).exists() for folder in nodes.folders)


def test_one_that_is_killed_ends_the_other_and_all_measure_the_cell_again(nodes):
    # As long as the test: nothing ends the program of a killed worker, which a unit does on a node.
    wait = "for _ in range(6000):\n        if me.exists(): time.sleep(0.1)\n"
    hang = f"{MEET}if sys.argv[1] == 'b' and not (me / 'again').exists():\n    {wait}"
    nodes.plan("a", "b", "c", more=hang)
    one, two = nodes.start(0), nodes.start(1)
    waiting.until(lambda: all((f / "raw/b.log").exists() for f in nodes.folders))
    waiting.until(lambda: all("b" in calls(f) for f in nodes.folders))
    two.kill()
    ended(two)
    status, text = ended(one)
    assert status == worker.NO_REPLICA
    assert "another replica is lost: two: its worker has ended" in text
    assert nodes.results("b") == []
    first = nodes.results("a")
    for folder in nodes.folders:
        (folder / "again").touch()
    assert [status for status, _ in nodes.run()] == [worker.DONE] * 2
    assert nodes.results("a") == first, "it is not measured twice"
    assert [calls(folder) for folder in nodes.folders] == [["a", "b", "b", "c"]] * 2


def test_a_result_that_one_alone_has_kept_is_measured_again_by_both(nodes):
    nodes.plan("a", "b")
    nodes.run()
    (nodes.folders[1] / "cells/b.json").unlink()
    before = nodes.results("b")[0]["attempt"]
    assert [status for status, _ in nodes.run()] == [worker.DONE] * 2
    first, second = nodes.results("b")
    assert first["attempt"] == second["attempt"] != before
    assert calls(nodes.folders[0]) == ["a", "b", "b"]


def test_stopped_on_one_node(nodes):
    nodes.plan("a", more=f"{MEET}time.sleep(600)\n")
    processes = [nodes.start(0), nodes.start(1)]
    waiting.until(lambda: all((folder / "begun").exists() for folder in nodes.folders))
    (nodes.folders[1] / "stop").touch()
    (one, told), (two, _) = (ended(process) for process in processes)
    assert (one, two) == (worker.NO_REPLICA, worker.STOPPED)
    assert "two: stopped" in told
    assert nodes.results("a") == []


def test_terminated_while_the_other_one_is_waited_for(nodes):
    nodes.plan("a")
    process = nodes.start(0)
    waiting.until(lambda: connects(nodes.port))
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == worker.STOPPED
    assert not (nodes.folders[0] / "calls").exists()


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_server_that_does_not_answer_ends_all(nodes, monkeypatch, capsys):
    nodes.plan("a")
    plan = json.loads((nodes.folders[0] / "plan.json").read_text())
    plan["health"] = "http://127.0.0.1:9/health"
    (nodes.folders[0] / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setattr(worker, "HEALTH_S", 0.0)
    two = nodes.start(1)
    assert measure_plan(nodes.folders[0]) == worker.NO_SERVER
    status, text = ended(two)
    assert status == worker.NO_REPLICA
    assert "one: the server does not answer at http://127.0.0.1:9/health" in text
    assert "does not answer" in capsys.readouterr().err
    assert not (nodes.folders[1] / "calls").exists()


def test_who_does_not_know_the_token_is_not_let_in(nodes, monkeypatch, capsys):
    nodes.plan("a", tokens=("secret", "guessed"))
    monkeypatch.setattr(replica_group, "JOIN_S", 3.0)
    two = nodes.start(1)
    try:
        assert measure_plan(nodes.folders[0]) == worker.NO_REPLICA
    finally:
        two.kill()
        ended(two)
    assert "two did not come to 127.0.0.1" in capsys.readouterr().err
    assert not any((folder / "calls").exists() for folder in nodes.folders)


def test_a_port_that_is_taken(nodes, capsys):
    nodes.plan("a")
    with socket.create_server(("127.0.0.1", nodes.port)):
        assert measure_plan(nodes.folders[0]) == worker.NO_REPLICA
    assert f"127.0.0.1:{nodes.port}: Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("text", [b"[1]\n", b"no json\n", b"\xff\n"])
def test_a_message_that_is_none(text):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(text)
        with pytest.raises(replica_group.Lost, match="two: its message cannot be read"):
            replica_group.Peer(ours, "two", longest=10).look(5.0)


def test_a_message_that_comes_in_parts_and_two_at_once():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = replica_group.Peer(ours, "two")
        theirs.sendall(b'{"a": 1')
        peer.look(5.0)
        theirs.sendall(b'}\n{"b": 2}\n')
        assert [peer.receive(5.0), peer.receive(5.0)] == [{"a": 1}, {"b": 2}]
        theirs.sendall(b'{"end": "stopped"}\n')
        with pytest.raises(replica_group.Lost, match="two: stopped"):
            peer.receive(5.0)


def test_a_message_without_an_end():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * 20)
        with pytest.raises(replica_group.Lost, match="no end"):
            replica_group.Peer(ours, "two", longest=10).look(5.0)


def test_a_cell_that_loses_one_server_twice_has_a_result(nodes, monkeypatch):
    """The first time it is measured again; the second time the cell is what ends the server."""
    nodes.plan("a")
    monkeypatch.setattr(worker, "LOST_S", 0.0)
    monkeypatch.setattr(worker, "may_begin", lambda *_: None)
    plan = json.loads((nodes.folders[0] / "plan.json").read_text())
    plan["health"] = "http://127.0.0.1:9/health"
    (nodes.folders[0] / "plan.json").write_text(json.dumps(plan))
    found = []
    for _ in range(2):
        two = nodes.start(1)
        found.append((measure_plan(nodes.folders[0]), ended(two)[0]))
    assert found == [(worker.NO_SERVER, worker.NO_REPLICA), (worker.DONE, worker.DONE)]
    assert len(nodes.results("a")) == 2
    assert (nodes.folders[0] / "raw/a.lost").exists()


RUNS = """\
import subprocess
def run(number):
    (me / f"{{sys.argv[1]}}-{{number}}").touch()
    subprocess.run(os.environ["WAIT"], shell=True, check=True, timeout=90)
for number in (1, 2, 3):
    run(number)
    assert leaves_early or (other / f"{{sys.argv[1]}}-{{number}}").exists(), "it did not wait"
"""


def with_runs(nodes: Nodes, early: str) -> None:
    nodes.plan("a", "b", more=f"{MEET}leaves_early = {early}\n" + RUNS.replace("{{", "{").replace(
        "}}", "}"))  # fmt: skip
    for folder in nodes.folders:
        plan = json.loads((folder / "plan.json").read_text())
        for cell in plan["cells"]:
            cell["env"]["WAIT"] = replica_run.wait_command(str(folder))
        (folder / "plan.json").write_text(json.dumps(plan))


def test_a_run_begins_when_all_have_ended_the_one_before(nodes):
    with_runs(nodes, "False")
    assert [status for status, _ in nodes.run()] == [worker.DONE] * 2
    for cell in ("a", "b"):
        assert [found["status"] for found in nodes.results(cell)] == [0, 0]
    assert not any((folder / replica_group.MEETING).exists() for folder in nodes.folders)


@pytest.mark.parametrize("leaver", [0, 1])
def test_one_that_ends_early_is_not_waited_for(nodes, leaver):
    with_runs(nodes, "True")
    tool = nodes.folders[leaver] / "tool.py"
    tool.write_text(tool.read_text().replace("(1, 2, 3)", "(1,)"))
    assert [status for status, _ in nodes.run()] == [worker.DONE] * 2
    other = nodes.folders[1 - leaver]
    assert (other / "b-3").exists()
    assert not (nodes.folders[leaver] / "b-2").exists()
    assert [found["status"] for found in nodes.results("b")] == [0, 0]


def test_who_connects_and_says_nothing_or_nonsense_does_not_keep_the_others_out(
    monkeypatch, tmp_path
):
    """A port that is open to a network is tried by anyone in it."""
    monkeypatch.setattr(replica_group, "ADMIT_S", 120.0)  # longer than this test may take
    names = {"names": ["one", "two"], "address": "127.0.0.1", "port": free_port(), "token": "t"}
    groups = [replica_group.Group({**names, "index": n}, lambda: None) for n in (0, 1)]
    deep = "[" * 2000 + "]" * 2000
    nonsense = [
        '{"replica": Infinity, "proof": ""}',
        '{"replica": -1, "proof": "x", "nonce": []}',
        f'{{"replica": 1, "proof": {deep}}}',
        "x" * (replica_group.NEWCOMER_BYTES + 10),
        '{"replica": 1, "proof": "\\udcff"}',
    ]
    found: list[object] = []

    def joined(group: replica_group.Group, more: dict[str, int]) -> None:
        try:
            with group:
                found.append(group.exchange(**more))
        except Exception as error:  # noqa: BLE001  (compared below)
            found.append(error)

    first = threading.Thread(target=joined, args=(groups[0], {"a": 1}), daemon=True)
    first.start()
    with contextlib.ExitStack() as strangers:
        for text in ("", "", *nonsense):
            address = ("127.0.0.1", names["port"])
            waiting.until(lambda address=address: _connected(address, strangers))
            strangers.last.sendall(f"{text}\n".encode() if text else b"")  # type: ignore[attr-defined]
        second = threading.Thread(target=joined, args=(groups[1], {"b": 2}), daemon=True)
        second.start()
        for thread in (first, second):
            thread.join(60.0)
    assert found == [[{"a": 1}, {"b": 2}]] * 2


def _connected(address: tuple[str, int], strangers: contextlib.ExitStack) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        strangers.last = strangers.enter_context(  # type: ignore[attr-defined]
            socket.create_connection(address, 5.0)
        )
        return True
    return False


def test_what_ended_a_worker_is_told_in_words(nodes):
    ours, theirs = socket.socketpair()
    settings = {"index": 0, "names": ["one", "two"], "address": "", "port": 0, "token": ""}
    group = replica_group.Group(settings, lambda: None)
    with ours, theirs:
        group._peers[1] = replica_group.Peer(ours)
        group.__exit__(SystemExit, SystemExit(worker.STOPPED), None)
        assert json.loads(theirs.recv(1000)) == {"end": "it was ended"}
