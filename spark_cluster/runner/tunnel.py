"""A tunnel: a port of this machine to the endpoint, connected again when the SSH link is cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from spark_cluster.errors import Unreachable
from spark_cluster.runner.port_forward import LOOPBACK, PortForward

if TYPE_CHECKING:
    import socket

    import paramiko

    from spark_cluster.runner.transport import SshConnection

KEEPALIVE_S = 15.0
"""Seconds between two questions to sshd whether it is still there."""

ANSWERS_WITHIN_S = 15.0
"""Seconds without an answer after which the connection is taken to be cut."""

PAUSES_S = (1.0, 30.0)
"""Seconds between two tries to connect again: at first, and at most; each is twice the last."""

Find = Callable[["SshConnection"], str]
"""Asks the node for the endpoint's base URL, as the node reaches it."""


@dataclass(frozen=True)
class TunnelEvent:
    """News of a tunnel.

    Attributes:
        event: `open` (it carries connections), `cut` (the SSH connection ended, or could not be
            made again), `refused` (the node does not connect to the endpoint's port).
        node: the node it goes through.
        message: the reason; empty for `open`.
        url: the endpoint's base URL on this machine, of `open`.
        to: the same as the node reaches it.
        retry_s: seconds until the next try, of `cut`.
        hint: what to do; empty when there is nothing to add.
    """

    event: Literal["open", "cut", "refused"]
    node: str
    message: str = ""
    url: str = ""
    to: str = ""
    retry_s: float | None = None
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `tunnel --json` prints it."""
        return dict(vars(self))


class Tunnel:
    """A tunnel that lasts until the program is interrupted.

    Args:
        node: its name, for messages.
        dial: makes a connection to the node, not opened.
        find: asks a connected node where the endpoint is.
        listener: of this machine.
        report: is given what happens, from several threads.
    """

    def __init__(
        self,
        node: str,
        dial: Callable[[], SshConnection],
        find: Find,
        listener: socket.socket,
        report: Callable[[TunnelEvent], None],
    ) -> None:
        self._node, self._dial, self._find, self._report = node, dial, find, report
        self._port: int = listener.getsockname()[1]
        self._refused = ""
        self._lock = threading.Lock()
        self._forward = PortForward(listener, self._on_refused)

    def run(self) -> None:
        """Carry connections until KeyboardInterrupt.

        Raises:
            Unreachable: the first connection could not be made; later ones are tried again.
        """
        try:
            self._once()
            pause, most = PAUSES_S
            while True:
                time.sleep(pause)
                try:
                    self._once()
                except Unreachable as error:
                    pause = min(2 * pause, most)
                    self._cut(error.message, pause, error.hint)
                else:
                    pause = PAUSES_S[0]
        finally:
            self._forward.close()

    def _once(self) -> None:
        """Connect, and carry until the connection ends.

        Raises:
            Unreachable: it could not be made.
        """
        connection = self._dial()
        try:
            transport = connection.open().transport
            there = self._find(connection)
            parts = urlsplit(there)
            self._refused = ""
            self._forward.use(transport, (parts.hostname or LOOPBACK, parts.port or 80))
            here = parts._replace(netloc=f"{LOOPBACK}:{self._port}").geturl()
            self._report(TunnelEvent("open", self._node, url=here, to=there))
            why = watch(transport)
        except EOFError:
            why = "the connection was cut"
        finally:
            self._forward.use(None)
            connection.close()
        self._cut(why, PAUSES_S[0])

    def _cut(self, why: str, pause: float, hint: str = "") -> None:
        self._report(TunnelEvent("cut", self._node, why, retry_s=pause, hint=hint))

    def _on_refused(self, why: str) -> None:
        """Report a refusal once, until the next connection."""
        with self._lock:
            if why == self._refused:
                return
            self._refused = why
        hint = "spark-cluster status shows what serves" if "nothing listens" in why else ""
        self._report(TunnelEvent("refused", self._node, why, hint=hint))


def watch(transport: paramiko.Transport) -> str:
    """Wait until an SSH connection ends, and return why.

    It is asked now and then: without traffic TCP does not notice a peer that is gone.
    """
    import paramiko

    from spark_cluster.runner.ssh_limits import NoAnswer, limited

    while True:
        transport.join(KEEPALIVE_S)
        if not transport.is_alive():
            return "the connection was cut"
        try:
            with limited(transport, ANSWERS_WITHIN_S, "answer"):
                # sshd answers that it does not know it: an answer all the same.
                transport.global_request("keepalive@openssh.com", wait=True)
        except NoAnswer:
            return f"sshd did not answer within {ANSWERS_WITHIN_S:g} s"
        except (paramiko.SSHException, OSError, EOFError):
            return "the connection was cut"
