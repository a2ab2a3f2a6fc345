"""Ray over the fabric: the head and a worker on each other node; none when nothing needs Ray."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import InstanceOf
from pydantic.json_schema import SkipJsonSchema

from spark_cluster.config.schema import Schema, handed
from spark_cluster.config.topology import Node
from spark_cluster.engine import runtime
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import RAY
from spark_cluster.engine.ray import RAY_HOME, ray_node
from spark_cluster.resources import Directory, Resource


class Settings(Schema):
    """Settings of the role `ray`."""

    server: SkipJsonSchema[InstanceOf[Server]] = handed("the server to start; `up` sets it")


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The head or a worker, kept alive by its runtime."""
    server = settings.server
    if not server.on_ray:
        yield runtime.without(RAY, server.recipe.runtime)
        yield from runtime.pause(server)
        return
    process = ray_node(node, server, engine(server.recipe.engine))
    if node.is_head:
        yield Directory(RAY_HOME)  # Ray sets the mode itself
        yield from runtime.pause(server)
    yield runtime.resource(process, server)
