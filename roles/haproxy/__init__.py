"""HAProxy's program from the distribution, without the service that comes with its package."""

from __future__ import annotations

from collections.abc import Iterator

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.node import paths
from spark_cluster.resources import Command, Package, Resource

PROGRAM = "/usr/sbin/haproxy"
MASK = f"{paths.SYSTEMD_UNITS}/haproxy.service"


class Settings(Schema):
    """Settings of the role `haproxy`: there are none."""


def role(node: Node, _settings: Settings) -> Iterator[Resource]:
    """The package, on the head. Where it is there already, its service is left to the user.

    Debian starts `haproxy.service` when the package is installed. It is masked before that, so
    that no second proxy runs; `systemctl unmask haproxy` gives it back.
    """
    if not node.is_head:
        return
    yield Command(
        "mask the service of the package haproxy",
        ("systemctl", "mask", "haproxy.service"),
        unless=("test", "-e", PROGRAM, "-o", "-L", MASK),
    )
    yield Package("haproxy", makes=(f"path:{PROGRAM}", "command:haproxy"))
