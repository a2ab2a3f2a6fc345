"""Supervision on the head: a systemd unit that restarts a dead engine, without the laptop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from spark_cluster.config.schema import Schema
from spark_cluster.engine import supervision
from spark_cluster.loader import programs
from spark_cluster.loader.template import render
from spark_cluster.node import own_program, paths
from spark_cluster.node.health import MANY_RESTARTS
from spark_cluster.resources import Directory, File, Resource, Service, UnusedPrograms
from spark_cluster.topology import Node

TEMPLATES = Path(__file__).parent / "templates"
UNIT_FILE = f"{paths.SYSTEMD_UNITS}/{supervision.UNIT}.service"


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
        yield Service(supervision.UNIT, running=False, enabled=False)
        for path in (UNIT_FILE, supervision.CONFIG):
            yield File(path, state="absent")
        yield Directory(supervision.FOLDER, state="absent", keep=False)
        return
    program = programs.program(supervision.FOLDER, supervision.PROGRAM)
    yield Directory(supervision.FOLDER, mode=0o700)
    yield program
    yield Directory(str(Path(supervision.CONFIG).parent), mode=0o755)
    config = File(supervision.CONFIG, content=json.dumps(_config(node, settings), indent=2) + "\n")
    unit = File(
        UNIT_FILE,
        content=render(
            TEMPLATES,
            "supervise.service.j2",
            program=" ".join(own_program.entry(program.path, supervision.PROGRAM)),
            config=supervision.CONFIG,
        ),
    )
    yield config
    yield unit
    yield Service(supervision.UNIT, enabled=settings.at_boot, restart_when=(config, unit, program))
    yield UnusedPrograms(supervision.FOLDER)


def _config(node: Node, settings: Settings) -> dict[str, Any]:
    return supervision.configuration(settings.model_dump(exclude={"state", "at_boot"}), node)
