"""Asking systemd on a node, for the resources that stand on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.node.values import ResourceError

if TYPE_CHECKING:
    from spark_cluster.node.host import Host


def show(host: Host, unit: str, properties: str) -> dict[str, str]:
    """Return properties of a unit, `LoadState` among them.

    Args:
        unit: its full name, such as `docker.service`.
        properties: their names, with commas.

    Raises:
        ResourceError: systemd does not answer.
    """
    done = host.run(("systemctl", "show", unit, "-p", properties))
    known = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.status != 0 or "LoadState" not in known:
        raise ResourceError(
            f"systemd does not answer for {unit}: {done.stderr.strip()}",
            "nodes must have been booted with systemd",
        )
    return known


def systemctl(host: Host, *arguments: str) -> None:
    """Run `systemctl ...`.

    Raises:
        ResourceError: it failed.
    """
    host.run(("systemctl", *arguments), timeout=120).check("systemctl " + " ".join(arguments))


def end_of_log(host: Host, unit: str) -> list[str]:
    """Return the last 15 lines that a unit wrote."""
    log = host.run(("journalctl", "-u", unit, "-n", "15", "--no-pager", "-o", "cat"))
    return log.stdout.strip().splitlines()
