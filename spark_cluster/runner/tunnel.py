"""A tunnel: a port of this machine to the endpoint, connected again when the SSH link is cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import Unreachable, UsageError
from spark_cluster.runner.ssh_forward import SshForward, must_be_free
from spark_cluster.runner.ssh_route import Target

if TYPE_CHECKING:
    from spark_cluster.runner.transport import SshConnection

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
        target: the node that it goes through.
        dial: makes a connection to the node, not opened.
        find: asks a connected node where the endpoint is.
        port: of this machine's loopback.
        report: is given what happens, from several threads.
    """

    def __init__(
        self,
        target: Target,
        dial: Callable[[Target], SshConnection],
        find: Find,
        port: int,
        report: Callable[[TunnelEvent], None],
    ) -> None:
        self._target, self._dial, self._find = target, dial, find
        self._port, self._report = port, report
        self._refused = ""
        self._lock = threading.Lock()

    def run(self) -> None:
        """Carry connections until KeyboardInterrupt.

        Raises:
            Unreachable: the first connection could not be made; later ones are tried again.
            UsageError: the port cannot be listened on, the first time.
        """
        must_be_free(self._port)
        self._once()
        pause, most = PAUSES_S
        while True:
            time.sleep(pause)
            try:
                self._once()
            except (Unreachable, UsageError) as error:
                pause = min(2 * pause, most)
                self._cut(error.message, pause, error.hint)
            else:
                pause = PAUSES_S[0]

    def _once(self) -> None:
        """Connect, and carry until the connection ends.

        Raises:
            Unreachable: it could not be made.
            UsageError: another program has taken the port.
        """
        there = self._ask()
        parts = urlsplit(there)
        self._refused = ""
        host, port = parts.hostname or LOOPBACK, parts.port or 80
        with SshForward(self._target, self._port, host, port, self._on_refused) as forward:
            forward.wait_until_open()
            here = parts._replace(netloc=f"{LOOPBACK}:{self._port}").geturl()
            self._report(TunnelEvent("open", self._target.name, url=here, to=there))
            why = forward.wait_until_cut()
        self._cut(why, PAUSES_S[0])

    def _ask(self) -> str:
        """Return the endpoint's base URL as the node reaches it."""
        connection = self._dial(self._target)
        try:
            connection.open()
            return self._find(connection)
        except EOFError:
            raise Unreachable("the connection was cut", where=self._target.name) from None
        finally:
            connection.close()

    def _cut(self, why: str, pause: float, hint: str = "") -> None:
        self._report(TunnelEvent("cut", self._target.name, why, retry_s=pause, hint=hint))

    def _on_refused(self, why: str) -> None:
        """Report a refusal once, until the next connection."""
        with self._lock:
            if why == self._refused:
                return
            self._refused = why
        hint = "spark-cluster status shows what serves" if "nothing listens" in why else ""
        self._report(TunnelEvent("refused", self._target.name, why, hint=hint))
