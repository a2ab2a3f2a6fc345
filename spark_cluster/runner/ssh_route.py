"""The way to a node: its jump hosts, each with what ssh_config says of it, and the node last."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.errors import InvalidFile
from spark_cluster.runner.ssh_config import HostSettings, lookup

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.config.ssh_settings import SshSettings

MOST_HOPS = 16


@dataclass(frozen=True)
class Target:
    """The address of one node, and how to reach it.

    Args:
        name: as in the inventory; for messages.
        host: address, name, or alias of the user's ssh_config.
        user, port: None leaves it to ssh_config (and then the local user, 22).
        identity_file: a private key to offer first.
        known_hosts: a file of host keys next to the user's own.
        jump: `[user@]host[:port]` to go through; None leaves it to ssh_config.
        connect_timeout_s: seconds for each of TCP, banner, key exchange, authentication, a
            session and the start of a command in it.
        sudo_password: asked for when it is needed; returns None when there is none.
        login_password: asked for when the node takes no key, for a first contact; it goes to this
            node only, never to a jump host. Returns None when there is none.
    """

    name: str
    host: str
    user: str | None = None
    port: int | None = None
    identity_file: Path | None = None
    known_hosts: Path | None = None
    jump: str | None = None
    connect_timeout_s: float = 10.0
    sudo_password: Callable[[], str | None] = field(default=lambda: None, compare=False)
    login_password: Callable[[], str | None] = field(default=lambda: None, compare=False)

    @classmethod
    def of(cls, name: str, settings: SshSettings | InventoryNode) -> Target:
        """Return the target that the inventory's settings of a node make."""
        return cls(
            name=name,
            host=settings.address,
            user=settings.user,
            port=settings.port,
            identity_file=settings.identity_file,
            known_hosts=settings.known_hosts,
            jump=settings.jump,
            connect_timeout_s=settings.connect_timeout_s,
        )


@dataclass(frozen=True)
class Hop:
    """A host of a route.

    Attributes:
        settings: of the host.
        is_node: it is the node itself, not a jump host.
        identity_file: a private key to offer first.
    """

    settings: HostSettings
    is_node: bool
    identity_file: Path | None

    @property
    def place(self) -> str:
        """`host:port`."""
        return f"{self.settings.host}:{self.settings.port}"


def route(target: Target) -> tuple[Hop, ...]:
    """The hosts to go through, in order, and the node last.

    Raises:
        InvalidFile: ssh_config cannot be read, or its jump hosts lead back to each other.
    """
    settings = lookup(target.host, target.user, target.port)
    if target.jump is not None:
        jumps = _jumps(target.jump, target.identity_file, ())
    else:
        jumps = _jumps(settings.proxy_jump, None, ())
    return (*jumps, Hop(settings, True, target.identity_file))


def _jumps(text: str, identity_file: Path | None, seen: tuple[str, ...]) -> tuple[Hop, ...]:
    """The hosts of a ProxyJump: the first of them may have jump hosts of its own."""
    if not text:
        return ()
    before, _, last = text.rpartition(",")
    user, host, port = _parsed(last.strip())
    settings = lookup(host, user, port)
    if not before and settings.proxy_jump:
        if last in seen or len(seen) >= MOST_HOPS:
            raise InvalidFile(
                f"circular reference of jump hosts: {' - '.join((*seen, last))}",
                where="ssh_config",
                hint=f"give {host} an entry of its own, above the others, with `ProxyJump none`",
            )
        earlier = _jumps(settings.proxy_jump, None, (*seen, last))
    else:
        earlier = _jumps(before, identity_file, seen)
    return (*earlier, Hop(settings, False, identity_file))


def _parsed(text: str) -> tuple[str | None, str, int | None]:
    """User, host and port of `[user@]host[:port]` or `ssh://...`; an IPv6 address is in []."""
    found = re.fullmatch(
        r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<ip>[^]]+)\]|(?P<host>[^:/]+))"
        r"(?::(?P<port>\d{1,5}))?/?",
        text,
    )
    if found is None:
        raise InvalidFile(
            f"jump host {text!r}: expected [user@]host[:port]", where="ssh_config or inventory"
        )
    port = found["port"]
    return found["user"], found["ip"] or found["host"], int(port) if port else None
