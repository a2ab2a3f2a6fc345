"""Supervision on the head: a systemd unit that restarts a dead engine, without the laptop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.engine import supervision
from spark_cluster.node.health import MANY_RESTARTS
from spark_cluster.resources import Resource

TEMPLATE = Path(__file__).parent / "templates/supervise.service.j2"


class Settings(Schema):
    """Settings of the role `supervise`."""

    state: Literal["present", "absent"] = "present"
    """`absent` removes the unit, its program and what it keeps"""
    at_boot: bool = False
    """start the supervision at boot"""
    look_s: float = Field(default=15, ge=1)
    """seconds between two looks at the server"""
    answer_s: float = Field(default=30, ge=1)
    """seconds for a completion"""
    misses: int = Field(default=3, ge=1)
    """looks without an answer after which the server is dead"""
    load_s: float = Field(default=1800, ge=1)
    """seconds until a server that was started must answer"""
    crashes: int = Field(default=MANY_RESTARTS, ge=1)
    """times that Docker or systemd starts a server again before it answers, after which it is
    stopped"""
    pause_s: float = Field(default=10, ge=0)
    """seconds before a start, doubled for each one within an hour"""
    restarts: int = Field(default=5, ge=1)
    """starts within an hour after which it is given up"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The program, its configuration and its unit on the head; elsewhere none of them."""
    if settings.state == "absent" or not node.is_head:
        yield from supervision.UNIT.absent()
        return
    limits = settings.model_dump(exclude={"state", "at_boot"})
    told = supervision.configuration(limits, node)
    yield from supervision.UNIT.present(TEMPLATE, told, enabled=settings.at_boot)
