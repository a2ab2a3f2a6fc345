"""An SSH connection to one node, and the channels of agents on it.

The connection is made by runner/ssh.py; the agent's channel is paramiko's own.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.errors import Unreachable
from spark_cluster.runner.agent_errors import why_no_agent
from spark_cluster.runner.channel import must_take
from spark_cluster.runner.node_connection import agent_argv
from spark_cluster.runner.ssh_errors import no_answer, unreachable
from spark_cluster.runner.ssh_route import Target, route
from spark_cluster.runner.ssh_socket import socket_to

if TYPE_CHECKING:
    import paramiko

    from spark_cluster.runner.session import Session
    from spark_cluster.runner.ssh import Connection

__all__ = ["SshChannel", "SshConnection", "Target"]

CHANNEL_TRIES = 5

CLOSES_WITHIN_S = 10.0
"""Seconds in which the end of a channel can be sent; if not, its connection is closed."""

SLICE = 64 * 1024
"""Bytes given to paramiko at once; it copies what is left after each packet."""


class SshChannel:
    """An agent's channel; see `spark_cluster.runner.channel.Channel`."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._said = b""

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        begun = last = time.monotonic()
        while rest:
            must_take(len(data) - len(rest), begun, last)
            with contextlib.suppress(TimeoutError):  # that of `receive`; a window may need longer
                rest = rest[self._channel.send(bytes(rest[:SLICE])) :]
                last = time.monotonic()

    def receive(self, timeout: float) -> bytes:
        self._channel.settimeout(timeout)
        return bytes(self._channel.recv(65536))

    def stderr(self) -> str:
        while self._channel.recv_stderr_ready():
            self._said += self._channel.recv_stderr(65536)
        return self._said.decode(errors="replace")

    def status(self) -> int | None:
        deadline = time.monotonic() + 2
        while not self._channel.exit_status_ready():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        return int(self._channel.recv_exit_status())

    def close(self) -> None:
        from spark_cluster.runner.ssh_limits import NoAnswer, limited

        # What is said at the end waits for what is being sent, which a node may never take.
        with (
            contextlib.suppress(OSError, EOFError, NoAnswer),  # the connection has ended already
            limited(self._channel.get_transport(), CLOSES_WITHIN_S, "take the end"),
        ):
            self._channel.close()


class SshConnection:
    """An SSH connection to one node; opened on first use, safe to use from several threads."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._login: Connection | None = None
        self._prepared: dict[tuple[str, ...], SshChannel] = {}

    def open(self) -> Connection:
        """Log in, if that is not done yet.

        Raises:
            Unreachable: with the reason, and what to do about it.
        """
        with self._lock:
            if self._login is None:
                hops = route(self.target)
                password = self.target.login_password()
                sock = socket_to(hops[0], self.target)  # while fabric is being imported
                from spark_cluster.runner import ssh

                self._login = ssh.connect(hops, self.target, password, sock)
            return self._login

    def channel(self, argv: Sequence[str]) -> SshChannel:
        """Start a command (an argument list; it is quoted for the remote shell)."""
        import paramiko

        from spark_cluster.runner.ssh_limits import NoAnswer, limited

        limit_s = self.target.connect_timeout_s
        login = self.open()
        try:
            transport = login.transport
            channel = self._session_of(transport)
            with limited(transport, limit_s, "start a command"):
                channel.exec_command(shlex.join(argv))
        except NoAnswer as error:
            raise no_answer(self.target, error) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise unreachable(self.target, str(error) or "the connection was cut") from None
        return SshChannel(channel)

    def _session_of(self, transport: paramiko.Transport) -> paramiko.Channel:
        """A new channel; sshd's MaxSessions counts closing ones, so one more try may do."""
        import paramiko

        from spark_cluster.runner.ssh_limits import limited

        for attempt in range(CHANNEL_TRIES):
            if attempt:
                time.sleep(0.2 * attempt)
            try:
                with limited(transport, self.target.connect_timeout_s, "open a session"):
                    return transport.open_session()
            except paramiko.ChannelException as error:
                refused = error
        raise Unreachable(f"sshd refuses another session ({refused})", where=self.target.name)

    def prepare(self, run: str, *, become: bool) -> None:
        """Start an agent's process before there is anything to be sent to it.

        `session` with the same arguments uses it, unless sudo is to be given a password.
        """
        argv = agent_argv(run, self.user, become=become, password=False)
        self._prepared[tuple(argv)] = self.channel(argv)

    def session(self, run: str, *, become: bool = True) -> Session:
        """Start an agent on the node, as root with `become`."""
        from spark_cluster.runner.session import Session

        user = self.user
        is_root = user == "root"
        password = self.target.sudo_password() if become and not is_root else None
        argv = agent_argv(run, user, become=become, password=password is not None)
        prepared = self._prepared.pop(tuple(argv), None)
        return Session(
            self.target.name,
            self.channel(argv) if prepared is None else prepared,
            as_root=become or is_root,
            password=password,
            explain=partial(why_no_agent, self.target.name, user),
        )

    @property
    def user(self) -> str:
        """The user who is logged in."""
        return str(self.open().user)

    def host_key(self) -> bytes | None:
        """Return the host key that the node showed."""
        return bytes(self.open().transport.get_remote_server_key().asbytes())

    def close(self) -> None:
        with self._lock:
            if self._login is not None:
                from spark_cluster.runner.ssh import hang_up

                hang_up(self._login)
                self._login = None
