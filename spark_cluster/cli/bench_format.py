"""Benchmark figures and loads as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from spark_cluster.bench.record import CellKey, MetricName
from spark_cluster.bench.references import ANY_OUTPUT
from spark_cluster.cli.console import painted

if TYPE_CHECKING:
    from rich.table import Table

    from spark_cluster.bench.report.table import Table as Figures

STYLES = {"load": "bold", "attention": "yellow", "bad": "red"}
"""Of the marks of rows."""

TITLES: dict[MetricName, str] = {
    "tg_tps": "decode tok/s",
    "tg_tps_request": "decode tok/s each",
    "pp_tps": "prefill tok/s",
    "pp_tps_request": "prefill tok/s each",
    "peak_tps": "peak tok/s",
    "peak_tps_request": "peak tok/s each",
    "ttfr_ms": "first response ms",
    "est_ppt_ms": "prefill ms",
    "e2e_ttft_ms": "first token ms",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "itl_ms": "ITL ms",
    "e2el_ms": "last token ms",
    "request_throughput": "requests/s",
    "output_tps": "output tok/s",
    "goodput": "goodput req/s",
    "acceptance": "acceptance",
    "acceptance_length": "tokens a step",
    "score": "score",
    "answer_ms": "answer ms",
}


def load_text(key: CellKey) -> str:
    """Return a load in words, such as `2048 in, 128 out, 4096 in context, 4 at once`."""
    if key.kind != "load":
        return key.kind.replace("_", " ") + "s"
    parts = [f"{key.prompt} in"]
    if key.output != ANY_OUTPUT:
        parts.append(f"{key.output} out")
    if key.depth:
        parts.append(f"{key.depth} in context")
    if key.request_rate is not None:
        parts.append(f"{key.request_rate:g} requests/s")
    elif key.concurrency > 1:
        parts.append(f"{key.concurrency} at once")
    if key.context_prefill:
        parts.append("prefill of the context")
    return ", ".join(parts)


def figures_table(*titles: str, text: Collection[int] = (0,)) -> Table:
    """Return an empty table: text on the left of its columns, figures on the right.

    Args:
        text: columns with text.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, title in enumerate(titles):
        table.add_column(title, justify="left" if index in text else "right", overflow="fold")
    return table


Load = tuple[CellKey, str, MetricName]
"""A load, what it was measured on, and a metric of it."""


def table_by_load(titles: Iterable[str], rows: Iterable[tuple[Load, tuple[Any, ...]]]) -> Table:
    """Return a table of metrics below the load and the server that they are of.

    Args:
        rows: a load with its metric, and the figures; those of one load stand together.
    """
    table = figures_table("", *titles)
    for (key, about), group in groupby(rows, lambda row: row[0][:2]):
        table.add_row(painted(load_text(key), "bold"))
        table.add_row(painted(f"  {about}", "dim"))
        for (_, _, metric), figures in group:
            table.add_row(f"  {TITLES[metric]}", *figures)
    return table


def console_table(found: Figures) -> Table:
    """Return a table of the report for the terminal."""
    table = figures_table(*found.columns, text=found.left)
    for index, row in enumerate(found.rows):
        table.add_row(*map(painted, row), style=STYLES.get(found.marked.get(index, "")))
    return table
