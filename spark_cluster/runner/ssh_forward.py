"""A port of this machine's loopback that leads to a port which a node can reach.

A child `ssh -N -L` carries the connections (source: ssh(1)): it reads the user's ssh_config, takes
host keys as strictly as our own connections do, on every hop, and notices a peer that is gone.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import math
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import SparkClusterError, Unreachable, UsageError
from spark_cluster.runner.ssh_route import Target

KEEPALIVE_S, UNANSWERED = 10, 2
"""Seconds between two questions to sshd whether it is still there, and the number of them without
an answer after which the connection is cut."""

ENDS_WITHIN_S = 5.0
"""Seconds that ssh has to end; then it is killed."""

LONGEST = 1000
"""Characters of a line of ssh's that are kept."""

CONSEQUENCES = ("Connection closed by UNKNOWN", "kex_exchange_identification")
"""Beginnings of what ssh says when its jump host has ended, which has told the reason before."""

OPEN = "spark-cluster-forward-is-open"
"""Printed by ssh's LocalCommand, which runs once the port listens."""

WITH_US = 'exec 3<&0 </dev/null; { cat <&3; kill 0; } >/dev/null 2>&1 & exec 3<&-; exec ssh "$@"'
"""ssh, and what ends its process group when the pipe that we hold is closed, as it also is when
this process is killed."""

USER_CONFIG, SYSTEM_CONFIG = "~/.ssh/config", "/etc/ssh/ssh_config"
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")

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
"""
"""What no user's configuration can loosen, for the node and its jump hosts: the first value that
ssh reads counts."""


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


def free_port() -> int:
    """Return a port of the loopback that nothing listens on."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def forward(target: Target, host: str, port: int) -> Iterator[int]:
    """Lead a free port of the loopback to a port that a node can reach, during the block.

    Args:
        host: as the node names it, such as 127.0.0.1 for the node itself.

    Yields:
        The port of this machine.

    Raises:
        Unreachable: there is no connection to the node.
        UsageError: this machine has no program `ssh`.
    """
    with SshForward(target, free_port(), host, port) as found:
        found.wait_until_open()
        yield found.port


class SshForward:
    """A child `ssh -N -L`, which ends with the block and with this process.

    Args:
        target: the node.
        port: of this machine's loopback.
        host, to_port: where it leads, as the node names it.
        on_refused: is given the reason when the node does not connect to the port there.
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
        self._said = ""
        self._files = contextlib.ExitStack()

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
        file = self._files.enter_context(
            tempfile.NamedTemporaryFile("w", prefix="spark-cluster-ssh-")
        )
        file.write(configuration(self._target))
        file.flush()
        pipe = subprocess.PIPE
        argv = ["sh", "-c", WITH_US, "sh", *arguments(self._target, file.name, self._spec())]
        # A session of its own: Ctrl-C on the terminal is for this process, which then ends ssh.
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._process.stdin)  # which has ssh's process group end
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._listener.join(ENDS_WITHIN_S)
        _shut(self._process.stdout)
        self._files.close()

    def wait_until_open(self) -> None:
        """Wait until the port listens.

        Raises:
            Unreachable: ssh has no connection to the node; with its own reason.
            UsageError: the port cannot be listened on.
        """
        # TCP, key exchange, login and the request, each of which may take its time.
        until = time.monotonic() + 4 * self._target.connect_timeout_s
        said, out = b"", self._process.stdout
        while OPEN.encode() not in said[-LONGEST:] and out is not None:
            left = max(0.0, until - time.monotonic())
            if not select.select([out], [], [], left)[0]:
                raise Unreachable("ssh did not log in in time", where=self._target.name)
            data = os.read(out.fileno(), 4096)
            if not data:
                self.wait_until_cut()
                raise self._why_not()
            said += data

    def wait_until_cut(self) -> str:
        """Wait until the connection ends, and return why."""
        self._process.wait()
        self._listener.join(ENDS_WITHIN_S)
        if self._said.startswith("Timeout, server"):
            return f"sshd did not answer within {KEEPALIVE_S * UNANSWERED} s"
        return "the connection was cut"

    def _spec(self) -> str:
        host, port = self._there
        return f"{LOOPBACK}:{self.port}:{f'[{host}]' if ':' in host else host}:{port}"

    def _why_not(self) -> SparkClusterError:
        if "local forwarding" in self._said:
            return UsageError(
                f"ssh cannot listen on port {self.port} of this machine",
                hint="another program has taken it, or a LocalForward of ssh_config has: "
                "give another one with --port PORT",
            )
        name = self._target.name
        return Unreachable(
            f"ssh made no tunnel: {self._said or 'it gave no reason'}",
            where=name,
            hint=f"`spark-cluster ping --limit {name}` tries the connection alone",
        )

    def _listen(self) -> None:
        """Read what ssh says: refusals of the node, and at last why it ended."""
        pipe = self._process.stderr
        while pipe is not None and (line := pipe.readline(LONGEST)):
            said = line.decode(errors="replace").strip()
            if said and not said.startswith(CONSEQUENCES):
                self._said = said
            if refused := re.search(r"channel \d+: open failed: (.*)", said):
                self._on_refused(self._why_refused(refused[1]))
        _shut(pipe)

    def _why_refused(self, said: str) -> str:
        where = "{}:{}".format(*self._there)
        if said.startswith("administratively prohibited"):
            return "sshd there forbids forwarding (AllowTcpForwarding or PermitOpen in sshd_config)"
        if "refused" in said:
            return f"nothing listens at {where} there"
        return f"{where} there: {said}"


def configuration(target: Target) -> str:
    """Return the ssh_config of a tunnel: our own strictness, then the user's configuration.

    It is a file because ssh gives its jump hosts the file, but none of the options.
    """
    home = Path.home()  # ssh itself goes by the user database, not by $HOME
    lines = [STRICT + f"  ConnectTimeout {math.ceil(target.connect_timeout_s)}"]
    if target.known_hosts is not None:
        files = (str(target.known_hosts), *SYSTEM_KNOWN_HOSTS)
        lines.append(f"  GlobalKnownHostsFile {' '.join(map(_quoted, files))}")
    if target.jump is not None and target.identity_file is not None:
        lines.append(f"  IdentityFile {_quoted(str(target.identity_file).replace('%', '%%'))}")
    for path in (Path(USER_CONFIG).expanduser(), SYSTEM_CONFIG):
        lines.append(f"Include {_quoted(glob.escape(str(path)))}")
    known = (_quoted(str(home / ".ssh" / name)) for name in ("known_hosts", "known_hosts2"))
    lines.append(f"Host *\n  UserKnownHostsFile {' '.join(known)}")
    return "\n".join(lines) + "\n"


def arguments(target: Target, config: str, spec: str) -> list[str]:
    """Return ssh's arguments.

    Args:
        config: the file of `configuration`.
        spec: of -L.
    """
    options = {
        "ExitOnForwardFailure": "yes",
        "ServerAliveInterval": KEEPALIVE_S,
        "ServerAliveCountMax": UNANSWERED,
        "PermitLocalCommand": "yes",
        "LocalCommand": f"echo {OPEN}",
        "RemoteCommand": "none",
    }
    argv = ["-N", "-T", "-F", config]
    argv += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    argv += ["-L", spec]
    argv += ["-l", target.user] if target.user else []
    argv += ["-p", str(target.port)] if target.port else []
    if target.identity_file is not None:
        argv += ["-i", str(target.identity_file).replace("%", "%%")]
    argv += ["-J", target.jump] if target.jump is not None else []
    return [*argv, "--", target.host]


def _quoted(word: str) -> str:
    return f'"{word}"'


def _shut(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()
