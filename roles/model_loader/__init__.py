"""The program on the head that loads models on request, and unloads others for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, InstanceOf

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.engine import supervision
from spark_cluster.engine.proxy import LOADER_UNIT, UNIT, ModelServer
from spark_cluster.resources import Resource

TEMPLATE = Path(__file__).parent / "templates/model-loader.service.j2"


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
        yield from supervision.LOADER.absent()
        return
    told = supervision.loader_configuration(
        node, settings.servers, settings.ready_s, settings.stays_s
    )
    yield from supervision.LOADER.present(TEMPLATE, told, runtime=LOADER_UNIT, proxy=UNIT)
