"""Start limit: a systemd unit that stops a server that ends again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from spark_cluster.config.schema import Schema
from spark_cluster.engine import supervision
from spark_cluster.loader import programs
from spark_cluster.loader.template import render
from spark_cluster.node import own_program, paths
from spark_cluster.resources import Directory, File, Resource, Service, UnusedPrograms
from spark_cluster.topology import Node

TEMPLATES = Path(__file__).parent / "templates"
UNIT = "spark-cluster-start-limit"
UNIT_FILE = f"{paths.SYSTEMD_UNITS}/{UNIT}.service"


class Settings(Schema):
    """Settings of the role `start_limit`."""

    state: Literal["present", "absent"] = "present"
    """`absent` removes the unit and its program"""


def role(_node: Node, settings: Settings) -> Iterator[Resource]:
    """The program, its configuration and its unit on a node that serves."""
    if settings.state == "absent":
        yield Service(UNIT, running=False, enabled=False)
        yield File(UNIT_FILE, state="absent")
        yield Directory(paths.START_LIMIT, state="absent", keep=False)
        return
    program = programs.program(paths.START_LIMIT, supervision.START_LIMIT)
    yield Directory(paths.START_LIMIT, mode=0o700)
    yield program
    told = json.dumps(supervision.start_limit_configuration(), indent=2) + "\n"
    config = File(paths.START_LIMIT_SETTINGS, content=told)
    start = " ".join(own_program.entry(program.path, supervision.START_LIMIT))
    values = {"program": start, "config": paths.START_LIMIT_SETTINGS}
    unit = File(UNIT_FILE, content=render(TEMPLATES, "start-limit.service.j2", **values))
    yield config
    yield unit
    yield Service(UNIT, enabled=True, restart_when=(config, unit, program))
    yield UnusedPrograms(paths.START_LIMIT)
