"""The program on the head that loads models on request, and unloads others for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, InstanceOf

from spark_cluster.config.schema import Schema
from spark_cluster.engine import model_loading
from spark_cluster.engine.proxy import LOADER_UNIT, UNIT, ModelServer
from spark_cluster.loader import programs
from spark_cluster.loader.template import render
from spark_cluster.node import own_program, paths
from spark_cluster.resources import Directory, File, Resource, Service, UnusedPrograms
from spark_cluster.topology import Node

TEMPLATES = Path(__file__).parent / "templates"
UNIT_FILE = f"{paths.SYSTEMD_UNITS}/{LOADER_UNIT}.service"


class Settings(Schema):
    """Settings of the role `model_loader`; `up` gives them."""

    servers: tuple[InstanceOf[ModelServer], ...] = ()
    """the models of the endpoint; where none is loaded on request, the program is removed"""
    ready_s: float = Field(default=1800, ge=0)
    """seconds until a server that was started must answer"""
    stays_s: float = Field(default=60, ge=0)
    """seconds that a model stays after it was loaded, so that who asked for it can ask again, and
    two models that are asked for in turns do not only load"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The program, its configuration and its unit on the head; elsewhere none of them."""
    if not node.is_head or not any(server.on_request for server in settings.servers):
        yield Service(LOADER_UNIT, running=False, enabled=False)
        for path in (UNIT_FILE, model_loading.CONFIG):
            yield File(path, state="absent")
        yield Directory(model_loading.FOLDER, state="absent", keep=False)
        return
    program = programs.program(model_loading.FOLDER, model_loading.PROGRAM)
    yield Directory(model_loading.FOLDER, mode=0o700)
    yield program
    yield Directory(str(Path(model_loading.CONFIG).parent), mode=0o755)
    told = model_loading.configuration(node, settings.servers, settings.ready_s, settings.stays_s)
    config = File(model_loading.CONFIG, content=json.dumps(told, indent=2) + "\n", mode=0o600)
    unit = File(
        UNIT_FILE,
        content=render(
            TEMPLATES,
            "model-loader.service.j2",
            program=" ".join(own_program.entry(program.path, model_loading.PROGRAM)),
            config=model_loading.CONFIG,
            runtime=LOADER_UNIT,
            proxy=UNIT,
        ),
    )
    yield config
    yield unit
    yield Service(LOADER_UNIT, enabled=True, restart_when=(config, unit, program))
    yield UnusedPrograms(model_loading.FOLDER)
