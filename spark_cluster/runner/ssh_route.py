"""The way to a node: its jump hosts and the node, with their ssh_config, and the first socket.

`ssh -G` is asked what the user's configuration says of a host, because it is a language of its own
(Include, Match exec, tokens, time formats, quoting), of which paramiko's reader knows a part: it
has no Include, takes `[` in patterns for a class of characters, and a time such as `5m` for no
number.
"""

from __future__ import annotations

import contextlib
import getpass
import glob
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.config.extension import Prompts
from spark_cluster.errors import Failed, InvalidFile, Unreachable

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode

FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")

LIMIT_S = 60.0
"""For `ssh -G`, seconds: a `Match exec` may run a program of the user's, or ask a name server."""


def asked(host: str, user: str | None, port: int | None) -> dict[str, list[str]]:
    """Return what ssh would use for a host: the values of each keyword; `none` is empty.

    Args:
        host: address, name or alias.
        user, port: given by the user elsewhere; they come before those of the configuration.

    Raises:
        InvalidFile: the configuration cannot be read, with file and line as ssh gives them.
        Failed: there is no ssh here.
    """
    given = [*(["-l", user] if user else []), *(["-p", str(port)] if port else [])]
    try:
        with contextlib.nullcontext(None) if _reads_home() else configuration() as file:
            option = ["-F", file] if file else []
            status, out, err = _run(["ssh", "-T", "-G", *option, *given, "--", host])
    except FileNotFoundError:
        raise _no_ssh() from None
    except subprocess.TimeoutExpired:
        raise InvalidFile(
            f"`ssh -G {host}` did not end within {LIMIT_S:g} s",
            where="ssh_config",
            hint="a program of a `Match exec` line, or a name server, does not answer",
        ) from None
    if status != 0:
        raise _invalid(host, err.decode(errors="replace").strip())
    printed: dict[str, list[str]] = {}
    for line in os.fsdecode(out).splitlines():
        keyword, _, value = line.partition(" ")
        printed.setdefault(keyword.lower(), []).append("" if value.lower() == "none" else value)
    return printed


@contextlib.contextmanager
def configuration(first: str = "") -> Iterator[str]:
    """Yield a file by which ssh reads the configuration of $HOME's user and of the machine.

    By itself ssh goes by the user database, not by $HOME, and gives its jump hosts the file of -F,
    but none of the options.

    Args:
        first: lines that count before all others: the first value that ssh reads is taken.

    Raises:
        Failed: there is no ssh here.
    """
    if shutil.which("ssh") is None:
        raise _no_ssh()
    known = " ".join(f'"{Path(name).expanduser()}"' for name in USER_KNOWN_HOSTS)
    with tempfile.NamedTemporaryFile("w", prefix="spark-cluster-ssh-") as file:
        file.write(first)
        for name in FILES:
            file.write(f'Include "{glob.escape(str(Path(name).expanduser()))}"\n')
        file.write(f"Host *\n  UserKnownHostsFile {known}\n")
        file.flush()
        yield file.name


def _reads_home() -> bool:
    """True where ssh by itself reads the files of $HOME, and with them those of its own build."""
    try:
        usual = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return False
    return os.path.realpath(usual) == os.path.realpath(Path.home())


def _no_ssh() -> Failed:
    return Failed(
        "there is no program `ssh` here, which reads ssh_config",
        hint="install OpenSSH's client (package openssh-client)",
    )


def _run(argv: list[str]) -> tuple[int, bytes, bytes]:
    """Return status and outputs; one that takes too long is ended, with all that it had started."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, out, err


def _invalid(host: str, said: str) -> InvalidFile:
    """ssh's own words: `FILE line 3: invalid quotes`, and a last line that only counts them."""
    lines = [line.strip() for line in said.splitlines()] or ["no output"]
    last = next((line for line in reversed(lines) if ": terminating, " not in line), lines[-1])
    found = re.match(r"(?P<file>\S.*?):? line (?P<line>\d+): (?P<what>.*)", last)
    return InvalidFile(
        f"ssh does not accept its configuration: {found['what'] if found else last}",
        where=f"{found['file']}:{found['line']}" if found else "ssh_config",
        hint=f"`ssh -G {host}` says the same; correct it there",
    )


MOST_HOPS = 16
Place = tuple[str | None, str, int | None]

DEAD_PEER_MS = 15_000
"""TCP_USER_TIMEOUT, milliseconds: sent data unanswered for so long ends the connection. paramiko's
keepalives do not find a dead peer."""

PROXY_GRACE_S = 2.0
"""Seconds that a ProxyCommand has to end in when its connection is closed."""

_DEFAULT_KEYS = re.compile(r"~/\.ssh/id_(rsa|dsa|ecdsa|ecdsa_sk|ed25519|ed25519_sk|xmss)")
_JUMP = re.compile(
    r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<ip>[^]]+)\]|(?P<host>[^:/]+))(?::(?P<port>\d{1,5}))?/?"
)


@dataclass(frozen=True)
class Target:
    """A node to reach, and who is asked for its passwords."""

    node: InventoryNode
    prompts: Prompts = field(default_factory=Prompts)

    def login_password(self) -> str | None:
        """Ask for what a node that takes no key wants at a first contact; None when there is none.

        It goes to this node only, never to a jump host.
        """
        if self.node.login_password is None:
            return None
        return self.node.login_password.read(login_password(self.node.name), self.prompts.ask)

    def sudo_password(self) -> str | None:
        """Ask for what sudo may want there; None when there is none."""
        if self.node.become.password is None:
            return self.login_password()  # a fresh node's user has one for both
        return self.node.become.password.read(sudo_password(self.node.name), self.prompts.ask)


def login_password(node: str) -> str:
    """Return what a terminal asks for."""
    return f"the login password of {node}"


def sudo_password(node: str) -> str:
    """Return what a terminal asks for."""
    return f"the sudo password of {node}"


class SshHop:
    """A host on the way to a node, or the node itself, with what ssh_config says of it.

    Args:
        target: the node at the end of the way.
        place: the user, the address, name or alias, and the port, as far as they are given.
        key: a private key to offer first.
        is_node: it is the node, not a jump host.

    Attributes:
        host: the address or name that is connected to.
        user, port: to log in as, and at.
        key_alias: the HostKeyAlias, or empty.
        identity_files: private keys to offer, next to the usual ones of ~/.ssh.
        named_keys: every file of a key that is named, the usual ones too; it need not be there.
        identities_only: of an agent's keys only those of `named_keys` are offered.
        agent_socket: where the SSH agent listens; another path where there is none.
        proxy_jump: `[user@]host[:port],...`, or empty.
        proxy_command: a command line for the shell, without tokens, or empty.
        own_known_hosts: files of host keys that the user writes, the first one first.
        global_known_hosts: those of the whole machine, which are read only.
        revoked_host_keys: files of keys that are never accepted.
        host_key_algorithms: in the order of preference; empty leaves it to the SSH library.

    Raises:
        InvalidFile: ssh_config cannot be read.
        Failed: there is no ssh here, or a KnownHostsCommand, which is not run.
    """

    def __init__(self, target: Target, place: Place, key: Path | None, *, is_node: bool) -> None:
        user, alias, port = place
        printed = asked(alias, user, port)

        def one(keyword: str) -> str:
            return printed.get(keyword, [""])[0]

        self.target, self.is_node = target, is_node
        self.host, self.user, self.port = one("hostname") or alias, one("user"), int(one("port"))
        if command := one("knownhostscommand"):  # a key that it revokes must not be accepted
            raise Failed(
                f"KnownHostsCommand is not supported ({command})",
                where="ssh_config",
                hint=f"for host {self.host} set it to none, and put the keys into known_hosts",
            )
        self.key_alias = one("hostkeyalias").lower()
        tokens = {
            "%": "%", "h": self.host, "k": self.key_alias or alias, "n": alias, "p": one("port"),
            "r": self.user, "u": getpass.getuser(), "d": str(Path.home()), "i": str(os.getuid()),
            "l": socket.gethostname(), "L": socket.gethostname().split(".")[0],
        }  # fmt: skip
        named = printed.get("identityfile", [])
        self.identity_files = [] if key is None else [key]
        self.identity_files += _identities(named, tokens)
        usual = [_home_expanded(_expand(name, tokens)) for name in named if name]
        self.named_keys = [*self.identity_files, *usual]
        self.identities_only = one("identitiesonly") == "yes"
        given = printed.get("identityagent", ["SSH_AUTH_SOCK"])[0]
        given = os.environ.get("SSH_AUTH_SOCK", "") if given == "SSH_AUTH_SOCK" else given
        self.agent_socket = str(_home_expanded(os.path.expandvars(_expand(given, tokens))))
        self.proxy_jump, self.proxy_command = one("proxyjump"), _expand(one("proxycommand"), tokens)
        self.own_known_hosts = _paths(one("userknownhostsfile"))
        if (file := target.node.known_hosts) is not None:
            self.own_known_hosts = [file, *(own for own in self.own_known_hosts if own != file)]
        self.global_known_hosts = _paths(one("globalknownhostsfile"))
        self.revoked_host_keys = _paths(one("revokedhostkeys"))
        self.host_key_algorithms = [*filter(None, one("hostkeyalgorithms").split(","))]

    @property
    def place(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def known_as(self) -> str:
        """The name in known_hosts: `host`, `[host]:port` unless it is 22, or the HostKeyAlias."""
        plain = self.host if self.port == 22 else f"[{self.host}]:{self.port}"
        return (self.key_alias or plain).lower()


def route(target: Target) -> tuple[SshHop, ...]:
    """Return the hosts to go through, in order, and the node last.

    Raises:
        InvalidFile: ssh_config cannot be read, or its jump hosts lead back to each other.
        Failed: there is no ssh here, or a KnownHostsCommand, which is not run.
    """
    node = node_of(target)
    if target.node.jump is not None:
        return (*_jumps(target, target.node.jump, target.node.identity_file, ()), node)
    return (*_jumps(target, node.proxy_jump, None, ()), node)


def node_of(target: Target) -> SshHop:
    """Return the node itself; raises as `route`."""
    place = target.node.user, target.node.address, target.node.port
    return SshHop(target, place, target.node.identity_file, is_node=True)


def _jumps(
    target: Target, text: str, key: Path | None, seen: tuple[str, ...]
) -> tuple[SshHop, ...]:
    """The hosts of a ProxyJump: the first of them may have jump hosts of its own."""
    if not text:
        return ()
    before, _, last = text.rpartition(",")
    found = _JUMP.fullmatch(last.strip())
    if found is None:
        raise InvalidFile(
            f"jump host {last.strip()!r}: expected [user@]host[:port]",
            where="ssh_config or inventory",
        )
    host, port = found["ip"] or found["host"], int(found["port"] or 0) or None
    hop = SshHop(target, (found["user"], host, port), key, is_node=False)
    if before or not hop.proxy_jump:
        return (*_jumps(target, before, key, seen), hop)
    if last in seen or len(seen) >= MOST_HOPS:
        raise InvalidFile(
            f"circular reference of jump hosts: {' - '.join((*seen, last))}",
            where="ssh_config",
            hint=f"give {host} an entry of its own, above the others, with `ProxyJump none`",
        )
    return (*_jumps(target, hop.proxy_jump, None, (*seen, last)), hop)


def _identities(named: list[str], tokens: dict[str, str]) -> Iterator[Path]:
    """The usual ones are tried by paramiko itself, after the agent's, which need no passphrase."""
    for name in named:
        path = _home_expanded(_expand(name, tokens))
        if name and not _DEFAULT_KEYS.fullmatch(name) and path.is_file():
            yield path


def _expand(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)


def _paths(text: str) -> list[Path]:
    """The files of a line of `ssh -G`, which prints names with spaces in them without quotes."""
    found: list[Path] = []
    for name in re.split(r" (?=[/~])", text) if text else ():
        whole = _home_expanded(name)
        words = [_home_expanded(word) for word in name.split()]
        several = not whole.exists() and any(word.exists() for word in words)
        found += words if several else [whole]
    return found


def _home_expanded(name: str) -> Path:
    """`~` and `~user`; as it is where there is no such user."""
    return Path(os.path.expanduser(name))  # noqa: PTH111


# -- the first socket ------------------------------------------------------------------------------


def socket_to(hop: SshHop) -> socket.socket:
    """A socket to the first host of a route: TCP, or the user's ProxyCommand.

    Raises:
        Unreachable: no such name, refused, no answer.
    """
    return _ProxySocket(hop.proxy_command) if hop.proxy_command else _tcp(hop)


def _tcp(hop: SshHop) -> socket.socket:
    """A TCP connection that does not wait to send, and notices a dead peer."""
    host: Any = hop.host.encode() if hop.host.isascii() else hop.host  # text costs a codec, 10 ms
    hint = "check that it is on and on this network, and its `address` in the inventory"
    limit_s = hop.target.node.connect_timeout_s
    try:
        sock = socket.create_connection((host, hop.port), timeout=limit_s)
    except socket.gaierror:
        what = f"no address is known for {hop.host!r}"
        hint = "check `address` in the inventory, or the host's entry in ~/.ssh/config"
    except ConnectionRefusedError:
        what = f"{hop.place} refused the connection"
        hint = "the machine is up, but no sshd listens there: check the port, and sshd on it"
    except TimeoutError:
        what = f"{hop.place} did not answer within {limit_s:g} s"
    except OSError as error:
        what = f"{hop.place}: {(error.strerror or str(error)).lower()}"
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        return sock
    raise Unreachable(what, where=hop.target.node.name, hint=hint)


class _ProxySocket(socket.socket):
    """A socket to a ProxyCommand, which is ended, as ssh ends it, when the socket is closed.

    paramiko's own ProxyCommand waits up to 0.1 s for each packet, spins when the program has
    ended, and runs no shell, as ssh does.
    """

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        with theirs:
            argv, end = ["/bin/sh", "-c", f"exec {command}"], theirs.fileno()
            self._process = subprocess.Popen(argv, stdin=end, stdout=end, start_new_session=True)
        threading.Thread(target=self._process.wait, daemon=True).start()

    def close(self) -> None:
        super().close()
        for ends, wait_s in ((signal.SIGHUP, PROXY_GRACE_S), (signal.SIGKILL, 0.0)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self._process.poll() is None:
                    os.killpg(self._process.pid, ends)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
                return
