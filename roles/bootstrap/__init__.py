"""The bootstrap of a machine: who may log in, its name, its own identity, its clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from spark_cluster.config import schema
from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node, render
from spark_cluster.node import paths
from spark_cluster.resources import (
    AuthorizedKey,
    File,
    HostKeys,
    Hostname,
    HostsEntry,
    Line,
    MachineId,
    Resource,
    Service,
)

TEMPLATES = Path(__file__).parent / "templates"
CLOCKS = ("chrony", "systemd-timesyncd")
"""Packages that keep the time; their units have the same names."""
AVAHI = "avahi-daemon"


class Settings(Schema):
    """Settings of the role `bootstrap`."""

    authorized_keys: tuple[str, ...] = ()
    """public keys (whole lines) that may log in as the login user"""
    laptop_keys: dict[str, str] = Field(default={})
    """node to the public key of this laptop; `provision` gives it from `identity_file` of the
    inventory, and after a login with a password"""
    passwordless_sudo: bool = False
    """let the login user use sudo without a password; false leaves sudo as it is"""
    hostname: str = "keep"
    """`keep`; `inventory` for the node's name in the inventory; or a name. `keep` is the default
    because a name like spark-2a60.local may be how the node is reached; of two nodes with the same
    name the later one gets that of the inventory"""
    unique_identity: bool = True
    """of two nodes with the same machine id or SSH host keys (some makers' images have them), the
    later one gets new ones"""
    prepare_host_keys: bool = False
    """only prepare such new SSH host keys, without activating them; `provision` asks for it first,
    so that this laptop knows them before they are shown"""
    time: Literal["auto", "chrony", "systemd-timesyncd", "none"] = "auto"
    """package that keeps the clock, which must be installed; `auto` takes the installed one, and
    leaves the clock as it is where neither is installed"""
    avahi_on_link: bool = True
    """false: avahi, where it is installed, does not use the ConnectX-7 ports, for a node that
    announces itself as spark1-30. That this is the cause is not confirmed, and it hides the node
    from NVIDIA's discover-sparks, so true leaves avahi as it is"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """Keys, sudo, name, identity, time, announcement."""
    if settings.prepare_host_keys:
        if settings.unique_identity:
            yield _host_keys(node, prepare=True)
        return
    keys = [settings.laptop_keys.get(node.name, ""), *settings.authorized_keys]
    named = {tuple(key.split()[:2]): key.strip() for key in keys if key.strip()}
    for key in named.values():  # the laptop's own with the comment that the inventory gives it
        yield AuthorizedKey(node.user, key)
    if settings.passwordless_sudo and node.user != "root":
        yield File(
            paths.SUDOERS.format(schema.file_name(node.user)),
            content=render(TEMPLATES, "sudoers.j2", user=schema.user_word(node.user)),
            mode=0o440,
            owner="root",
            group="root",
            validate_with=("visudo", "-cf", "{}"),
        )
    yield from _name(node, settings)
    if settings.unique_identity:
        yield from _identity(node)
    clock = _clock(node, settings)
    if clock:
        yield Service(clock, enabled=True)
    if not settings.avahi_on_link and AVAHI in node.facts.packages and node.facts.hcas:
        yield from _avahi(node)


def _avahi(node: Node) -> Iterator[Resource]:
    """The key stands in the section [server]; the file as it comes has it as a comment."""
    ports = ",".join(hca.interface for hca in node.facts.hcas)
    denied = Line(
        "/etc/avahi/avahi-daemon.conf",
        line=f"deny-interfaces={ports}",
        match=r"^\s*#?\s*deny-interfaces\s*=",
        after=r"^\[server\]$",
    )
    yield denied
    yield Service(AVAHI, running=None, restart_when=(denied,))


def _earlier(node: Node) -> list[Node]:
    """The nodes before this one in the inventory, as far as they are known."""
    return [other for other in node.cluster if other.index < node.index]


def _name(node: Node, settings: Settings) -> Iterator[Resource]:
    name = settings.hostname
    if name == "keep":
        shared = node.facts.hostname in {other.facts.hostname for other in _earlier(node)}
        name = node.name.lower() if shared else node.facts.hostname
    elif name == "inventory":
        name = node.name.lower()
    if name != node.facts.hostname or settings.hostname != "keep":
        yield Hostname(name)
    # Without it sudo complains, and some programs wait for a name server.
    yield HostsEntry(name, address="127.0.1.1", any_address=True)


def _identity(node: Node) -> Iterator[Resource]:
    yield MachineId(taken=tuple(other.facts.machine_id for other in _earlier(node)))
    keys = _host_keys(node)
    yield keys
    yield Service("ssh", running=None, restart_when=(keys,), reload=True)


def _host_keys(node: Node, *, prepare: bool = False) -> HostKeys:
    taken = tuple(key for other in _earlier(node) for key in other.facts.host_keys)
    return HostKeys(taken=taken, prepare=prepare)


def _clock(node: Node, settings: Settings) -> str | None:
    if settings.time == "auto":
        return next((name for name in CLOCKS if name in node.facts.packages), None)
    return None if settings.time == "none" else settings.time
