"""SSH against a real sshd: how it connects, what it refuses, what it says when it does not work."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import paramiko
import pytest
from own_sshd import free_port, keygen, start_sshd

from spark_cluster.engine import hostkeys, payload
from spark_cluster.engine.dialling import CIPHERS, Target
from spark_cluster.engine.session import Session
from spark_cluster.engine.transport import SshConnection
from spark_cluster.engine.tunnel import Tunnel
from spark_cluster.errors import Unreachable

pytestmark = pytest.mark.usefixtures("time_limit")
ME = getpass.getuser()


def run(connection, *argv):
    """What a command prints, through a bare channel."""
    channel = connection.channel(argv)
    found = b""
    while data := channel.receive(5):
        found += data
    assert channel.status() == 0, channel.said()
    channel.close()
    return found.decode()


def refusal(connection):
    before = set(threading.enumerate())
    with pytest.raises(Unreachable) as caught:
        connection.open()
    for left in set(threading.enumerate()) - before:
        assert not isinstance(left, paramiko.Transport) or left.join(1) or not left.is_alive()
    assert caught.value.where == "spark1"
    assert caught.value.exit_code == 3
    return caught.value


# -- what works -----------------------------------------------------------------------------------


def test_a_connection_and_its_socket(ssh, trusted):
    connection = ssh()
    assert run(connection, "echo", "it's  $HOME") == "it's  $HOME\n"
    transport = connection.open().transport
    assert transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
    assert transport.local_cipher == transport.remote_cipher == CIPHERS[0]
    assert "gcm" in transport.local_cipher
    assert transport.auth_timeout == transport.banner_timeout == 3.0


def test_an_agent_over_ssh(ssh, trusted, agents_home, tmp_path):
    (tmp_path / "root").mkdir()
    argv = ["env", f"HOME={agents_home}", *payload.argv("test")]
    session = Session("n", ssh().channel(argv), as_root=False, root=str(tmp_path / "root"))
    pending = [session.submit("run", argv=["echo", str(i)]) for i in range(3)]
    assert [p.wait()["stdout"] for p in pending] == ["0\n", "1\n", "2\n"]
    session.close()


def test_the_inventorys_own_known_hosts(ssh, sshd, home, tmp_path):
    known = tmp_path / "known"
    known.write_text(sshd.host_line)
    assert run(ssh(known_hosts=known), "echo", "x") == "x\n"
    assert list((home / ".ssh").iterdir()) == [], "nothing is written by connecting"


def test_the_users_own_key_without_an_identity_file(ssh, sshd, trusted, home):
    for suffix in ("", ".pub"):
        (home / f".ssh/id_ed25519{suffix}").write_bytes((sshd.folder / f"key{suffix}").read_bytes())
    assert run(ssh(identity_file=None), "echo", "x") == "x\n"


def test_an_alias_of_ssh_config(ssh, sshd, trusted, home):
    (home / ".ssh/config").write_text(
        f"Host spark-one\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {ME}\n"
        f"  IdentityFile {sshd.key}\n"
    )
    connection = ssh(host="spark-one", user=None, port=None, identity_file=None)
    assert run(connection, "echo", "x") == "x\n"
    transport = connection.open().transport
    assert transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_through_a_jump_host(ssh, sshd, second_sshd, trusted):
    trusted.write_text(sshd.host_line + second_sshd.host_line)
    connection = ssh(jump=f"{ME}@127.0.0.1:{second_sshd.port}")
    assert run(connection, "echo", "x") == "x\n"
    gateway = connection.open().gateway.transport
    assert gateway.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_through_a_jump_host_of_ssh_config(ssh, sshd, second_sshd, trusted, home):
    trusted.write_text(sshd.host_line + second_sshd.host_line)
    (home / ".ssh/config").write_text(
        f"Host hop\n  HostName 127.0.0.1\n  Port {second_sshd.port}\n"
        f"  IdentityFile {sshd.key}\n"
        f"Host target\n  HostName 127.0.0.1\n  Port {sshd.port}\n"
        f"  ProxyJump {ME}@hop\n"
    )
    connection = ssh(host="target", port=None)
    assert run(connection, "echo", "x") == "x\n"
    gateway = connection.open().gateway.transport
    assert gateway.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_the_jump_hosts_key_is_checked_too(ssh, sshd, second_sshd, trusted):
    error = refusal(ssh(jump=f"{ME}@127.0.0.1:{second_sshd.port}"))
    assert "host key" in error.message
    assert "not known" in error.message


def test_what_is_sent_waits_for_a_slow_reader(ssh, trusted):
    """The window of a channel is full for longer than a read waits: nothing of it may be lost."""
    channel = ssh().channel(["sh", "-c", "echo ready; sleep 1; wc -c"])
    assert channel.receive(5) == b"ready\n"
    with pytest.raises(TimeoutError):
        channel.receive(0.05)
    channel.send(b"x" * 8_000_000)
    channel._channel.shutdown_write()
    assert channel.receive(5) == b"8000000\n"


def test_a_connection_that_is_cut(ssh, trusted, agents_home, tmp_path):
    argv = ["env", f"HOME={agents_home}", *payload.argv("test")]
    session = Session("spark1", ssh().channel(argv), as_root=False, root=str(tmp_path))
    parent = session.run(["sh", "-c", 'tr "\\0" "\\n" < /proc/$PPID/stat'])
    agent = int(parent.stdout.split()[0])
    shell = int(parent.stdout.rpartition(")")[2].split()[1])
    started = time.monotonic()
    pending = session.submit("run", argv=["sleep", "30"])
    time.sleep(0.2)
    os.kill(_sshd_of(shell, agent), signal.SIGKILL)
    with pytest.raises(Unreachable, match="connection was lost"):
        pending.wait()
    assert time.monotonic() - started < 5
    session.close()


def _sshd_of(*pids):
    """The process of sshd that serves this connection."""
    waiting = list(pids)
    while waiting:
        pid = waiting.pop(0)
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        if name.startswith("sshd"):
            return pid
        waiting.append(int(rest.split()[1]))
    raise AssertionError("no sshd above the agent")


# -- what does not --------------------------------------------------------------------------------


def test_an_unknown_host_key(ssh, sshd, home):
    error = refusal(ssh())
    assert f"the host key of [127.0.0.1]:{sshd.port} is not known: ssh-ed25519 SHA256:" in (
        error.message
    )
    assert "spark-cluster trust --limit spark1" in error.hint
    assert _fingerprint(sshd) in error.message


def _fingerprint(server):
    argv = ["ssh-keygen", "-lf", str(server.folder / "host_key.pub")]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[1]


def test_a_changed_host_key(ssh, sshd, second_sshd, trusted):
    other = second_sshd.host_line.split(" ", 1)[1]
    trusted.write_text(f"[127.0.0.1]:{sshd.port} {other}")
    error = refusal(ssh())
    assert "THE HOST KEY HAS CHANGED" in error.message
    assert f"{_fingerprint(sshd)} came" in error.message
    assert f"{_fingerprint(second_sshd)} is known" in error.message
    assert "trust --replace --limit spark1" in error.hint


def test_another_kind_of_key_is_known(ssh, sshd, trusted, tmp_path):
    """Known by its RSA key alone: what comes now was never seen, and is not accepted."""
    kind, blob, _ = keygen(tmp_path / "rsa", kind="rsa").with_suffix(".pub").read_text().split()
    trusted.write_text(f"[127.0.0.1]:{sshd.port} {kind} {blob}\n")
    connection = ssh()
    assert "HOST KEY HAS CHANGED" in refusal(connection).message
    shown = hostkeys.show(connection.target)
    assert shown.verdict == "changed"
    hostkeys.write(trusted, [shown])
    assert run(connection, "echo", "x") == "x\n"


def test_a_known_rsa_key_of_a_host_that_has_others_too(ssh, sshd, trusted, tmp_path):
    folder = tmp_path / "sshd"
    folder.mkdir()
    kind, blob, _ = keygen(folder / "host_rsa", kind="rsa").with_suffix(".pub").read_text().split()
    server = start_sshd(folder, key=sshd.key)
    try:
        trusted.write_text(f"[127.0.0.1]:{server.port} {kind} {blob}\n")
        connection = ssh(port=server.port)
        assert hostkeys.show(connection.target).verdict == "trusted"
        assert run(connection, "echo", "x") == "x\n"
        connection.close()
    finally:
        server.stop()


def test_a_known_hosts_with_lines_that_paramiko_does_not_read(ssh, sshd, trusted):
    key = sshd.host_line.split(" ", 1)[1]
    trusted.write_text(
        f"nonsense\n@cert-authority *.example.org {key}@revoked * {key}# a comment\n\n"
        f"|1|x|y ssh-ed25519 b\n{sshd.host_line.split()[0]} ssh-ed25519 !!!notbase64\n"
        f"x ssh-ed25519 AAAA\n{sshd.host_line}"
    )
    assert run(ssh(), "echo", "x") == "x\n"


def test_the_inventorys_known_hosts_wins_over_an_older_one_of_the_user(
    ssh, sshd, second_sshd, trusted, tmp_path
):
    """Otherwise `trust --replace`, which writes the inventory's, would be of no use."""
    other = second_sshd.host_line.split(" ", 1)[1]
    trusted.write_text(f"[127.0.0.1]:{sshd.port} {other}")
    connection = ssh(known_hosts=tmp_path / "known")
    shown = hostkeys.show(connection.target)
    assert shown.verdict == "changed"
    hostkeys.write(hostkeys.file_of(connection.target), [shown])
    assert run(connection, "echo", "x") == "x\n"


def test_a_wrong_key(ssh, trusted, tmp_path):
    error = refusal(ssh(identity_file=keygen(tmp_path / "other")))
    assert "accepts none of the offered keys" in error.message
    assert "identity_file" in error.hint


def test_a_key_with_a_passphrase(ssh, trusted, tmp_path):
    error = refusal(ssh(identity_file=keygen(tmp_path / "locked", "a passphrase")))
    assert "passphrase" in error.message
    assert "ssh-add" in error.hint


def test_a_key_file_that_is_not_there(ssh, trusted, tmp_path):
    error = refusal(ssh(identity_file=tmp_path / "none"))
    assert str(tmp_path / "none") in str(error)


def test_a_file_that_is_no_key(ssh, trusted, tmp_path):
    (tmp_path / "text").write_text("this is no key")
    refusal(ssh(identity_file=tmp_path / "text"))


def test_refused(ssh, trusted):
    port = free_port()
    error = refusal(ssh(port=port))
    assert error.message == f"127.0.0.1:{port} refused the connection"
    assert "sshd" in error.hint


def test_an_unknown_name(ssh, trusted):
    error = refusal(ssh(host="no-such-host.invalid"))
    assert "no address is known for 'no-such-host.invalid'" in error.message


@contextmanager
def silent(greeting=b""):
    """A port that accepts connections and says only `greeting`."""
    held = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return
                held[-1].sendall(greeting)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(2)
    for connection in held:
        connection.close()


def test_a_port_that_says_nothing(ssh, trusted):
    started = time.monotonic()
    with silent() as port:
        error = refusal(ssh(port=port, connect_timeout_s=0.4))
    assert time.monotonic() - started < 4
    assert "banner" in error.message


def test_a_port_that_speaks_something_else(ssh, trusted):
    with silent(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 5) as port:
        error = refusal(ssh(port=port, connect_timeout_s=0.4))
    assert "SSH failed" in error.message


def test_a_jump_host_that_refuses(ssh, trusted):
    port = free_port()
    error = refusal(ssh(jump=f"{ME}@127.0.0.1:{port}"))
    assert f"127.0.0.1:{port} refused" in error.message


# -- trust ----------------------------------------------------------------------------------------


def test_trust_of_a_new_host(ssh, sshd, home):
    connection = ssh()
    shown = hostkeys.show(connection.target)
    assert (shown.verdict, shown.fingerprint) == ("new", _fingerprint(sshd))
    path = hostkeys.file_of(connection.target)
    assert path == home / ".ssh/known_hosts"
    hostkeys.write(path, [shown])
    assert path.stat().st_mode & 0o777 == 0o600
    assert hostkeys.show(connection.target).verdict == "trusted"
    assert run(connection, "echo", "x") == "x\n"


def test_trust_of_a_changed_host_keeps_all_else(ssh, sshd, second_sshd, home, tmp_path):
    """Also what ssh-keygen -H has made unreadable."""
    path = home / ".ssh/known_hosts"
    name = f"[127.0.0.1]:{sshd.port}"
    other = second_sshd.host_line.split(" ", 1)[1]
    path.write_text(f"{name} {other}# a comment\nexample.org {other}spark9 {other}")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    hashed = path.read_text()
    assert name not in hashed
    path.write_text(hashed + f"plain.example.org {other}@revoked * {other}")
    connection = ssh()
    shown = hostkeys.show(connection.target)
    assert (shown.verdict, shown.known) == ("changed", _fingerprint(second_sshd))
    hostkeys.write(path, [shown])
    lines = path.read_text().splitlines()
    assert lines[-1] == sshd.host_line.strip()
    assert len(lines) == len(hashed.splitlines()) + 2
    for kept in ("example.org", "spark9", "plain.example.org"):
        found = subprocess.run(
            ["ssh-keygen", "-F", kept, "-f", str(path)], check=True, capture_output=True, text=True
        )
        assert found.stdout
    assert "# a comment" in lines
    assert hostkeys.show(connection.target).verdict == "trusted"
    assert run(connection, "echo", "x") == "x\n"


def test_trust_into_the_inventorys_file(ssh, home, tmp_path):
    connection = ssh(known_hosts=tmp_path / "folder" / "known")
    path = hostkeys.file_of(connection.target)
    hostkeys.write(path, [hostkeys.show(connection.target)])
    assert run(connection, "echo", "x") == "x\n"
    assert not (home / ".ssh/known_hosts").exists()


def test_trust_through_a_jump_host(ssh, sshd, second_sshd, home):
    path = home / ".ssh/known_hosts"
    path.write_text(second_sshd.host_line)
    connection = ssh(jump=f"{ME}@127.0.0.1:{second_sshd.port}")
    shown = hostkeys.show(connection.target)
    assert shown.fingerprint == _fingerprint(sshd)
    hostkeys.write(path, [shown])
    assert run(connection, "echo", "x") == "x\n"


def test_trust_of_what_does_not_answer(ssh, home):
    with pytest.raises(Unreachable, match="refused"):
        hostkeys.show(ssh(port=free_port()).target)
    with silent() as port, pytest.raises(Unreachable):
        hostkeys.show(ssh(port=port, connect_timeout_s=0.4).target)


def test_trust_on_the_command_line(sshd, home, tmp_path, monkeypatch):
    import json

    from click.testing import CliRunner

    from spark_cluster.cli import cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yaml").write_text(
        f"ssh: {{user: {ME}, port: {sshd.port}}}\nnodes:\n  spark1: {{address: 127.0.0.1}}\n"
    )

    def trust(*options):
        done = CliRunner().invoke(cli, ["trust", "--json", *options])
        return done.exit_code, json.loads(done.stdout)["nodes"][0]

    known = home / ".ssh/known_hosts"
    status, node = trust()
    assert (status, node["was"], node["trusted"], known.exists()) == (1, "new", False, False)
    status, node = trust("--yes")
    assert (status, node["was"], node["trusted"]) == (0, "new", True)
    status, node = trust()
    assert (status, node["was"], node["trusted"]) == (0, "trusted", True)
    known.write_text(f"[127.0.0.1]:{sshd.port} ssh-ed25519 " + _other_key(tmp_path) + "\n")
    before = known.read_text()
    status, node = trust("--yes")
    assert (status, node["was"], node["trusted"]) == (1, "changed", False)
    assert known.read_text() == before
    status, node = trust("--yes", "--replace")
    assert (status, node["was"], node["trusted"]) == (0, "changed", True)
    assert known.read_text() == sshd.host_line


def _other_key(folder):
    return keygen(folder / "other").with_suffix(".pub").read_text().split()[1]


# -- tunnel ---------------------------------------------------------------------------------------


def test_a_tunnel_to_a_port_that_answers_later(ssh, trusted):
    port = free_port()
    with Tunnel(ssh(), port) as tunnel:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", tunnel.port), timeout=3) as client:
                assert client.recv(100) == b"", "refused there: closed here"
        with socket.create_server(("127.0.0.1", port)) as server:
            thread = threading.Thread(target=_echo, args=(server,))
            thread.start()
            with socket.create_connection(("127.0.0.1", tunnel.port), timeout=3) as client:
                data = os.urandom(300_000)
                threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
                back = b""
                while len(back) < len(data):
                    back += client.recv(65536)
                assert back == data
            thread.join(3)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", tunnel.port), timeout=3)


def _echo(server):
    with server.accept()[0] as client:
        while data := client.recv(65536):
            client.sendall(data)


@pytest.mark.parametrize("when", ["open_session", "exec_command"])
def test_a_connection_that_ended_just_before(when):
    """paramiko raises the bare EOFError that ended its transport, as while a node shuts down."""

    def ended(*_words, **_options):
        raise EOFError

    channel = SimpleNamespace(exec_command=ended)
    opens = ended if when == "open_session" else lambda **_options: channel
    connection = SshConnection(Target("spark1", "127.0.0.1"))
    connection._fabric = SimpleNamespace(transport=SimpleNamespace(open_session=opens))
    with pytest.raises(Unreachable, match="the connection was cut"):
        connection.channel(["true"])
