"""`facts`: what is true of the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import painted, plain_table
from spark_cluster.cli.options import Command

if TYPE_CHECKING:
    from spark_cluster.cli.results import FactsResult
    from spark_cluster.facts.model import Gpu
    from spark_cluster.topology import Node


@click.command(cls=Command)
def command(app: App) -> None:
    """Show the facts of each node: system, memory, GPU, ConnectX-7 links, Docker."""
    app.show(app.cluster.facts(), _show)


def _show(app: App, found: FactsResult) -> None:
    nodes = found.nodes
    names = [node.name for node in nodes]
    table = plain_table("", *names, fold=names)
    columns = [_rows(node) for node in nodes]
    for name in columns[0]:
        values = [column[name] for column in columns]
        table.add_row(painted(name, "dim"), *values)
    app.console.print(table)


def _gpu(gpu: Gpu) -> str:
    own = f", {gpu.memory.total_kib / 2**20:.1f} GiB of its own" if gpu.memory else ""
    return f"{gpu.name}{own}, driver {gpu.driver}"


def _rows(node: Node) -> dict[str, str]:
    facts, gib = node.facts, 2**20
    gpu = facts.gpu
    gids = {h.name: h.gid_index for h in facts.hcas}
    links = [
        f"{k.interface} {k.address}" + (f" {k.hca} GID {gids.get(k.hca, '-')}" if k.hca else "")
        for k in node.links
    ]
    return {
        "hostname": facts.hostname,
        "system": f"{facts.os}, kernel {facts.kernel}, {facts.arch}",
        "DGX OS": facts.dgx_version or "-",
        "Python": facts.python,
        "CPUs": str(facts.cpus),
        "memory": f"{facts.memory.available_kib / gib:.1f} of "
        f"{facts.memory.total_kib / gib:.1f} GiB available",
        "disk": f"{facts.disk_free_bytes / 2**30:.0f} of "
        f"{facts.disk_total_bytes / 2**30:.0f} GiB free",
        "GPU": _gpu(gpu) if gpu else facts.nvml_error or "none",
        "fabric": "\n".join(links) or "no ConnectX-7 link is up",
        "Docker": facts.docker or "not running",
    }
