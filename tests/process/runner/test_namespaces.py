"""A node of the lab of GPUs: programs in its namespaces, and ports that lead into them."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import factories
import pytest
from waiting import HANG_S, until

from spark_cluster.errors import InvalidFile, Refused, Unreachable
from spark_cluster.runner.node_connection import agent_argv
from spark_cluster_lab import namespace_relay, namespaces
from spark_cluster_lab.namespaces import NamespacesConnection, forward_into


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


def test_an_agent_is_started_in_namespaces(process):
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


def test_a_process_that_has_the_number_of_another_is_not_entered(process):
    started, file = process
    file.write_text(f"{started.pid}\n")
    assert namespaces.leader("gpu1", file) == started.pid, "where no start is known"
    file.write_text(f"{started.pid} 1\n")
    with pytest.raises(Unreachable, match="is not running"):
        namespaces.leader("gpu1", file)


def test_a_node_that_is_off(process, tmp_path):
    started, file = process
    started.kill()
    started.wait()
    for path in (file, tmp_path / "nothing"):
        connection = NamespacesConnection("gpu1", namespaces_of=path)
        with pytest.raises(Unreachable, match="is not running") as caught:
            connection.session("r1")
        assert caught.value.where == "gpu1"
        assert "lab up --gpus" in caught.value.hint
        with pytest.raises(Unreachable, match="is not running"):
            forward_into("gpu1", path, 1).__enter__()
    file.write_text("gpu1\n")
    with pytest.raises(InvalidFile, match="found 'gpu1', expected the number of a process"):
        namespaces.leader("gpu1", file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidFile, match=r"found .*, expected the number"):
        namespaces.leader("gpu1", file)


def test_a_file_that_others_can_write_names_no_process(process, tmp_path):
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
def test_a_file_of_another_user_names_no_process(process):
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


def test_a_program_gets_no_capability_that_the_process_has_lost(proc):
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


# -- ports into a namespace ------

SERVER = """\
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    accepted, _ = listener.accept()
    with accepted:
        accepted.sendall(accepted.recv(100).upper())
"""
IN_A_NAMESPACE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@pytest.fixture
def node(tmp_path):
    """A program in a network namespace of its own, and the port that it listens on there."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("a network namespace needs root, unshare and ip")
    argv = [*IN_A_NAMESPACE, sys.executable, "-c", SERVER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        file = tmp_path / "leader"
        file.write_text(str(process.pid))
        file.chmod(0o644)
        yield file, port
        process.kill()


def asked(port):
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as client:
        client.sendall(b"hello")
        return client.recv(100)


def test_a_port_leads_into_a_namespace(node, monkeypatch):
    file, port = node
    monkeypatch.setattr("spark_cluster.config.extension.foreign", lambda *_: None)
    with pytest.raises(ConnectionRefusedError):
        asked(port)
    with forward_into("spark1", file, port) as here:
        assert asked(here) == b"HELLO"
        assert asked(here) == b"HELLO", "again"
    with pytest.raises(ConnectionRefusedError):
        asked(here)


@contextlib.contextmanager
def relay(port):
    """Yield the relay, as nsenter starts it, and the port that it listens on."""
    argv = [sys.executable, "-I", namespace_relay.__file__, str(port)]
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(argv, stdin=listener.fileno(), stdout=subprocess.PIPE) as process,
    ):
        here = listener.getsockname()[1]
        listener.close()
        yield process, here
        process.kill()


def test_the_relay_ends_when_nobody_reads_it():
    """As when the program that started it was killed, also while it carries."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        relay(server.getsockname()[1]) as (process, here),
        socket.create_connection(("127.0.0.1", here), timeout=HANG_S) as client,
        server.accept()[0] as accepted,
    ):
        process.stdout.close()
        until(lambda: process.poll() is not None)
        assert process.returncode == 0
        assert (client.recv(1), accepted.recv(1)) == (b"", b"")


def test_the_relay_ends_while_connections_are_being_made():
    """Twenty times, since it takes one that is made in the moment of the end."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as clients:
        for _ in range(20):
            with relay(server.getsockname()[1]) as (process, here):
                for _ in range(40):
                    clients.enter_context(socket.create_connection(("127.0.0.1", here), HANG_S))
                server.accept()[0].close()
                process.stdout.close()
                assert process.wait(HANG_S) == 0


def test_a_port_at_which_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with relay(port) as (process, here):
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", here), timeout=HANG_S) as client:
                assert client.recv(1) == b""
        assert process.poll() is None
