"""The picture of `top`: nodes, engine, and memory by process; or a line a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.bench.sampling import LiveState, NodeState, warnings
from spark_cluster.bench.telemetry import Row
from spark_cluster.bench.telemetry_flags import size
from spark_cluster.cli.console import painted

if TYPE_CHECKING:
    from rich.table import Table

    from spark_cluster.bench.sampling import Update
    from spark_cluster.cli.terminal import RenderableType

MOST_PROCESSES = 6
"""Processes of a node that are shown, the largest first."""

PROCESS_WIDTH = 40
"""Characters of a process's name that are shown."""

NOT_KNOWN = "-"


def picture(live: LiveState) -> RenderableType:
    """Return the whole picture; it fits 80 columns."""

    from spark_cluster.cli.terminal import Group

    parts: list[RenderableType] = [_nodes(live)]
    serving = [n for n in live.nodes.values() if n.row is not None and n.row.running is not None]
    if serving:
        parts += ["", _engine(serving)]
    if any(node.processes for node in live.nodes.values()):
        parts += ["", _memory(live)]
    for node in live.nodes.values():
        trouble = live.trouble(node)
        if trouble:
            parts.append(painted(f"{node.name}: {trouble}", "red" if node.lost else "dim"))
        elif node.row is not None:
            parts += [painted(f"{node.name}: {text}", "yellow") for text in warnings(node.row)]
    return Group(*parts)


def _nodes(live: LiveState) -> Table:
    table = _table(
        "node", "GPU %", "SM MHz", "W", "°C", "free MiB", "RDMA/s in/out", "net/s in/out"
    )
    for node in live.nodes.values():
        table.add_row(*_node(node), style="dim" if live.trouble(node) else "")
    return table


def _node(node: NodeState) -> list[str]:
    row = node.row
    if row is None:
        return [node.name, *[NOT_KNOWN] * 7]
    mark = "!" if row.throttle else ""
    return [
        node.name,
        _number(row.utilisation),
        f"{_number(row.sm_clock_mhz)}{mark}",
        _number(row.power_w),
        _number(row.temperature_c),
        _number(row.mem_available_mib),
        _both(row.rdma_rx_bytes_s, row.rdma_tx_bytes_s),
        _both(row.net_rx_bytes_s, row.net_tx_bytes_s),
    ]


def _engine(serving: list[NodeState]) -> Table:
    table = _table(
        "engine on", "running", "waiting", "KV %", "tokens/s", "prompt tokens/s", "accepted %"
    )
    for node in serving:
        row = node.row
        assert row is not None  # noqa: S101  (who serves has one)
        table.add_row(
            node.name,
            _number(row.running),
            _number(row.waiting),
            _percent(row.kv_usage),
            _number(row.generation_tps),
            _number(row.prompt_tps),
            _percent(row.acceptance),
        )
    return table


def _memory(live: LiveState) -> Table:
    table = _table("memory on", "pid", "MiB")
    table.add_column("process", no_wrap=True, overflow="ellipsis", max_width=PROCESS_WIDTH)
    for node in live.nodes.values():
        largest = sorted(node.processes, key=lambda p: -(p.used_mib or 0))
        for process in largest[:MOST_PROCESSES]:
            table.add_row(node.name, str(process.pid), _number(process.used_mib), process.name)
        more = len(largest) - MOST_PROCESSES
        if more > 0:
            table.add_row(node.name, "", "", f"and {more} more")
    return table


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True, overflow="ellipsis", max_width=16)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def line(update: Update) -> str:
    """Return one line for a sample or a loss, for scripts and files that people read."""
    if not isinstance(update, Row):
        return f"{update.node}: {update.error.message}"
    row = update
    parts = [
        f"{row.time:%H:%M:%S} {row.node}:",
        f"GPU {_number(row.utilisation)} %",
        f"{_number(row.sm_clock_mhz)} MHz",
        f"{_number(row.power_w)} W",
        f"{_number(row.temperature_c)} °C",
        f"free {_number(row.mem_available_mib)} MiB",
        f"GPU memory {_number(row.gpu_mem_mib)} MiB",
        f"RDMA/s {_both(row.rdma_rx_bytes_s, row.rdma_tx_bytes_s)}",
        f"net/s {_both(row.net_rx_bytes_s, row.net_tx_bytes_s)}",
    ]
    if row.running is not None:
        parts += [
            f"{row.running} running",
            f"{_number(row.waiting)} waiting",
            f"KV {_percent(row.kv_usage)} %",
            f"{_number(row.generation_tps)} tokens/s",
            f"prompt {_number(row.prompt_tps)} tokens/s",
        ]
        if row.acceptance is not None:
            parts.append(f"acceptance {_percent(row.acceptance)} %")
    head, *figures = parts
    return " ".join([head, ", ".join([*figures, *warnings(row)])])


def _number(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.0f}"


def _percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else f"{100 * share:.0f}"


def _both(received: float | None, sent: float | None) -> str:
    """Two rates, bytes a second.

    >>> _both(1.2e9, None)
    '1.2 GB/-'
    """
    return "/".join(NOT_KNOWN if rate is None else size(rate) for rate in (received, sent))
