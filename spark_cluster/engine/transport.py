"""One SSH connection to one node, and the channels of agents on it.

fabric makes the connection and chains jump hosts (see engine/dialling.py); the
agent's channel is paramiko's own, because fabric polls and starts threads for each command.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.engine import payload
from spark_cluster.engine.channel import TAKES_NOTHING_S
from spark_cluster.engine.dialling import connect, hang_up, unreachable
from spark_cluster.engine.refusal import PROMPT, why_no_agent
from spark_cluster.engine.session import Session
from spark_cluster.engine.ssh_route import Target
from spark_cluster.errors import Unreachable

if TYPE_CHECKING:
    import fabric
    import paramiko

__all__ = ["SshChannel", "SshConnection", "Target"]

CHANNEL_TRIES = 5

SLICE = 64 * 1024
"""Bytes given to paramiko at once; it copies what is left after each packet."""


class SshChannel:
    """An agent's channel; see `spark_cluster.engine.channel.Channel`."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._said = b""

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        since = time.monotonic()
        while rest:
            try:
                rest = rest[self._channel.send(bytes(rest[:SLICE])) :]
                since = time.monotonic()
            except TimeoutError:  # that of `receive`; a full window may need longer
                if time.monotonic() - since > TAKES_NOTHING_S:
                    self._channel.close()  # half a frame was sent: nothing can follow it
                    raise OSError(f"the node takes nothing since {TAKES_NOTHING_S:g} s") from None

    def receive(self, timeout: float) -> bytes:
        self._channel.settimeout(timeout)
        return bytes(self._channel.recv(65536))

    def said(self) -> str:
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
        with contextlib.suppress(OSError, EOFError):  # of a connection that has ended already
            self._channel.close()


class SshConnection:
    """One SSH connection to one node; opened on first use, safe to use from several threads."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._fabric: fabric.Connection | None = None

    def open(self) -> fabric.Connection:
        """The open connection.

        Raises:
            Unreachable: with the reason, and what to do about it.
        """
        with self._lock:
            if self._fabric is None:
                self._fabric = connect(self.target)
            return self._fabric

    def channel(self, argv: Sequence[str]) -> SshChannel:
        """Start a command (an argument list; it is quoted for the remote shell)."""
        import paramiko

        transport = self.open().transport
        assert transport is not None  # noqa: S101  (it is open)
        for attempt in range(CHANNEL_TRIES):
            try:
                channel = transport.open_session(timeout=self.target.connect_timeout_s)
                break
            except paramiko.ChannelException as error:  # sshd's MaxSessions counts closing ones
                if attempt == CHANNEL_TRIES - 1:
                    raise Unreachable(
                        f"sshd gives no further session ({error})", where=self.target.name
                    ) from None
                time.sleep(0.2 * (attempt + 1))
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise unreachable(self.target, str(error) or "the connection was cut") from None
        try:
            channel.exec_command(shlex.join(argv))
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise unreachable(self.target, str(error) or "the connection was cut") from None
        return SshChannel(channel)

    def session(self, run: str, *, become: bool = True) -> Session:
        """Start an agent on the node, as root with `become`."""
        connection = self.open()
        is_root = connection.user == "root"
        argv = payload.argv(run)
        password = self.target.sudo_password() if become and not is_root else None
        if password is not None:
            argv = ["sudo", "-S", "-p", PROMPT, "--", *payload.argv(run, says_ready=True)]
        elif become and not is_root:
            argv = ["sudo", "-n", "--", *argv]
        return Session(
            self.target.name,
            self.channel(argv),
            as_root=become or is_root,
            password=password,
            explain=partial(why_no_agent, self.target.name, str(connection.user)),
        )

    def close(self) -> None:
        with self._lock:
            if self._fabric is not None:
                hang_up(self._fabric)
                self._fabric = None
