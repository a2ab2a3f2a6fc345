"""Start limit: a systemd unit that stops a server that ends again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.engine import supervision
from spark_cluster.resources import Resource

TEMPLATE = Path(__file__).parent / "templates/start-limit.service.j2"


class Settings(Schema):
    """Settings of the role `start_limit`."""

    state: Literal["present", "absent"] = "present"
    """`absent` removes the unit and its program"""


def role(_node: Node, settings: Settings) -> Iterator[Resource]:
    """The program, its configuration and its unit on a node that serves."""
    unit = supervision.START_LIMIT
    if settings.state == "absent":
        yield from unit.absent()
    else:
        yield from unit.present(TEMPLATE, supervision.start_limit_configuration())
