"""The connection to a node, on fabric: jump hosts, keys, a password for a first contact.

fabric accepts any host key that it does not know, and paramiko below it looks up host keys in its
own way, never sets TCP_NODELAY (a factor of 4 at 5 ms), prefers slow ciphers, and waits for a
silent node in some steps without a limit: all that is put right here and in what this imports.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import fabric
import paramiko

from spark_cluster.errors import Unreachable
from spark_cluster.runner.known_hosts import HostKey, HostKeyCheck
from spark_cluster.runner.ssh_route import SshHop, Target, socket_to
from spark_cluster.runner.wire import SAID_BYTES, SLICE, Channel

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
CHANNEL_TRIES = 5

NEXT_LINE_S = 2.0
"""Seconds for which paramiko waits for the line after one that is no banner."""

CLOSES_WITHIN_S = 10.0
"""Seconds in which the end of a channel can be sent; if not, its connection is closed."""

REQUEST_IDENTITIES, IDENTITIES_ANSWER = b"\x0b", 12
"""The first bytes of two messages of an SSH agent (draft-ietf-sshm-ssh-agent, section 6.1)."""

APPROVAL_S = 60.0
"""Seconds for a login with an agent's key: its user may have to approve it, or to touch a token."""

STDERR_S = 1.0
"""Seconds at most in which what has come on standard error is read."""

STATUS_WITHIN_S = 2.0
"""Seconds after its output in which a command's exit status comes."""

# Otherwise Python prints paramiko's own words for what is an error of ours, or none (a port that
# does not listen yet).
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Connection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """fabric's connection to the last of some hosts, through those before it: `run`, `put`, ...

    The agent's channel, playbooks, programs and fabfiles use this class. Its gateways, the jump
    hosts, are of it too: each takes the host keys only that are known. `sudo` gives the password
    that the inventory names, or that was asked for. Standard input is not passed on, unless
    `in_stream=` says so. The files that fabric reads, such as ~/.fabric.yaml, count; ssh_config is
    read by ssh itself.

    Attributes:
        hop: the host at the end of the way.
        target: the node, with what asks for its passwords.

    Args:
        hops: the way.
        shared: it belongs to a run: `close` ends what was opened over it, and not it.
    """

    hop: SshHop
    target: Target
    _shared = False

    def __init__(self, hops: Sequence[SshHop], *, shared: bool) -> None:
        *before, hop = hops
        gateway = Connection(before, shared=shared) if before else False
        # The end of a standard input that is no terminal would end that of sudo before its answer.
        config = fabric.Config(
            overrides={"run": {"in_stream": False}}, ssh_config=paramiko.SSHConfig()
        )
        super().__init__(hop.host, hop.user, hop.port, config, gateway=gateway)
        self._set(hop=hop, target=hop.target, _shared=shared, original_host=hop.target.node.name)
        self.client.set_missing_host_key_policy(StrictPolicy(hop))
        self.connect_kwargs.update(
            transport_factory=partial(Transport, hop=hop),
            key_filename=[str(path) for path in hop.identity_files],
        )

    def open(self) -> None:
        """Connect, if that is not done yet; as `log_in`."""
        if not self.is_connected:
            self.log_in(self.target.login_password() if self.hop.is_node else None)

    def log_in(self, password: str | None, sock: socket.socket | None = None) -> None:
        """Connect, through the gateway, which is opened first.

        Args:
            password: for a first contact; only it is offered, after the key that the inventory
                names. None where there is none.
            sock: a socket to the first host, where it is open already.

        Raises:
            Unreachable: with the reason, and what to do about it.
            Failed: a file of host keys cannot be read.
        """
        if password is not None and self.hop.target.node.identity_file is None:
            # All keys of the agent and of ~/.ssh could be more than sshd lets one connection try.
            with contextlib.suppress(KeysRefused):
                self.log_in(None, sock)
                return
            sock = None
        self.hang_up()  # what is left of an earlier connection
        keys = password is None
        self.connect_kwargs.update(password=password, allow_agent=keys, look_for_keys=keys)
        try:
            with explained(self.hop, password):
                if keys:  # paramiko asks the agent of $SSH_AUTH_SOCK where it is given none
                    self.client._agent = HopAgent(self.hop)
                if self.gateway:
                    self.gateway.log_in(None, sock)
                else:
                    self.connect_kwargs["sock"] = sock or socket_to(self.hop)
                super().open()
        except BaseException:  # half-open ones count for sshd's MaxStartups
            self.hang_up()
            raise

    def shown_key(self) -> HostKey:
        """Return the key that the host shows, whatever it is; no login is tried.

        Raises:
            Unreachable: it does not answer, speaks no SSH, or the key of a gateway is not known.
        """
        try:
            with explained(self.hop):
                opened = self.open_gateway() if self.gateway else socket_to(self.hop)
                with closing(opened) as sock, closing(Transport(sock, hop=self.hop)) as transport:
                    transport.start_client()
                    return transport.check.judge(transport.get_remote_server_key().asbytes())
        finally:
            self.hang_up()

    def channel(self, argv: Sequence[str]) -> SshChannel:
        """Start a command (an argument list; it is quoted for the remote shell).

        Raises:
            Unreachable: the connection was cut, which is not made again here, or the node hangs.
        """
        with explained(self.hop):
            session = self._session()
            with self.transport.limited("start a command"):
                session.exec_command(shlex.join(argv))
        return SshChannel(session)

    def _session(self) -> Any:
        """A new channel; sshd's MaxSessions counts closing ones, so one more try may do."""
        for attempt in range(CHANNEL_TRIES):
            time.sleep(0.2 * attempt)
            try:
                return self.transport.open_session()
            except paramiko.ChannelException as error:
                refused = error
        raise Unreachable(
            f"sshd refuses another session ({refused})", where=self.hop.target.node.name
        )

    def sudo(self, command: str, **options: Any) -> Any:
        """Run a command as root, or as `user`, through sudo; otherwise as in fabric."""
        password = None if self.user == "root" else self.target.sudo_password()
        if password is not None:
            options.setdefault("password", password)
        return super().sudo(command, **options)

    def close(self) -> None:
        """End the connection; of one that is shared only what was opened over it."""
        if not self._shared:
            self.hang_up()
        elif self._sftp is not None:
            self._sftp.close()
            self._set(_sftp=None)

    def hang_up(self) -> None:
        """End the connection, and those that it goes through."""
        super().close()
        self.client.close()
        if (sock := self.connect_kwargs.pop("sock", None)) is not None:
            sock.close()
        if self.gateway:
            self.gateway.hang_up()


class SshChannel(Channel):
    """An agent's channel of an SSH connection."""

    def __init__(self, channel: paramiko.Channel) -> None:
        super().__init__(channel)
        self._said = b""

    def stderr(self) -> str:
        until = time.monotonic() + STDERR_S
        while self._stream.recv_stderr_ready() and time.monotonic() < until:
            self._said += self._stream.recv_stderr(SLICE)[: SAID_BYTES - len(self._said)]
        return self._said.decode(errors="replace")

    def status(self) -> int | None:
        if not self._stream.status_event.wait(STATUS_WITHIN_S):
            return None
        return int(self._stream.recv_exit_status())

    def close(self) -> None:
        # What is said at the end waits for what is being sent, which a node may never take.
        with (
            contextlib.suppress(OSError, EOFError, Unreachable),  # the connection has ended already
            limited(self._stream.get_transport(), CLOSES_WITHIN_S, Unreachable("it hangs")),
        ):
            self._stream.close()


# -- below fabric ----------------------------------------------------------------------------------


class HopAgent(paramiko.agent.AgentSSH):
    """The SSH agent that ssh_config names for a host, and those of its keys that ssh would offer.

    Keys that a file names come first: sshd lets one connection try six (MaxAuthTries).
    """

    _keys: tuple[paramiko.AgentKey, ...]

    def __init__(self, hop: SshHop) -> None:
        super().__init__()
        self._conn: Any = socket.socket(socket.AF_UNIX)
        self._conn.settimeout(hop.target.node.connect_timeout_s)
        try:
            self._conn.connect(hop.agent_socket)
            keys = self._listed()
        except (OSError, paramiko.SSHException):  # there is none, or it has ended, or it hangs
            self.close()
            return
        self._conn.settimeout(None)  # paramiko cannot bear it in a login, which has its own limit
        files = [Path(f"{path}{end}") for path in hop.named_keys for end in ("", ".pub")]
        named = list(map(_public_in, files))
        keys.sort(key=lambda key: not _is_in(key, named))
        self._keys = tuple(key for key in keys if not hop.identities_only or _is_in(key, named))

    def _listed(self) -> list[paramiko.AgentKey]:
        """Return the agent's keys. paramiko raises at a comment that is not UTF-8."""
        kind, answer = self._send_message(REQUEST_IDENTITIES)  # type: ignore[attr-defined]
        keys = []
        for _ in range(answer.get_int() if kind == IDENTITIES_ANSWER else 0):
            keys.append(paramiko.AgentKey(self, answer.get_binary()))
            answer.get_string()  # its comment
        return keys

    def close(self) -> None:
        """End the connection to the agent."""
        self._close()  # type: ignore[attr-defined]


def _is_in(key: paramiko.AgentKey, named: Sequence[bytes]) -> bool:
    return any(key.blob in content for content in named)


def _public_in(path: Path) -> bytes:
    """Return what holds a file's public key: that of a private key stands in it in plain form, too.

    Empty where there is none.
    """
    try:
        first, *more = path.read_bytes().splitlines()
        is_private = first.startswith(b"-----")
        return base64.b64decode(b"".join(more[:-1]) if is_private else first.split()[1])
    except (OSError, ValueError, IndexError):
        return b""


class Transport(paramiko.Transport):
    """A transport that asks for host keys that are known, by quick ciphers, with limits.

    A node out of memory or processes, or with a stopped sshd, still acknowledges in its kernel: no
    time-out of TCP ends the wait for what its sshd does not say. paramiko has no limit for the key
    exchange after its first message, nor for the start of a command. What a silent server raises
    here is none of paramiko's errors, which its client takes for a refused key, to try the next.

    Args:
        hop: the host; its known_hosts files are read now.
    """

    def __init__(self, sock: Any, *, hop: SshHop, **options: Any) -> None:
        super().__init__(sock, **options)
        self._hop, limit_s = hop, hop.target.node.connect_timeout_s
        self.banner_timeout = self.auth_timeout = self.channel_timeout = limit_s
        self.handshake_timeout = 2 * limit_s + NEXT_LINE_S
        security = self.get_security_options()
        quick = [cipher for cipher in CIPHERS if cipher in security.ciphers]
        security.ciphers = (*quick, *(c for c in security.ciphers if c not in quick))
        self.check = HostKeyCheck(hop)
        self._algorithms = self.check.order(security.key_types)

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Host key algorithms; paramiko's own property adds certificates behind all others."""
        return self._algorithms

    def limited(self, step: str) -> AbstractContextManager[None]:
        """Close the connection when a step takes longer than the node's limit.

        Raises:
            Unreachable: it did, as in "sshd did not ...".
        """
        return limited(self, self._hop.target.node.connect_timeout_s, silent(self._hop, step))

    def start_client(self, event: threading.Event | None = None, timeout: Any = None) -> None:
        """Exchange banners and keys; each may take the limit."""
        error = silent(self._hop, "finish the key exchange")
        try:
            with limited(self, self.handshake_timeout, error):
                super().start_client(event, timeout)
        finally:
            self.packetizer.complete_handshake()  # its timer would hold up the program's end

    def auth_publickey(self, username: str, key: paramiko.PKey, *args: Any) -> list[str]:
        if not isinstance(key, paramiko.AgentKey):
            with self.limited("answer the login"):
                return super().auth_publickey(username, key, *args)
        limit_s = self.auth_timeout
        self.auth_timeout = max(limit_s, APPROVAL_S)
        what = f"no login with a key of the SSH agent within {self.auth_timeout:g} s"
        hint = "approve it where the agent asks for that, or touch the token; then run it again"
        error = Unreachable(what, where=self._hop.target.node.name, hint=hint)
        try:
            with limited(self, self.auth_timeout, error):
                return super().auth_publickey(username, key, *args)
        finally:
            self.auth_timeout = limit_s

    def auth_password(self, *args: Any, **options: Any) -> list[str]:
        with self.limited("answer the login"):
            return super().auth_password(*args, **options)

    def open_session(self, *args: Any, **options: Any) -> paramiko.Channel:
        with self.limited("open a session"):
            return super().open_session(*args, **options)


class StrictPolicy(paramiko.MissingHostKeyPolicy):
    """Judges every key, because its client knows none."""

    def __init__(self, hop: SshHop) -> None:
        self._hop = hop

    def missing_host_key(self, client: Any, _hostname: str, key: paramiko.PKey) -> None:
        """Raise Unreachable unless the key is known."""
        judged = client.get_transport().check.judge(key.asbytes())
        if judged.verdict != "trusted":
            raise refused_host_key(self._hop, judged)


@contextlib.contextmanager
def limited(transport: paramiko.Transport, limit_s: float, error: Unreachable) -> Iterator[None]:
    """Close the connection when what is done with it takes longer than `limit_s` seconds.

    Not only the channel: to close one takes a message, which may not get out either. The limits
    that paramiko has of its own are the same, and may end it first.

    Raises:
        Unreachable: the given error; it took so long.
    """
    until, expired = time.monotonic() + limit_s, threading.Event()

    def end() -> None:
        expired.set()
        transport.close()

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError):
        if not expired.is_set() and time.monotonic() < until:
            raise
        raise error from None
    finally:
        timer.cancel()
    if expired.is_set():
        raise error


# What is said when an SSH connection is not made: the reason, and what to do about it.

REVOKED_HINT = (
    "a key is revoked when others may hold its private half: possible man-in-the-middle. "
    "Give the node a new key, at its own console (rm /etc/ssh/ssh_host_*_key*; ssh-keygen -A; "
    "systemctl restart ssh), then accept that one with `spark-cluster trust --replace`"
)
_NOTHING_ACCEPTED = re.compile(
    r"encountered \w+ key, expected \w+ key|Invalid key|No authentication methods available"
)
"""paramiko's words for keys that it could not use, and for a user that has none."""

_TOO_MANY, _NO_KEY = "No existing session", "not a valid OPENSSH private key file"
"""Its words for a server that hangs up between two keys, and for a file that it cannot read."""


class KeysRefused(Unreachable):
    """The node was reached, but takes none of the keys; a password may do."""


@contextlib.contextmanager
def explained(hop: SshHop, password: str | None = None) -> Iterator[None]:
    """Turn what paramiko raises about a connection to a host into an error for people.

    Args:
        password: the one that is offered.

    Raises:
        Unreachable: with the reason, and what to do about it; a KeysRefused where another key may
            do, or a password.
    """
    kind: type[Unreachable] = Unreachable
    try:
        yield
        return
    except paramiko.ChannelException as error:
        what = f"the jump host does not reach {hop.place}: {error.text}"
        hint = "check on the jump host that it can: its sshd may forbid AllowTcpForwarding"
    except paramiko.PasswordRequiredException:
        key = shlex.quote(str(hop.identity_files[-1])) if hop.identity_files else ""
        kind, what = KeysRefused, "the private key has a passphrase"
        hint = f"add it to your agent first: ssh-add {key}".rstrip()
    except (paramiko.SSHException, OSError, EOFError) as error:
        # Of a refused key, but for Ed25519, paramiko keeps only that it tried other forms last.
        # Without any key of the user's it has nothing to try.
        refused = isinstance(error, paramiko.AuthenticationException)
        if refused or _NOTHING_ACCEPTED.fullmatch(str(error)):
            kind, what, hint = _refused_login(hop, password)
        elif said := _unusable_keys(hop, error):
            kind, what, hint = said
        else:
            what, hint = _failed_transport(hop, str(error))
    raise kind(what, where=hop.target.node.name, hint=hint) from None


def _failed_transport(hop: SshHop, said: str) -> tuple[str, str]:
    """Return what failed in a connection below its login, and what to do about it.

    Args:
        said: by paramiko.
    """
    if said == "Timeout opening channel.":
        limit_s = hop.target.node.connect_timeout_s
        return (
            f"the jump host did not reach {hop.place} within {limit_s:g} s",
            "check that it is on, and on the jump host that it answers from there",
        )
    if "SSH protocol banner" in said:
        return (
            f"{hop.place} answers, but not as an SSH server (no banner)",
            "check address and port; an sshd that starts, or blocks this address, does so too",
        )
    return (
        f"SSH failed: {said or 'the connection was cut'}",
        "ssh -v to the node shows more; after several failures sshd may block this address for "
        "some minutes",
    )


def _refused_login(hop: SshHop, password: str | None) -> tuple[type[Unreachable], str, str]:
    where = f"{hop.user}@{hop.place}"
    if password is not None:
        hint = "check `user` in the inventory, and that sshd there accepts passwords"
        return Unreachable, f"{where} does not accept the password", hint
    if not hop.is_node:
        hint = "check its user and key in `jump` of the inventory, or in ~/.ssh/config"
        return Unreachable, f"the jump host {where} accepts none of the offered keys", hint
    if token := next((k for k in hop.named_keys if k.name.endswith("_sk") and k.is_file()), None):
        hint = (
            f"a key on a security token is used through an agent: ssh-add {shlex.quote(str(token))}"
        )
        return KeysRefused, f"{where} accepts none of the offered keys", hint
    hint = (
        "check `user` and `identity_file` in the inventory; ssh-copy-id installs a key, "
        "and so does `spark-cluster provision --ask-password`"
    )
    return KeysRefused, f"{where} accepts none of the offered keys", hint


def _unusable_keys(hop: SshHop, error: Exception) -> tuple[type[Unreachable], str, str] | None:
    """Return what is wrong with the keys, or their number; None where it is something else."""
    hint = "check `identity_file` in the inventory, or IdentityFile in ~/.ssh/config"
    kind = KeysRefused if hop.is_node else Unreachable  # a password is for the node alone
    if str(error) == _TOO_MANY:
        hint = "give it `IdentityFile` and `IdentitiesOnly yes` in ~/.ssh/config"
        return kind, f"{hop.place} ended the login: too many keys were offered", hint
    if str(error) == _NO_KEY:
        file = hop.identity_files[-1]
        hint += f"; `ssh-keygen -p -f {shlex.quote(str(file))}` writes a key anew in that form"
        return kind, f"{file} is not a private key in the form of OpenSSH or PEM", hint
    if isinstance(error, OSError) and error.filename is not None:
        return Unreachable, f"the key {error.filename}: {str(error.strerror).lower()}", hint
    return None


def silent(hop: SshHop, step: str) -> Unreachable:
    """The error of a server that does not answer in the middle of a step: "sshd did not ..."."""
    where = "" if hop.is_node else f" of the jump host {hop.place}"
    return Unreachable(
        f"sshd{where} did not {step} within {hop.target.node.connect_timeout_s:g} s",
        where=hop.target.node.name,
        hint="the network reaches it, so it hangs or is overloaded: look at its console for want "
        "of memory or a full process table; a reboot may be all that helps",
    )


def refused_host_key(hop: SshHop, key: HostKey) -> Unreachable:
    """The error of a connection that ends for its host key."""
    what, hint = _unlike(key, hop)
    return Unreachable(what, where=hop.target.node.name, hint=hint)


def _unlike(key: HostKey, hop: SshHop) -> tuple[str, str]:
    host = key.host if hop.is_node else f"the jump host {key.host}"
    shown, known = f"{key.kind} {key.fingerprint}", key.line
    if known is None:
        return f"the host key of {host} is not known: {shown}", (
            "compare it with the node's own, then accept it: "
            f"spark-cluster trust --limit {hop.target.node.name}"
        )
    if key.verdict == "revoked":
        return f"REVOKED HOST KEY: {host} shows {shown}, revoked by {known.place}", REVOKED_HINT
    kind = "" if known.kind == key.kind else f"{known.kind} "
    return (
        f"THE HOST KEY HAS CHANGED: from {host} {key.fingerprint} came, "
        f"{kind}{known.fingerprint} is known ({known.place})"
    ), (
        "a reinstalled node has a new key; if it was not reinstalled: possible "
        "man-in-the-middle. When you know why: "
        f"spark-cluster trust --replace --limit {hop.target.node.name}"
    )
