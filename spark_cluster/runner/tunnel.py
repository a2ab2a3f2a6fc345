"""A port of this machine's loopback that leads to a port which a node can reach.

A child `ssh -N -L` carries the connections (source: ssh(1)): it reads the user's ssh_config, takes
host keys as strictly as our own connections do, on every hop, and notices a peer that is gone. A
tunnel is such a port to the endpoint, connected again when the SSH link is cut.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import Unreachable, UsageError
from spark_cluster.runner import ssh_config
from spark_cluster.runner.ssh_config import Target

if TYPE_CHECKING:
    from spark_cluster.runner.transport import SshConnection

PAUSES_S = (1.0, 30.0)
"""Seconds between two tries to connect again: at first, and at most; each is twice the last."""

KEEPALIVE_S, UNANSWERED = 10, 2
"""Seconds between two questions to sshd whether it is still there, and the number of them without
an answer after which the connection is cut."""

ENDS_WITHIN_S = 5.0
"""Seconds that ssh has to end; then it is killed."""

LONGEST = 1000
"""Characters of a line of ssh's that are kept."""

CONSEQUENCES = ("Connection closed by UNKNOWN", "kex_exchange_identification")
"""Beginnings of what ssh says when its jump host has ended, which has told the reason before."""

WITH_US = 'exec 3<&0 </dev/null; { cat <&3; kill 0; } >/dev/null 2>&1 & exec 3<&-; exec ssh "$@"'
"""ssh, and what ends its process group when the pipe that we hold is closed, as it also is when
this process is killed."""

STRICT = """\
Host *
  BatchMode yes
  StrictHostKeyChecking yes
  VerifyHostKeyDNS no
  NoHostAuthenticationForLocalhost no
  UpdateHostKeys no
  ControlMaster no
  ControlPath none
  ForwardAgent no
  ForwardX11 no
  LogLevel INFO
  RemoteCommand none
  ExitOnForwardFailure yes
"""
"""What no user's configuration can loosen, for the node and its jump hosts."""

SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


def free_port() -> int:
    """Return a port of the loopback that nothing listens on."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def must_be_free(port: int) -> None:
    """Look whether a port of the loopback can be listened on.

    Raises:
        UsageError: the port is taken, or only root may use it.
    """
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        reason = {
            errno.EADDRINUSE: "another program listens there",
            errno.EACCES: "only root may listen there",
        }.get(error.errno or 0, (error.strerror or str(error)).lower())
        raise UsageError(
            f"port {port} of this machine cannot be used: {reason}",
            hint="give another one: --port PORT",
        ) from None


@contextlib.contextmanager
def forward(target: Target, host: str, port: int) -> Iterator[int]:
    """Lead a free port of the loopback to a port that a node can reach, during the block.

    Args:
        host: as the node names it, such as 127.0.0.1 for the node itself.

    Yields:
        The port of this machine.

    Raises:
        Unreachable, UsageError: as `SshForward`.
    """
    with SshForward(target, free_port(), host, port) as found:
        threading.Thread(target=found.wait_until_cut, daemon=True).start()  # it hears what is said
        yield found.port


class SshForward:
    """A child `ssh -N -L`, which ends with the block and with this process.

    Args:
        target: the node.
        port: of this machine's loopback; it listens when the block begins.
        host, to_port: where it leads, as the node names it.
        on_refused: is given the reason when the node does not connect to the port there.

    Raises:
        Unreachable: ssh has no connection to the node; with its own reason.
        UsageError: the port cannot be listened on, or this machine has no program `ssh`.
    """

    def __init__(
        self,
        target: Target,
        port: int,
        host: str,
        to_port: int,
        on_refused: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self.port = port
        self._target, self._there, self._on_refused = target, (host, to_port), on_refused
        self._open = f"open-{secrets.token_hex(8)}"  # which no banner of the node's can say
        self._said = ""

    def __enter__(self) -> SshForward:
        if not re.fullmatch(r"[A-Za-z0-9_.:%-]+", self._there[0]):
            raise Unreachable(
                f"{self._there[0]!r} is not an address or a host name", where=self._target.name
            )
        if shutil.which("ssh") is None:
            raise UsageError(
                "a tunnel needs the program `ssh`, which this machine does not have",
                hint="install OpenSSH's client (package openssh-client)",
            )
        must_be_free(self.port)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(ssh_config.configuration(_strict(self._target)))
            # A session of its own: Ctrl-C on the terminal is for this process, which then ends ssh.
            self._process = subprocess.Popen(
                ["sh", "-c", WITH_US, "sh", *self._arguments(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(self._end)
            self._wait_until_open()
            self._until_exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._until_exit.close()

    def wait_until_cut(self) -> str:
        """Wait until the connection ends, and return why."""
        for _ in self._heard():
            pass
        if self._said.startswith("Timeout, server"):
            return f"sshd did not answer within {KEEPALIVE_S * UNANSWERED} s"
        return "the connection was cut"

    def _arguments(self, file: str) -> list[str]:
        target, (host, port) = self._target, self._there
        spec = f"{LOOPBACK}:{self.port}:{f'[{host}]' if ':' in host else host}:{port}"
        local = ["-o", "PermitLocalCommand=yes", "-o", f"LocalCommand=echo {self._open}"]
        argv = ["-N", "-T", "-F", file, *local, "-L", spec]
        argv += ["-l", target.user] if target.user else []
        argv += ["-p", str(target.port)] if target.port else []
        argv += ["-i", _escaped(target.identity_file)] if target.identity_file is not None else []
        argv += ["-J", target.jump] if target.jump is not None else []
        return [*argv, "--", target.host]

    def _wait_until_open(self) -> None:
        # TCP, key exchange, login and the request, each of which may take its time.
        timer = threading.Timer(4 * self._target.connect_timeout_s, self._kill)
        timer.daemon = True
        timer.start()
        is_open = self._open in self._heard()
        in_time = timer.is_alive()
        timer.cancel()
        if is_open:
            return
        if "local forwarding" in self._said:
            raise UsageError(
                f"ssh cannot listen on port {self.port} of this machine",
                hint="another program has taken it, or a LocalForward of ssh_config has: "
                "give another one with --port PORT",
            )
        why = self._said or ("it gave no reason" if in_time else "it did not log in in time")
        raise Unreachable(
            f"ssh made no tunnel: {why}",
            where=self._target.name,
            hint=f"`spark-cluster ping --limit {self._target.name}` tries the connection alone",
        )

    def _heard(self) -> Iterator[str]:
        """Yield what ssh says, line by line, until it ends: refusals of the node, at last why."""
        assert self._process.stdout is not None  # noqa: S101  (a pipe)
        while line := self._process.stdout.readline(LONGEST):
            said = line.decode(errors="replace").strip()
            if refused := re.search(r"channel \d+: open failed: (.*)", said):
                self._on_refused(self._why_refused(refused[1]))
            if said and not said.startswith(CONSEQUENCES):
                self._said = said
            yield said

    def _why_refused(self, said: str) -> str:
        where = "{}:{}".format(*self._there)
        if said.startswith("administratively prohibited"):
            return "sshd there forbids forwarding (AllowTcpForwarding or PermitOpen in sshd_config)"
        if "refused" in said:
            return f"nothing listens at {where} there"
        return f"{where} there: {said}"

    def _end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()  # which has ssh's process group end
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _strict(target: Target) -> str:
    """Return what comes before the user's configuration, for the node and its jump hosts."""
    lines = [
        STRICT + f"  ConnectTimeout {math.ceil(target.connect_timeout_s)}",
        f"  ServerAliveInterval {KEEPALIVE_S}",
        f"  ServerAliveCountMax {UNANSWERED}",
    ]
    if target.known_hosts is not None:
        files = (str(target.known_hosts), *SYSTEM_KNOWN_HOSTS)
        lines.append("  GlobalKnownHostsFile " + " ".join(f'"{file}"' for file in files))
    if target.jump is not None and target.identity_file is not None:
        lines.append(f'  IdentityFile "{_escaped(target.identity_file)}"')
    return "\n".join(lines) + "\n"


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")


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
