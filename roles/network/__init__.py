"""Addresses on the fabric: both twins of the cabled ConnectX-7 port, each in its own subnet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, Field

from spark_cluster.cluster import Spark
from spark_cluster.errors import Failed
from spark_cluster.project.template import render
from spark_cluster.resources import Netplan

TEMPLATES = Path(__file__).parent / "templates"


class Settings(BaseModel):
    """Settings of the role `network`."""

    netplan_file: str = Field(
        default="/etc/netplan/40-cx7.yaml", description="our file; the user's own are never touched"
    )


def role(node: Spark, settings: Settings) -> Iterator[Netplan]:
    """One netplan file, for the twins whose addresses are ours to give."""
    if not node.links:
        seen = ", ".join(f"{h.interface} ({'up' if h.up else 'down'})" for h in node.facts.hcas)
        raise Failed(
            f"no ConnectX-7 interface is up (seen: {seen or 'none'})",
            where=node.name,
            hint="plug the QSFP cable into the same port of both Sparks; or name the interfaces "
            "under `fabric` in the inventory",
        )
    ours = [link for link in node.links if link.ours]
    if ours:
        yield Netplan(
            settings.netplan_file,
            content=render(TEMPLATES, "40-cx7.yaml.j2", links=ours, mtu=node.mtu),
            addresses={link.interface: str(link.address) for link in ours},
            mtu=node.mtu,
        )
