"""The inference engine: its server on the head, and the ranks that it joins by itself elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import InstanceOf
from pydantic.json_schema import SkipJsonSchema

from spark_cluster.config.ports import EnginePorts
from spark_cluster.config.schema import Schema, handed
from spark_cluster.config.topology import Node
from spark_cluster.engine import runtime
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.engine import engine
from spark_cluster.resources import Resource

PORTS = EnginePorts()


class Settings(Schema):
    """Settings of the role `vllm`, which starts any engine."""

    server: SkipJsonSchema[InstanceOf[Server]] = handed("the server to start; `up` sets it")
    master_port: int = PORTS.master
    """rendezvous of ranks that the engine joins without Ray"""
    stop_timeout_s: int = 30
    """grace period before it is killed, seconds"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The server or a rank, kept alive by its runtime; nothing where the engine has neither."""
    server = settings.server
    process = engine(server.recipe.engine).server(node, server, settings.master_port)
    if process is None:
        yield runtime.without(server.program, server.recipe.runtime)
    else:
        process = replace(process, stop_timeout_s=settings.stop_timeout_s)
        yield runtime.resource(process, server)
