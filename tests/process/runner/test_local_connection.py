"""This machine as a node: real agents over pipes, as its user and through a stand-in of sudo."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from factories import put
from piped_cluster import Dials
from program import invoke
from waiting import FAR_S, HANG_S, until

from spark_cluster.config.inventory import InventoryNode
from spark_cluster.errors import Failed, Interrupted, SparkClusterError, Unreachable
from spark_cluster.resources import File
from spark_cluster.runner import delivery, host_key_change, node_connection, wire
from spark_cluster.runner.connections import Connections
from spark_cluster.runner.delivery import document
from spark_cluster.runner.events import Bus
from spark_cluster.runner.node_connection import LocalConnection

SUDO = Path(__file__).with_name("node_programs").joinpath("sudo").read_text()


@pytest.fixture
def home(tmp_path: Path, agents_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home with the agent's code, and a first folder of PATH."""
    monkeypatch.setenv("HOME", str(agents_home))
    put(tmp_path / "bin/python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n', 0o755)
    monkeypatch.setattr(node_connection, "SEARCH_PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return agents_home


@pytest.fixture
def connect(home: Path, tmp_path: Path) -> Iterator[Callable[..., LocalConnection]]:
    """Connections whose agents see a scratch root."""
    root = tmp_path / "spark1"
    for name in ("etc", "srv"):
        (root / name).mkdir(parents=True)

    def connection(*options: Any) -> LocalConnection:
        return LocalConnection("spark1", *options, root=str(root))

    yield connection


def test_an_agent_works_here(connect, tmp_path):
    connection = connect()
    session = connection.session("r1", become=False)
    assert session.run(["sh", "-c", "echo hello; exit 3"]).stdout == "hello\n"
    content = os.urandom(3 << 20)
    packed = document([File("/srv/large", content=content)])
    reply = session.request("apply", blobs=packed.blobs, resources=packed.resources, run="r1")
    assert reply["ok"]
    assert (tmp_path / "spark1/srv/large").read_bytes() == content
    session.close()
    connection.close()
    assert connection.host_key() is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells")
def test_an_agent_gets_no_other_variable_of_the_caller(connect, home, monkeypatch):
    """They may hold secrets, or have it import other code."""
    for name in ("HF_TOKEN", "PYTHONPATH", "LD_LIBRARY_PATH", "SPARK_CLUSTER_TEST"):
        monkeypatch.setenv(name, "/of-the-caller")
    monkeypatch.setenv("LANG", "C.UTF-8")
    session = connect().session("r1", become=False)
    session.request("gather")
    has = Path(f"/proc/{session._channel._process.pid}/environ").read_text().split("\0")
    assert {f"HOME={home}", "LANG=C.UTF-8"} <= set(has)
    assert not [text for text in has if "of-the-caller" in text]
    session.close()


def test_an_agent_ends_with_its_session(connect):
    session = connect().session("r1", become=False)
    process = session._channel._process
    session.request("gather")
    session.close()
    until(lambda: process.poll() is not None)


@pytest.mark.parametrize("reads", ["", "head -c 10 >/dev/null; "])
def test_a_program_that_ends_before_it_has_read_all_is_heard(connect, home, tmp_path, reads):
    """Its end resets the connection; what it said is the reason, not the reset."""
    script = f"#!/bin/sh\n{reads}echo 'no room for the interpreter' >&2\nexit 3\n"
    put(tmp_path / "bin/python3", script, 0o755)
    session = connect().session("r1", become=False)
    with pytest.raises(Failed, match="the agent did not start: no room for the interpreter"):
        session.request("gather")
    session.close()


def test_an_agent_that_does_not_end_is_left(connect, home, tmp_path, monkeypatch):
    """Its session is closed under the reader, which takes that for the end."""
    monkeypatch.setattr(node_connection, "LEAVES_WITHIN_S", 0.1)
    (tmp_path / "bin/python3").write_text(f"#!/bin/sh\nexec sleep {FAR_S}\n")
    session = connect().session("r1", become=False)
    pending = session.submit("gather")
    session.close()
    with pytest.raises(Unreachable, match="the connection was cut"):
        pending.wait()
    session._channel._process.kill()


@pytest.fixture
def become(connect, tmp_path, monkeypatch):
    """`become("password", tries=3)`: a session by something that asks as sudo does, and the lines
    that it took for passwords."""
    monkeypatch.setattr(LocalConnection, "user", property(lambda _self: "me"))
    log = put(tmp_path / "log")

    def start(password, tries=3):
        given = f"log, tries = open({str(log)!r}, 'a'), {tries}"
        put(tmp_path / "bin/sudo", f"#!{sys.executable} -IS\n{given}\n{SUDO}", 0o755)
        asks = [lambda: password] if password else []
        return connect(*asks).session("r1"), log

    return start


@pytest.mark.parametrize(("password", "tries"), [("right", 3), ("right", 0), (None, 0)])
def test_sudo_gets_the_password_that_it_asks_for_and_the_agent_all_else(become, password, tries):
    """Also requests that were sent before it had the password."""
    session, log = become(password, tries)
    pending = [session.submit("run", argv=["echo", str(i)]) for i in range(3)]
    assert [p.wait()["stdout"] for p in pending] == ["0\n", "1\n", "2\n"]
    assert log.read_text() == ("right\n" if tries else "")
    session.close()


def test_a_wrong_password_is_tried_once(become):
    session, log = become("wrong")
    with pytest.raises(Failed, match="sudo does not accept the password of me"):
        session.run(["true"])
    session.close()  # it has ended by now
    assert log.read_text() == "wrong\n"


def test_without_python_there_is_no_agent(connect, monkeypatch, tmp_path):
    monkeypatch.setattr(node_connection, "SEARCH_PATH", str(tmp_path / "nothing"))
    with pytest.raises(Unreachable, match="python3 cannot be started on this machine"):
        connect().session("r1", become=False)


HERE = InventoryNode("spark1", "127.0.0.1", 0, "head", connection="local")


def run_over(dial):
    return Connections(
        {"spark1": HERE}, Bus(), "r1", command="test", change=True, dialer=Dials(dial)
    )


def test_a_run_over_it(connect):
    connections = run_over(lambda _node: connect())
    assert connections.open() == {}
    assert connections.users["spark1"] == LocalConnection("x").user
    assert connections.session("spark1").run(["echo", "hello"]).stdout == "hello\n"
    _, prints = host_key_change.announce(connections, "spark1")
    assert prints == []
    assert host_key_change.forget_replaced(connections, "spark1") is False
    with pytest.raises(Failed, match="this machine has to be rebooted") as caught:
        delivery.reboot(connections, "spark1", {"id": "Reboot:x"}, print)
    assert "run the same command again" in caught.value.hint
    connections.close()


@pytest.mark.parametrize("late", ["dial", "session"])
def test_a_connection_that_comes_after_the_end_of_its_run_is_ended(connect, monkeypatch, late):
    begun, go = threading.Event(), threading.Event()
    connection = connect()
    begin, closed, sessions = connection.session, [], []

    def wait(point):
        if point == late:
            begun.set()
            assert go.wait(HANG_S)

    def dial(_node):
        wait("dial")
        return connection

    def session(run, *, become):
        sessions.append(begin(run, become=become))
        wait("session")
        return sessions[-1]

    monkeypatch.setattr(connection, "session", session)
    monkeypatch.setattr(connection, "close", lambda: closed.append(connection))
    connections = run_over(dial)
    connections.begin()
    assert begun.wait(HANG_S)
    connections.close()
    closed.clear()
    go.set()
    assert isinstance(connections.open()["spark1"], Interrupted)
    assert closed, "the connection is left open"
    for one in sessions:
        with pytest.raises(SparkClusterError):
            one.run(["true"])
    assert len(sessions) == (1 if late == "session" else 0)


def test_commands_need_no_ssh(home, tmp_path, monkeypatch):
    """On the real root, which these commands only read; the agent's code is kept elsewhere."""
    monkeypatch.setattr(wire, "ROOT_FOLDER", str(tmp_path / "agent"))
    text = "nodes:\n  here: {address: 127.0.0.1, roles: [head], connection: local}\n"
    file = str(put(tmp_path / "inventory.yaml", text))
    done = invoke("--inventory", file, "--json", "ping", project=tmp_path)
    assert done.exit_code == 0, done.output
    (node,) = json.loads(done.output)["nodes"]
    assert (node["name"], node["reachable"]) == ("here", True)
    done = invoke("--inventory", file, "--json", "exec", "echo", "hello", project=tmp_path)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["nodes"][0]["stdout"] == "hello\n"
    done = invoke("--inventory", file, "trust", project=tmp_path)
    assert done.exit_code == 0, done.output
