"""The sampler of telemetry as the agent starts it: for the laptop, or in a unit of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from spark_cluster.node import own_program, telemetry
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError

UNIT = re.compile(r"spark-cluster-telemetry-[A-Za-z0-9_-]{1,100}")

LONGEST_S = 7 * 24 * 3600.0
"""Seconds after which systemd ends a sampler that no one ended."""


def argv(host: Host, request: Mapping[str, Any]) -> list[str]:
    """Return the command of a sampler that prints lines, and ends when this agent does."""
    root = str(host.root)
    return telemetry.argv(telemetry.settings_of(request, parent=os.getpid(), root=root))


def start_unit(host: Host, request: Mapping[str, Any]) -> dict[str, Any]:
    """Start a sampler that writes a file, in a transient unit; nothing where it runs already.

    Args:
        request: `unit`, its name without `.service`, the settings, `file` among them, and perhaps
            `longest`, seconds after which it ends.

    Returns:
        `started`, False where the unit was there.

    Raises:
        ResourceError: systemd does not start it, or the name is no unit's of ours.
    """
    name = str(request.get("unit", ""))
    if UNIT.fullmatch(name) is None:
        raise ResourceError(f"{name!r} is not a name for a unit of telemetry")
    if host.run(["systemctl", "is-active", "--quiet", f"{name}.service"]).status == 0:
        return {"started": False}
    longest = min(float(request.get("longest", LONGEST_S)), LONGEST_S)
    properties = {
        "Description": "spark-cluster: telemetry",
        "RuntimeMaxSec": f"{longest:.0f}",
        "TimeoutStopSec": "10",
        "Environment": f"PATH={host.search_path}",
    }
    settings = telemetry.settings_of(request, root=str(host.root))
    start = own_program.in_unit(f"{name}.service", telemetry.argv(settings), properties)
    host.run(start).check("starting the unit for telemetry")
    return {"started": True}
