"""SSH against a real sshd: how it connects, what it refuses, what it says when it does not work."""

import getpass
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import paramiko
import pytest
from cases import each_case
from free_ports import free_port
from hung_processes import ended
from own_sshd import STUBBORN_PROXY, keygen, public, way_to
from relay import Relay
from small_server import answering
from waiting import FAR_S, HANG_S, until

from spark_cluster.errors import Unreachable
from spark_cluster.runner import known_hosts, wire
from spark_cluster.runner import session as sessions
from spark_cluster.runner.session import Session
from spark_cluster.runner.ssh import CIPHERS, Connection, SshChannel
from spark_cluster.runner.ssh_route import node_of, route

ME = getpass.getuser()


def run(connection, *argv):
    """Return what a command prints, through a bare channel."""
    channel = connection.start(argv)
    found = b""
    while data := channel.receive(HANG_S):
        found += data
    assert channel.status() == 0, channel.stderr()
    channel.close()
    return found.decode()


def refusal(connection):
    before = set(threading.enumerate())
    with pytest.raises(Unreachable) as caught:
        connection.open()
    for left in set(threading.enumerate()) - before:
        assert not isinstance(left, paramiko.Transport) or left.join(HANG_S) or not left.is_alive()
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
    assert transport.auth_timeout == transport.banner_timeout == HANG_S


def test_a_node_that_says_errors_without_an_end_is_listened_to_for_a_moment(ssh, trusted):
    connection = ssh()
    channel = connection.start(["sh", "-c", "exec yes error >&2"])
    try:
        until(lambda: len(channel.stderr()) == wire.SAID_BYTES)
        for _ in range(20):
            assert len(channel.stderr()) == wire.SAID_BYTES
    finally:
        connection.close()


def test_a_proxy_command_is_ended_with_its_connection(ssh, sshd, trusted, home, tmp_path):
    """It ignores SIGHUP."""
    (tmp_path / "proxy.py").write_text(STUBBORN_PROXY)
    pid = tmp_path / "pid"
    command = f"echo $$ > {pid}; exec {sys.executable} {tmp_path}/proxy.py 127.0.0.1 {sshd.port}"
    (home / ".ssh/config").write_text(f'Host 127.0.0.1\n  ProxyCommand sh -c "{command}"\n')
    connection = ssh()
    assert run(connection, "echo", "x") == "x\n"
    proxy = int(pid.read_text())
    connection.close()
    ended(proxy)


def listed(hop, path, how):
    """Write a list of revoked keys with that of the jump host."""
    key = f"{hop.folder}/host_key.pub"
    if how == "krl":
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(path), key], check=True)
    else:
        path.write_text("# stolen\n" + Path(key).read_text())
    return f"  RevokedHostKeys {path}\n"


@pytest.mark.parametrize("of_config", [False, True], ids=["inventory", "ssh_config"])
@each_case(__file__, "jump_hosts.json")
def test_the_key_of_a_jump_host(ssh, sshd, second_sshd, trusted, home, tmp_path, case, of_config):
    """As strict as for the node, wherever the jump host is named.

    A case is what known_hosts says of the jump host (`{J}` its name, `{K}` its key, `{N}` the
    node's), and the beginning of the error, if it is not let through.
    """
    where, known = f"[127.0.0.1]:{second_sshd.port}", case["known"]
    keys = {"K": second_sshd.folder / "host_key", "N": sshd.folder / "host_key"}
    if "{RSA}" in known:
        keys["RSA"] = keygen(tmp_path / "rsa", kind="rsa")
    words = {"J": where, **{name: public(key) for name, key in keys.items()}}
    trusted.write_text(known.format(**words) + sshd.host_line)
    if "hashed" in case:
        argv = ["ssh-keygen", "-q", "-H", "-f", str(trusted)]
        subprocess.run(argv, check=True, capture_output=True)
        assert where not in trusted.read_text()
    jump = f"{ME}@127.0.0.1:{second_sshd.port}"
    options = f"Host *\n  IdentityFile {sshd.key}\n"
    if "listed" in case:
        options += listed(second_sshd, home / "revoked", case["listed"])
    if of_config:
        options = f"Host node\n  HostName 127.0.0.1\n  ProxyJump {jump}\n{options}"
        options += "  StrictHostKeyChecking no\n  NoHostAuthenticationForLocalhost yes\n"
    (home / ".ssh/config").write_text(options)
    connection = ssh(address="node") if of_config else ssh(jump=jump)
    if "says" in case:
        message = refusal(connection).message
        assert message.startswith(case["says"].format(J=where))
        assert "listed" not in case or f"revoked by {home}/revoked" in message
    else:
        assert run(connection, "echo", "x") == "x\n"


def test_each_of_two_jump_hosts_is_checked(ssh, sshd, second_sshd, trusted):
    """The first of them, and one that is reached through another."""
    first, second = (f"{ME}@127.0.0.1:{one.port}" for one in (second_sshd, sshd))
    connection = ssh(jump=f"{first},{second}")
    assert f"jump host [127.0.0.1]:{second_sshd.port} is not" in refusal(connection).message
    trusted.write_text(second_sshd.host_line)
    assert f"jump host [127.0.0.1]:{sshd.port} is not" in refusal(connection).message
    trusted.write_text(second_sshd.host_line + sshd.host_line)
    assert run(connection, "echo", "x") == "x\n"


def test_what_is_sent_waits_for_a_slow_reader(ssh, trusted):
    """The window of a channel is full for longer than a read waits: nothing of it may be lost."""
    channel = ssh().start(["sh", "-c", "echo ready; sleep 0.4; wc -c"])
    assert channel.receive(HANG_S) == b"ready\n"
    with pytest.raises(TimeoutError):
        channel.receive(0.05)
    channel.send(b"x" * 8_000_000)
    channel._stream.shutdown_write()
    assert channel.receive(HANG_S) == b"8000000\n"


def test_a_connection_that_is_cut(ssh, sshd, trusted, agents_home, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "LOST_AFTER", FAR_S)  # a cut is seen, not waited for
    relay = Relay(sshd.port)
    trusted.write_text(sshd.host_line.replace(str(sshd.port), str(relay.port)))
    argv = ["env", f"HOME={agents_home}", *wire.argv("test")]
    channel = ssh(port=relay.port).start(argv)
    session = Session("spark1", channel, as_root=False, root=str(tmp_path))
    begun = tmp_path / "begun"
    pending = session.submit("run", argv=["sh", "-c", f"touch {begun}; exec sleep {FAR_S}"])
    until(begun.exists)
    relay.close()
    with pytest.raises(Unreachable, match="connection was lost"):
        pending.wait()
    session.close()


# -- what does not --------------------------------------------------------------------------------


def test_an_unknown_host_key(ssh, sshd, home):
    error = refusal(ssh())
    assert f"the host key of [127.0.0.1]:{sshd.port} is not known: ssh-ed25519 SHA256:" in (
        error.message
    )
    assert "spark-cluster trust --limit spark1" in error.hint
    assert sshd.fingerprint in error.message


def test_a_changed_host_key(ssh, sshd, second_sshd, trusted):
    other = second_sshd.host_line.split(" ", 1)[1]
    trusted.write_text(f"[127.0.0.1]:{sshd.port} {other}")
    error = refusal(ssh())
    assert "THE HOST KEY HAS CHANGED" in error.message
    assert f"{sshd.fingerprint} came" in error.message
    assert f"{second_sshd.fingerprint} is known" in error.message
    assert f"({trusted}:1)" in error.message
    assert "possible man-in-the-middle" in error.hint
    assert "trust --replace --limit spark1" in error.hint


def test_the_inventorys_known_hosts_wins_over_an_older_one_of_the_user(
    ssh, sshd, second_sshd, trusted, tmp_path
):
    """Otherwise `trust --replace`, which writes the inventory's, would be of no use."""
    other = second_sshd.host_line.split(" ", 1)[1]
    trusted.write_text(f"[127.0.0.1]:{sshd.port} {other}")
    connection = ssh(known_hosts=tmp_path / "known")
    shown = Connection(route(connection.target), shared=False).shown_key()
    assert shown.verdict == "changed"
    known_hosts.write(known_hosts.file_of(node_of(connection.target)), shown)
    assert run(connection, "echo", "x") == "x\n"


@pytest.mark.parametrize(
    ("key", "message", "hint"),
    [
        ("other", "accepts none of the offered keys", "identity_file"),
        ("locked", "passphrase", "ssh-add"),
    ],
)
def test_a_key_that_opens_nothing(ssh, trusted, tmp_path, key, message, hint):
    keygen(tmp_path / key, "a passphrase" if key == "locked" else "")
    error = refusal(ssh(identity_file=tmp_path / key))
    assert message in str(error)
    assert hint in error.hint


def test_what_cannot_be_reached(ssh, trusted):
    port = free_port()
    error = refusal(ssh(port=port))
    assert error.message == f"127.0.0.1:{port} refused the connection"
    assert "sshd" in error.hint
    error = refusal(ssh(jump=f"{ME}@127.0.0.1:{port}"))
    assert f"127.0.0.1:{port} refused" in error.message
    error = refusal(ssh(address="no-such-host.invalid"))
    assert "no address is known for 'no-such-host.invalid'" in error.message


def test_a_port_that_does_not_speak_ssh(ssh, trusted):
    with socket.create_server(("127.0.0.1", 0)) as says_nothing:
        port = says_nothing.getsockname()[1]
        silent = refusal(ssh(port=port, connect_timeout_s=0.4))
        assert silent.message == f"127.0.0.1:{port} answers, but not as an SSH server (no banner)"
        assert "address and port" in silent.hint
    with answering(lambda _request: (200, {}, "")) as port:  # an HTTP server
        assert "answers, but not as an SSH server" in refusal(ssh(port=port)).message


@pytest.mark.parametrize("when", ["open_session", "exec_command"])
def test_a_connection_that_ended_just_before(when):
    """paramiko raises the bare EOFError that ended its transport, as while a node shuts down."""

    def ended(*_words, **_options):
        raise EOFError

    channel = SimpleNamespace(exec_command=ended)
    opens = ended if when == "open_session" else lambda **_options: channel
    connection = Connection(route(way_to()), shared=True)
    stand_in = SimpleNamespace(active=True, open_session=opens, limited=lambda _: nullcontext())
    connection._set(transport=stand_in)
    with pytest.raises(Unreachable, match="the connection was cut"):
        connection.channel(["true"])


def test_closing_a_channel_whose_connection_has_ended():
    """paramiko raises the same when it cannot tell the other side; click takes it for Ctrl-C."""

    def ended():
        raise EOFError

    SshChannel(SimpleNamespace(close=ended, get_transport=lambda: None)).close()


@pytest.mark.parametrize(
    ("options", "gets_in"),
    [
        ('from="192.168.177.11,10.89.0.11,127.0.0.0/8,::1",no-port-forwarding', True),
        ('from="192.168.177.11,10.89.0.11",no-port-forwarding', False),
    ],
)
def test_limits_of_a_mesh_key_as_sshd_reads_them(ssh, second_sshd, home, options, gets_in):
    """As the role ssh_mesh writes them: from the node's own addresses, and no tunnels."""
    (home / ".ssh/known_hosts").write_text(second_sshd.host_line)
    allowed = second_sshd.folder / "authorized_keys"
    before = allowed.read_text()
    allowed.write_text(f"{options} {before}")
    try:
        connection = ssh(port=second_sshd.port)
        if not gets_in:
            assert "accepts none of the offered keys" in refusal(connection).message
            return
        assert run(connection, "echo", "x") == "x\n"
        with pytest.raises(paramiko.ChannelException):
            connection.open().transport.open_channel("direct-tcpip", ("127.0.0.1", 1), ("", 0))
    finally:
        allowed.write_text(before)
