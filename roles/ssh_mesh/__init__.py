"""The nodes reach each other over the fabric by name, with keys of their own.

Who is root on one node can use that node's key, and log in to the others as their login user. Where
that user may use sudo without a password (`bootstrap: {passwordless_sudo: true}`, or a rule of your
own) or is in the group docker, the root of one node is the root of all. Leave the role out with
`--skip-tags ssh_mesh` where the nodes must not trust each other: serving does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spark_cluster.config.schema import Schema, is_ip
from spark_cluster.config.topology import Node, render
from spark_cluster.node import paths
from spark_cluster.node.paths import MESH_KEY
from spark_cluster.resources import (
    AuthorizedKey,
    Directory,
    File,
    HostsEntry,
    Resource,
    SshKey,
)

TEMPLATES = Path(__file__).parent / "templates"
CLIENT = paths.MESH_CONFIGURATION
KNOWN_HOSTS = paths.MESH_KNOWN_HOSTS
OWN_COMMENTS = "spark-cluster-mesh-"


class Settings(Schema):
    """Settings of the role `ssh_mesh`."""

    suffix: str = "-fabric"
    """suffix of a node's name on the fabric: spark2-fabric"""
    plain_names: bool = True
    """let the plain names (spark2) mean the fabric too, where /etc/hosts does not say otherwise
    already"""
    restrict: bool = True
    """let a node's key log in from that node's own addresses only, and forward no port, agent or
    X11; false sets no limits"""
    peers: tuple[str, ...] = ()
    """all nodes that belong together; `provision` gives those of the inventory. Until all of them
    are known, a node only gets its own key"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The own key first; the rest once every node's keys and addresses are known.

    Host keys come from the facts, that is over connections whose host key the laptop had verified.
    The user's own ~/.ssh is left alone but for the other nodes' keys in authorized_keys.
    """
    folder = MESH_KEY.rsplit("/", 1)[0]
    yield Directory(folder, mode=0o700, owner=node.user)
    yield SshKey(MESH_KEY, owner=node.user, comment=_comment(node))
    members = complete(node, settings)
    if len(members) < 2:
        return
    for member in members:
        if member.fabric_ip is None:
            continue
        yield HostsEntry(member.name + settings.suffix, address=member.fabric_ip)
        if settings.plain_names and member.name != node.name:
            yield HostsEntry(member.name, address=member.fabric_ip, any_address=True)
    # The node itself too: launchers like mpirun log in to every host of their list.
    for member in members:
        yield AuthorizedKey(
            node.user,
            f"{member.facts.mesh_key} {_comment(member)}",
            sole=True,
            own_comments=OWN_COMMENTS,
            options=_limits(member, itself=member.name == node.name) if settings.restrict else (),
        )
    yield File(KNOWN_HOSTS, content=render(TEMPLATES, "known_hosts.j2", members=members))
    yield File(
        CLIENT,
        content=render(
            TEMPLATES,
            "ssh_config.j2",
            members=members,
            suffix=settings.suffix,
            key=MESH_KEY,
            known_hosts=KNOWN_HOSTS,
        ),
    )


def _limits(member: Node, *, itself: bool) -> tuple[str, ...]:
    """Return what a member's key may be used for: logins from its fabric and management address.

    The latter because a name in /etc/hosts that was there before leads over the management network.
    """
    sources = [str(link.address.ip) for link in member.links]
    sources += [member.address] if is_ip(member.address) else []
    sources += ["127.0.0.0/8", "::1"] if itself else []
    words = ("no-agent-forwarding", "no-port-forwarding", "no-X11-forwarding")
    return (f'from="{",".join(sources)}"', *words)


def complete(node: Node, settings: Settings) -> tuple[Node, ...]:
    """Return all nodes if each has its key, its host keys and its address; else none."""
    names = {member.name for member in node.cluster}
    whole = all(m.facts.mesh_key and m.facts.host_keys and m.links for m in node.cluster)
    return node.cluster if whole and names >= set(settings.peers) else ()


def _comment(node: Node) -> str:
    return f"{OWN_COMMENTS}{node.name}"
