"""The nodes reach each other over the fabric by name, with keys of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, Field

from spark_cluster.cluster import Spark
from spark_cluster.facts.gather import MESH_KEY
from spark_cluster.project.template import render
from spark_cluster.resources import (
    AuthorizedKey,
    Directory,
    File,
    HostsEntry,
    Resource,
    SshKey,
)

TEMPLATES = Path(__file__).parent / "templates"
CLIENT = "/etc/ssh/ssh_config.d/40-spark-cluster.conf"
KNOWN_HOSTS = "/etc/ssh/spark-cluster-known-hosts"


class Settings(BaseModel):
    """Settings of the role `ssh_mesh`."""

    suffix: str = Field(
        default="-fabric", description="what a node's name has on the fabric: spark2-fabric"
    )
    plain_names: bool = Field(
        default=True,
        description="let the plain names (spark2) mean the fabric too, where /etc/hosts does not "
        "say otherwise already",
    )
    peers: tuple[str, ...] = Field(
        default=(),
        description="all nodes that belong together; `provision` gives those of the inventory. "
        "Until all of them are known, a node only gets its own key",
    )


def role(node: Spark, settings: Settings) -> Iterator[Resource]:
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
        yield AuthorizedKey(node.user, f"{member.facts.mesh_key} {_comment(member)}", sole=True)
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


def complete(node: Spark, settings: Settings) -> tuple[Spark, ...]:
    """All nodes, when each is known with its key, its host keys and its address; else none."""
    names = {member.name for member in node.cluster}
    whole = all(m.facts.mesh_key and m.facts.host_keys and m.links for m in node.cluster)
    return node.cluster if whole and names >= set(settings.peers) else ()


def _comment(node: Spark) -> str:
    return f"spark-cluster-mesh-{node.name}"
