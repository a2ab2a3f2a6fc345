"""How the nodes of an opened inventory are reached: connections, passwords, tunnels to their ports.

The socket to the first host of the way is opened here, while fabric is still being imported; what
logs in over it is runner/ssh.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from spark_cluster.config.extension import Prompts
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import INSTALL_LAB, SparkClusterError, Unreachable, UsageError
from spark_cluster.runner import ssh_route
from spark_cluster.runner.node_connection import LocalConnection, NodeConnection
from spark_cluster.runner.parallel import in_parallel, start
from spark_cluster.runner.ssh_route import Target, login_password, route, socket_to, sudo_password

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.runner.session import Session
    from spark_cluster.runner.ssh import Connection, SshChannel


class SshConnection(NodeConnection):
    """An SSH connection to one node; opened on first use, safe to use from several threads."""

    def __init__(self, target: Target) -> None:
        self.target, self.node = target, target.node.name
        self._lock = threading.Lock()
        self._login: Connection | None = None

    def open(self) -> Connection:
        """Log in, if that is not done yet.

        Raises:
            Unreachable: with the reason, and what to do about it.
            InvalidFile, Failed: ssh_config or a file of host keys cannot be read.
        """
        with self._lock:
            if self._login is None:
                password = self.target.login_password()
                hops = route(self.target)
                sock = socket_to(hops[0])  # while fabric is being imported
                from spark_cluster.runner import ssh

                login = ssh.Connection(hops, shared=True)
                login.log_in(password, sock)
                self._login = login
            return self._login

    def fabric(self, *, owned: bool) -> Connection:
        if not owned:
            return self.open()
        from spark_cluster.runner import ssh

        return ssh.Connection(route(self.target), shared=False)

    def start(self, argv: Sequence[str]) -> SshChannel:
        return self.open().channel(argv)

    def sudo_password(self) -> str | None:
        return self.target.sudo_password()

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
                self._login.hang_up()
                self._login = None


@dataclass(eq=False)
class Dialer:
    """Makes the connections to the nodes of an inventory.

    Args:
        prompts: asks for passwords.
    """

    prompts: Prompts = field(default_factory=Prompts)
    _begun: dict[str, tuple[SshConnection, Future[Any]]] = field(default_factory=dict, init=False)

    @contextlib.contextmanager
    def begun(self, nodes: Iterable[InventoryNode]) -> Iterator[None]:
        """Log in to nodes while it is still being read what they are to do.

        `dial` takes the connections in the block; those that are not taken end after it.
        """
        for node in nodes:
            if not node.is_local:
                made = SshConnection(self.target(node))
                self._begun[node.name] = made, start(made.open)
        from spark_cluster.runner import ssh  # noqa: F401  (here, as in Connections.begin)

        try:
            yield
        finally:
            while self._begun:
                start(self._begun.popitem()[1][0].close)  # one that is being made keeps it waiting

    def target(self, node: InventoryNode) -> Target:
        """Return how the transport reaches a node of the inventory."""
        return Target(node, self.prompts)

    def remember_password(self, node: str, password: str) -> None:
        """Answer with it where a terminal would be asked for the node's login or sudo password: a
        fresh node's user has one for both.
        """
        for what in (login_password(node), sudo_password(node)):
            self.prompts.remember(what, password)

    def dial(self, node: InventoryNode) -> NodeConnection:
        """Return a connection to a node: over SSH, or on this machine itself.

        Raises:
            SparkClusterError: it was begun, and failed.
        """
        target = self.target(node)
        if (begun := self._begun.pop(node.name, None)) is not None:
            outcome = begun[1].result()
            if isinstance(outcome, SparkClusterError):
                raise outcome
            return begun[0]
        if not node.is_local:
            return SshConnection(target)

        if node.namespaces_of is None:
            return LocalConnection(node.name, target.sudo_password)
        found: NodeConnection = _namespaces().NamespacesConnection(
            node.name, target.sudo_password, namespaces_of=node.namespaces_of
        )
        return found

    @contextlib.contextmanager
    def session(self, node: InventoryNode, label: str, *, become: bool = True) -> Iterator[Session]:
        """Start an agent over a connection of its own; both end with the block.

        Args:
            label: of its process.

        Raises:
            SparkClusterError: the node cannot be reached.
        """
        with (
            contextlib.closing(self.dial(node)) as connection,
            contextlib.closing(connection.session(label, become=become)) as session,
        ):
            yield session

    @contextlib.contextmanager
    def sessions(
        self,
        nodes: Sequence[InventoryNode],
        label: str,
        lost: dict[str, SparkClusterError] | None = None,
    ) -> Iterator[dict[str, Session]]:
        """Start an agent as root on every node, in parallel; they end with the block.

        For a question or two: there are no facts, no lock, no events.

        Args:
            lost: takes the errors of nodes that cannot be reached, if another one is.

        Raises:
            SparkClusterError: that of the first node that cannot be reached.
        """
        with contextlib.ExitStack() as stack:
            jobs = {
                node.name: partial(stack.enter_context, self.session(node, label)) for node in nodes
            }
            outcomes = in_parallel(jobs)
            errors = {n: one for n, one in outcomes.items() if isinstance(one, SparkClusterError)}
            if errors and (lost is None or len(errors) == len(outcomes)):
                raise next(iter(errors.values()))
            if lost is not None:
                lost.update(errors)
            yield {n: one for n, one in outcomes.items() if not isinstance(one, SparkClusterError)}

    @contextlib.contextmanager
    def forward(self, node: InventoryNode, port: int) -> Iterator[int]:
        """Lead a port of this machine's loopback to one of a node's loopback, during the block.

        Yields:
            The port of this machine.

        Raises:
            Unreachable: there is no way to the node.
            UsageError: this machine has no program `ssh`.
        """
        if node.is_this_machine:
            yield port
        elif node.namespaces_of is not None:
            into = _namespaces().forward_into
            with into(node.name, node.namespaces_of, port) as found:
                yield found
        else:
            with forward(self.target(node), LOOPBACK, port) as found:
                yield found


@cache
def _namespaces() -> Any:
    """Import what reaches nodes that are namespaces, as the lab of GPUs makes them.

    Raises:
        UsageError: the lab, a distribution of its own, is not installed.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group="spark_cluster.connections", name="namespace"):
        return point.load()
    raise UsageError("a node that is a namespace is reached by the lab", hint=INSTALL_LAB)


# A port of this machine's loopback that leads to a port which a node can reach.
#
# A child `ssh -N -L` carries the connections (source: ssh(1)): it reads the user's ssh_config,
# takes host keys as strictly as our own connections do, on every hop, and notices a peer that is
# gone. The port itself is held by this process and leads to ssh by a Unix socket in a folder of
# ours: at a port that ssh held any user could listen when it has ended, and would be sent tokens.

KEEPALIVE_S, UNANSWERED = 10, 2
"""Seconds between two questions to sshd whether it is still there, and the number of them without
an answer after which the connection is cut."""

ENDS_WITHIN_S = 5.0
"""Seconds that what carries connections has to end; then it is killed."""

LONGEST = 1000
"""Characters of a line of ssh's that are kept."""

CONSEQUENCES = ("Connection closed by UNKNOWN", "kex_exchange_identification")
"""Beginnings of what ssh says when its jump host has ended, which has told the reason before."""

WITH_US = 'exec 3<&0 </dev/null; { cat <&3; kill 0; } >/dev/null 2>&1 & exec 3<&-; ssh "$@"; kill 0'
"""ssh, and what ends its process group when it has ended, or when the pipe that we hold is closed,
as it also is when this process is killed."""

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


class Entrance(socketserver.ThreadingTCPServer):
    """A port of this machine's loopback that leads to a Unix socket.

    Attributes:
        way: the socket's path; while nothing listens there, connections are closed.
    """

    allow_reuse_address = daemon_threads = True
    request_queue_size = socket.SOMAXCONN
    way = ""


class _Carrier(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        here: socket.socket = self.request
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as there:
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            there.connect(cast(Entrance, self.server).way)
            join(here, there)


def join(here: socket.socket, there: socket.socket) -> None:
    """Carry what two connections send to each other, until both have ended."""
    back = threading.Thread(target=_copy, args=(there, here), daemon=True)
    back.start()
    _copy(here, there)
    back.join()


def _copy(source: socket.socket, to: socket.socket) -> None:
    """Send what comes from one end to the other, until its end."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            to.sendall(data)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def held(port: int) -> Iterator[Entrance]:
    """Hold a port of the loopback during the block, whatever becomes of the ssh behind it.

    Args:
        port: 0 for a free one.

    Raises:
        UsageError: it cannot be listened on.
    """
    try:
        entrance = Entrance((LOOPBACK, port), _Carrier)
    except OSError:
        raise _taken(port) from None
    with entrance:
        threading.Thread(target=entrance.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield entrance
        finally:
            entrance.shutdown()


News = Iterator[tuple[Literal["cut", "refused"], str]]
Process = subprocess.Popen[bytes]


@contextlib.contextmanager
def forward(target: Target, host: str, port: int) -> Iterator[int]:
    """Lead a free port of the loopback to a port that a node can reach, during the block.

    Args:
        host: as the node names it, such as 127.0.0.1 for the node itself.

    Yields:
        The port of this machine.

    Raises:
        Unreachable, UsageError, Failed: as `carried`.
    """
    with held(0) as entrance, carried(target, entrance, host, port) as news:
        threading.Thread(target=list, args=(news,), daemon=True).start()  # ssh must be heard
        yield entrance.server_address[1]


@contextlib.contextmanager
def carried(target: Target, entrance: Entrance, host: str, to_port: int) -> Iterator[News]:
    """Lead a port of the loopback to one that a node can reach, during the block.

    Args:
        entrance: the port, which leads there when the block begins.
        host, to_port: where it leads, as the node names it.

    Yields:
        The news, as they come: `refused` when the node does not connect to the port there, and at
        last `cut`; each with the reason.

    Raises:
        Unreachable: ssh has no connection to the node; with its own reason.
        UsageError: a LocalForward of ssh_config wants the port, too.
        Failed: this machine has no program `ssh`.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.:%-]+", host):
        raise Unreachable(f"{host!r} is not an address or a host name", where=target.node.name)
    mark = f"open-{secrets.token_hex(8)}"  # which no banner of the node's can say
    pipe = subprocess.PIPE
    with (
        ssh_route.configuration(_strict(target)) as file,
        # Not in $TMPDIR: a socket's path has 104 bytes at most, and ssh reads `:` and `%` in it.
        tempfile.TemporaryDirectory(prefix="spark-cluster-ssh-", dir="/tmp") as folder,
    ):
        entrance.way = f"{folder}/way"
        spec = f"{entrance.way}:{f'[{host}]' if ':' in host else host}:{to_port}"
        argv = ["sh", "-c", WITH_US, "sh", *_arguments(target, file, spec, mark)]
        # A session of its own: Ctrl-C on the terminal is for this process, which then ends ssh.
        process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            heard = _heard(process)
            # TCP, key exchange, login and the request, each of which may take its time.
            if why := _why_not(mark, heard, process, 4 * target.node.connect_timeout_s):
                raise _not_open(target, entrance.server_address[1], why)
            yield _news(heard, f"{host}:{to_port}")
        finally:
            end(process, process.stdin)


def _why_not(mark: str, heard: Iterator[str], process: Process, limit_s: float) -> str:
    """Wait for the mark; return why it does not come, or nothing."""
    timer = threading.Timer(limit_s, _kill, (process,))
    timer.daemon = True
    timer.start()
    try:
        said = "it gave no reason"
        for line in heard:
            if line == mark:
                return ""
            said = line
        return said if timer.is_alive() else "it did not log in in time"
    finally:
        timer.cancel()


def _heard(process: Process) -> Iterator[str]:
    """Yield what ssh says, line by line, until it ends."""
    assert process.stdout is not None  # noqa: S101  (a pipe)
    while line := process.stdout.readline(LONGEST):
        said = line.decode(errors="replace").strip()
        if said and not said.startswith(CONSEQUENCES):
            yield said


def _news(heard: Iterator[str], where: str) -> News:
    said = ""
    for said in heard:
        found = re.search(r"channel \d+: open failed: (.*)", said)
        if found and found[1].startswith("administratively prohibited"):
            setting = "AllowTcpForwarding or PermitOpen in sshd_config"
            yield "refused", f"sshd there forbids forwarding ({setting})"
        elif found and "refused" in found[1]:
            yield "refused", f"nothing listens at {where} there"
        elif found:
            yield "refused", f"{where} there: {found[1]}"
    silent = f"sshd did not answer within {KEEPALIVE_S * UNANSWERED} s"
    yield "cut", silent if said.startswith("Timeout, server") else "the connection was cut"


def _not_open(target: Target, port: int, why: str) -> SparkClusterError:
    if "local forwarding" in why:
        return _taken(port, "a LocalForward of ssh_config has it or finds its own port taken")
    return Unreachable(
        f"ssh made no tunnel: {why}",
        where=target.node.name,
        hint=f"`spark-cluster ping --limit {target.node.name}` tries the connection alone",
    )


def _taken(port: int, why: str = "another program listens there") -> UsageError:
    return UsageError(
        f"port {port} of this machine cannot be used: {why}",
        hint="give another one: --port PORT",
    )


def end(process: Process, pipe: IO[bytes] | None) -> None:
    """Close the pipe with which a process and its group end; kill them if they do not."""
    if pipe is not None:
        pipe.close()
    try:
        process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.wait()


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _arguments(target: Target, file: str, spec: str, mark: str) -> list[str]:
    local = ["-o", "PermitLocalCommand=yes", "-o", f"LocalCommand=echo {mark}"]
    argv = ["-N", "-T", "-F", file, *local, "-L", spec]
    argv += ["-l", target.node.user] if target.node.user else []
    argv += ["-p", str(target.node.port)] if target.node.port else []
    argv += (
        ["-i", _escaped(target.node.identity_file)] if target.node.identity_file is not None else []
    )
    argv += ["-J", target.node.jump] if target.node.jump is not None else []
    return [*argv, "--", target.node.address]


def _strict(target: Target) -> str:
    """Return what comes before the user's configuration, for the node and its jump hosts."""
    lines = [
        STRICT + f"  ConnectTimeout {math.ceil(target.node.connect_timeout_s)}",
        f"  ServerAliveInterval {KEEPALIVE_S}",
        f"  ServerAliveCountMax {UNANSWERED}",
    ]
    if target.node.known_hosts is not None:
        files = (str(target.node.known_hosts), *SYSTEM_KNOWN_HOSTS)
        lines.append("  GlobalKnownHostsFile " + " ".join(f'"{file}"' for file in files))
    if target.node.jump is not None and target.node.identity_file is not None:
        lines.append(f'  IdentityFile "{_escaped(target.node.identity_file)}"')
    return "\n".join(lines) + "\n"


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")
