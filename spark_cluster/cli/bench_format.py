"""Benchmark figures and loads as text."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

from spark_cluster.bench.published import ANY_OUTPUT
from spark_cluster.bench.record import CellKey, MetricName

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


def figure(value: float) -> str:
    """Return a figure with as many digits as it is good for."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


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
