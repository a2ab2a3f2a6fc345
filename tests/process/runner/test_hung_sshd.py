"""A node whose kernel answers and whose sshd does not: out of memory or processes, or stopped.

The server here is paramiko's own, because a real sshd cannot be had to fall silent at a given step.
"""

import functools
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import paramiko
import pytest
from cases import each_case
from own_sshd import way_to
from password_sshd import PasswordSshd
from waiting import HANG_S, until, with_a_limit

from spark_cluster.errors import Unreachable
from spark_cluster.runner import ssh as ssh_module
from spark_cluster.runner.dialer import SshConnection, Target
from spark_cluster.runner.ssh import Connection
from spark_cluster.runner.ssh_route import route


@functools.cache
def rsa_key(_name: str) -> paramiko.RSAKey:
    """Return a key, made when it is first wanted: every worker imports this module."""
    return paramiko.RSAKey.generate(2048)


class HungSshd(PasswordSshd):
    """Goes along up to one step, and never comes back from it.

    Attributes:
        reached: that step was asked for.
        let_go: ends the step, after the test.
    """

    def __init__(self, step: str) -> None:
        self.step = step
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self._commands = 0
        super().__init__(rsa_key("host"))
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)

    def _at(self, step: str) -> None:
        if step == self.step:
            self.reached.set()
            self.let_go.wait()

    def transport_over(self, client: socket.socket) -> paramiko.Transport:
        if self.step == "hello":
            client.sendall(b"SSH-2.0-hung\r\n")
            self._at("hello")
        return (SilentAfterHello if self.step == "keys" else paramiko.Transport)(client)

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._at("key")
        return paramiko.AUTH_SUCCESSFUL if self.step != "password" else paramiko.AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        self._at("password")
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        self._at("session")
        return super().check_channel_request(kind, chanid)

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        self._at("jump")
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._at("command")
        self._commands += 1
        if self._commands > 1:
            self._at("second command")
        return True


class SilentAfterHello(paramiko.Transport):
    """Sends its first message of the key exchange, and no other: paramiko's own limit is over."""

    def _send_kex_init(self) -> None:
        super()._send_kex_init()
        self.server_object._at("keys")


@contextmanager
def hung(step: str) -> Iterator[tuple[int, HungSshd]]:
    """A port with such a server, for one connection."""
    server = HungSshd(step)
    try:
        yield server.port, server
    finally:
        server.let_go.set()
        server.close()


@pytest.fixture
def target(home, tmp_path) -> Callable[..., Target]:
    """`target(port, ...)`: how a server on this port is reached; its host key is known then."""
    rsa_key("user").write_private_key_file(str(tmp_path / "key"))

    def make(port: int, *, through: bool = False, **options: object) -> Target:
        line = f"[127.0.0.1]:{port} ssh-rsa {rsa_key('host').get_base64()}\n"
        (home / ".ssh/known_hosts").write_text(line)
        place = (
            {"address": "10.0.0.9", "port": 22, "jump": f"root@127.0.0.1:{port}"}
            if through
            else {"port": port}
        )
        return way_to(user="root", identity_file=tmp_path / "key", **place, **options)

    return make


@pytest.fixture
def hangs_at(target) -> Callable[..., Unreachable]:
    """`hangs_at(step, use, password=...)`: the error of a use of a node that hangs there."""

    def outcome(
        step: str,
        use: Callable[[SshConnection], object],
        *,
        password: str | None = None,
        through: bool = False,
    ) -> Unreachable:
        caught = []

        def attempt(limit_s: float) -> bool:
            with hung(step) as (port, server):
                connection = SshConnection(
                    target(
                        port, through=through, connect_timeout_s=limit_s, login_password=password
                    )
                )
                with pytest.raises(Unreachable) as error:
                    use(connection)
                caught.append((limit_s, error.value))
                connection.close()
                return server.reached.is_set()

        with_a_limit(attempt)
        limit_s, error = caught[-1]
        assert error.where == "spark1"
        assert f"within {limit_s:g} s" in error.message
        return error

    return outcome


USES = {
    "open": SshConnection.open,
    "session": lambda connection: connection.session("run"),
    "key": lambda connection: Connection(route(connection.target), shared=False).shown_key(),
}


@each_case(__file__, "hung_steps.json")
def test_the_step_at_which_it_hangs_is_named(hangs_at, case):
    """It is not the key's fault, nor is the password offered in its place."""
    error = hangs_at(case["step"], USES[case["use"]], password=case.get("password"))
    assert case["says"] in error.message
    assert "it hangs or is overloaded" in error.hint


def test_a_jump_host_that_does_not_come_through(hangs_at):
    error = hangs_at("jump", SshConnection.open, through=True)
    assert "the jump host did not reach 10.0.0.9:22" in error.message
    assert "check that it is on" in error.hint


def test_the_end_of_a_channel_does_not_wait_for_what_the_node_never_takes(target, monkeypatch):
    """The laptop has no limit of its own on sent data (macOS), and all buffers are full."""
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")
    monkeypatch.setattr(ssh_module, "CLOSES_WITHIN_S", 0.3)
    with hung("second command") as (port, server):
        connection = SshConnection(target(port, connect_timeout_s=HANG_S))
        channel = connection.start(["true"])
        sock = connection.open().transport.sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        threads = [
            threading.Thread(target=ignoring_errors, args=(use,), daemon=True)
            for use in (lambda: connection.start(["true"]), lambda: channel.send(b"x" * 1_000_000))
        ]
        threads[0].start()
        assert server.reached.wait(HANG_S)
        threads[1].start()
        until(lambda: stays_full(sock), what="full buffers")
        channel.close()
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive()


def ignoring_errors(use):
    with suppress(Unreachable, OSError, EOFError):
        use()


def stays_full(sock):
    """Return whether nothing more can be sent, now and a little later."""
    for _ in range(20):
        if select.select([], [sock], [], 0)[1]:
            return False
        time.sleep(0.01)
    return True
