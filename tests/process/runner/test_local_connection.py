"""This machine as a node: real agents over pipes, as its user and through a stand-in of sudo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import factories
import pytest
from program import invoke
from scratch_nodes import Dials
from waiting import FAR_S, until

from spark_cluster.config.inventory import InventoryNode
from spark_cluster.errors import Failed, InvalidFile, Refused, Unreachable
from spark_cluster.resources import File
from spark_cluster.runner import delivery, host_key_change, node_connection, wire
from spark_cluster.runner.connections import Connections
from spark_cluster.runner.delivery import document
from spark_cluster.runner.events import Bus
from spark_cluster.runner.node_connection import LocalConnection, agent_argv
from spark_cluster_lab import namespaces
from spark_cluster_lab.namespaces import NamespacesConnection

SUDO = """#!{python} -IS
import os, sys
words = sys.argv[1:]
if words[0] == "-S":
    os.write(2, words[2].encode())
    line = b""
    while not line.endswith(b"\\n"):
        line += os.read(0, 1)
    if line != b"right\\n":
        os.write(2, b"sudo: 1 incorrect password attempt\\n")
        sys.exit(1)
elif not os.path.exists({allowed!r}):
    sys.exit("sudo: a password is required")
words = words[words.index("--") + 1:]
os.execv({python!r}, [{python!r}, *words[1:]])
"""


@pytest.fixture
def home(tmp_path: Path, agents_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home with the agent's code, and a first folder of PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(agents_home))
    python = tmp_path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
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


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Not root; the file that lets its sudo do without a password."""
    allowed = tmp_path / "allowed"
    sudo = tmp_path / "bin" / "sudo"
    sudo.write_text(SUDO.format(python=sys.executable, allowed=str(allowed)))
    sudo.chmod(0o755)
    monkeypatch.setattr(LocalConnection, "user", property(lambda _self: "me"))
    return allowed


def test_an_agent_works_here(connect: Callable[..., LocalConnection], tmp_path: Path) -> None:
    connection = connect()
    session = connection.session("r1", become=False)
    assert session.run(["sh", "-c", "echo hello; exit 3"]).stdout == "hello\n"
    packed = document([File("/etc/greeting", content="hello\n")])
    reply = session.request("apply", blobs=packed.blobs, resources=packed.resources, run="r1")
    assert reply["ok"]
    assert (tmp_path / "spark1/etc/greeting").read_text() == "hello\n"
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


def test_an_agent_ends_with_its_session(connect: Callable[..., LocalConnection]) -> None:
    session = connect().session("r1", become=False)
    process = session._channel._process
    session.request("gather")
    session.close()
    until(lambda: process.poll() is not None)


def test_an_agent_that_was_killed_is_a_lost_connection(connect):
    session = connect().session("r1", become=False)
    session.request("gather")
    pending = session.submit("run", argv=["sleep", "60"], stdin="", timeout=60, user=None)
    session._channel._process.kill()
    with pytest.raises(Unreachable, match="the connection was lost"):
        pending.wait()
    session.close()


@pytest.mark.parametrize("reads", ["", "head -c 10 >/dev/null; "])
def test_a_program_that_ends_before_it_has_read_all_is_heard(connect, home, tmp_path, reads):
    """Its end resets the connection; what it said is the reason, not the reset."""
    python = tmp_path / "bin/python3"
    python.write_text(f"#!/bin/sh\n{reads}echo 'no room for the interpreter' >&2\nexit 3\n")
    python.chmod(0o755)
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


def test_large_contents_pass(connect: Callable[..., LocalConnection], tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    session = connect().session("r1", become=False)
    packed = document([File("/srv/large", content=content)])
    reply = session.request("apply", blobs=packed.blobs, resources=packed.resources, run="r1")
    session.close()
    assert reply["ok"]
    assert (tmp_path / "spark1/srv/large").read_bytes() == content


def test_sudo_that_wants_a_password_says_what_to_set(connect, user):
    session = connect().session("r1")
    with pytest.raises(Failed) as caught:
        session.run(["echo"])
    session.close()
    assert "sudo" in caught.value.message
    user.touch()
    session = connect().session("r1")
    assert session.run(["echo", "hello"]).stdout == "hello\n"
    session.close()


def test_sudo_with_a_password(connect: Callable[..., LocalConnection], user: Path) -> None:
    session = connect(lambda: "right").session("r1")
    assert session.run(["echo", "hello"]).stdout == "hello\n"
    session.close()
    wrong = connect(lambda: "wrong").session("r1")
    with pytest.raises(Failed, match="sudo does not accept the password of me"):
        wrong.run(["echo"])
    wrong.close()


def test_without_python_there_is_no_agent(connect, monkeypatch, tmp_path):
    monkeypatch.setattr(node_connection, "SEARCH_PATH", str(tmp_path / "nothing"))
    with pytest.raises(Unreachable, match="python3 cannot be started on this machine"):
        connect().session("r1", become=False)


HERE = InventoryNode("spark1", "127.0.0.1", 0, "head", connection="local")


def test_a_run_over_it(connect: Callable[..., LocalConnection]) -> None:
    connections = Connections(
        {"spark1": HERE},
        Bus(),
        "r1",
        command="test",
        change=True,
        dialer=Dials(lambda _node: connect()),
    )
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


def test_commands_need_no_ssh(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real root, which these commands only read; the agent's code is kept elsewhere."""
    monkeypatch.setattr(wire, "ROOT_FOLDER", str(tmp_path / "agent"))
    text = "nodes:\n  here: {address: 127.0.0.1, roles: [head], connection: local}\n"
    file = str(factories.put(tmp_path / "inventory.yaml", text))
    done = invoke("--inventory", file, "--json", "ping", project=tmp_path)
    assert done.exit_code == 0, done.output
    (node,) = json.loads(done.output)["nodes"]
    assert (node["name"], node["reachable"]) == ("here", True)
    done = invoke("--inventory", file, "--json", "exec", "echo", "hello", project=tmp_path)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["nodes"][0]["stdout"] == "hello\n"
    done = invoke("--inventory", file, "trust", project=tmp_path)
    assert done.exit_code == 0, done.output


# --- namespaces ------------------------------------------------------------------------------


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process, and a file with its number and its start."""
    started = subprocess.Popen(["sleep", "600"])
    stat = Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()
    file = tmp_path / "leader"
    file.write_text(f"{started.pid} {stat[19]}\n")
    yield started, file
    started.kill()
    started.wait()


def test_an_agent_is_started_in_namespaces(process) -> None:
    started, file = process
    enter = namespaces.enter(namespaces.leader("gpu1", file))
    assert enter[:2] == ["nsenter", f"--target={started.pid}"]
    assert {"--net", "--mount", "--pid"} <= set(enter)
    words = agent_argv("r1", "root", become=True, password=False, enter=enter)
    assert words[: len(enter)] == enter
    for become in (True, False):  # nobody but root can enter them
        words = agent_argv("r1", "me", become=become, password=False, enter=enter)
        assert words[: len(enter) + 3] == ["sudo", "-n", "--", *enter]
    words = agent_argv("r1", "me", become=True, password=True, enter=enter)
    assert words[5 : 5 + len(enter)] == enter


def test_a_process_that_has_the_number_of_another_is_not_entered(process) -> None:
    started, file = process
    file.write_text(f"{started.pid}\n")
    assert namespaces.leader("gpu1", file) == started.pid, "where no start is known"
    file.write_text(f"{started.pid} 1\n")
    with pytest.raises(Unreachable, match="is not running"):
        namespaces.leader("gpu1", file)


def test_a_node_that_is_off(process, tmp_path: Path) -> None:
    started, file = process
    started.kill()
    started.wait()
    for path in (file, tmp_path / "nothing"):
        connection = NamespacesConnection("gpu1", namespaces_of=path)
        with pytest.raises(Unreachable, match="is not running") as caught:
            connection.session("r1")
        assert caught.value.where == "gpu1"
        assert "lab up --gpus" in caught.value.hint
    file.write_text("gpu1\n")
    with pytest.raises(InvalidFile, match="found 'gpu1', expected the number of a process"):
        namespaces.leader("gpu1", file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidFile, match=r"found .*, expected the number"):
        namespaces.leader("gpu1", file)


def test_a_file_that_others_can_write_names_no_process(process, tmp_path: Path) -> None:
    """Its process's programs would be run as root."""
    _, file = process
    link = tmp_path / "link"
    link.symlink_to(file)
    for path, mode in ((file, 0o666), (tmp_path, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        for name in (file, link):
            with pytest.raises(Refused, match="is writable by everyone") as caught:
                namespaces.leader("gpu1", name)
            assert caught.value.where == "gpu1"
            assert f"chmod o-w {path}" in caught.value.hint
        path.chmod(before)
    assert namespaces.leader("gpu1", link)


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed")
def test_a_file_of_another_user_names_no_process(process) -> None:
    _, file = process
    os.chown(file, 65534, 65534)
    with pytest.raises(Refused, match="belongs to another user"):
        namespaces.leader("gpu1", file)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with this process, and number 7 with the same users and fewer capabilities."""
    for pid, bounds in (("self", "000001fffeffffff"), ("7", "000001fffefcffff")):
        folder = tmp_path / "proc" / pid
        factories.put(folder / "stat", f"{pid} (x) S" + " 0" * 30)
        factories.put(folder / "uid_map", "0 0 4294967295\n")
        factories.put(folder / "status", f"Name:\tx\nCapBnd:\t{bounds}\n")
        (folder / "ns").mkdir()
        (folder / "ns/user").symlink_to("user:[1]")
    return tmp_path / "proc"


@pytest.mark.parametrize("is_root", [True, False])
def test_a_process_in_a_user_namespace_is_not_entered(proc, monkeypatch, is_root):
    file = factories.put(proc.parent / "leader", "7\n")
    if not is_root:

        def denied(_path: Path) -> Path:
            raise PermissionError

        monkeypatch.setattr(Path, "readlink", denied)
    assert namespaces.leader("gpu1", file, proc) == 7
    (proc / "7/ns/user").unlink()
    (proc / "7/ns/user").symlink_to("user:[2]")
    (proc / "7/uid_map").write_text("0 65534 1\n")
    with pytest.raises(Refused, match=r"process 7, which .* is in a user namespace") as caught:
        namespaces.leader("gpu1", file, proc)
    assert "userns-remap" in caught.value.hint


def test_a_program_gets_no_capability_that_the_process_has_lost(proc: Path) -> None:
    words = namespaces.enter(7, proc)
    lost = "-cap_16,-cap_17"
    assert words[words.index("--") + 1 :] == [
        "setpriv", f"--bounding-set={lost}", f"--inh-caps={lost}", "--",
    ]  # fmt: skip
    (proc / "7/status").write_text((proc / "self/status").read_text())
    assert "setpriv" not in namespaces.enter(7, proc)
    (proc / "7/status").unlink()
    with pytest.raises(Unreachable, match="process 7 has ended"):
        namespaces.enter(7, proc)
