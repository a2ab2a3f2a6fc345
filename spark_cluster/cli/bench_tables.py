"""Tables of `bench show` for what llama-benchy does not measure: percentiles, and answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from spark_cluster.bench.record import CellResult, MetricName

TIMES: tuple[MetricName, ...] = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")


def percentiles_table(cells: Iterable[CellResult]) -> Table | None:
    """Return percentiles of the times of `vllm bench serve`; None where no cell has any."""
    from spark_cluster.bench.record import SHOWN_PERCENTILES
    from spark_cluster.bench.report.formats import number
    from spark_cluster.cli.bench_format import TITLES, figures_table, load_text
    from spark_cluster.cli.console import painted

    rows: list[tuple[Any, ...]] = []
    for cell in cells:
        found = [name for name in TIMES if name in cell.metrics and cell.metrics[name].percentiles]
        if not found:
            continue
        rows.append((painted(load_text(cell.key), "bold"),))
        for name in found:
            known = cell.metrics[name].percentiles
            shown = (number(known[p]) if p in known else "" for p in SHOWN_PERCENTILES)
            rows.append((f"  {TITLES[name]}", number(cell.metrics[name].mean), *shown))
    if not rows:
        return None
    return _filled(figures_table("", "mean", *SHOWN_PERCENTILES), rows)


def questions_table(cells: Iterable[CellResult]) -> Table | None:
    """Return each question with its right answers and times; None where no cell has any."""
    from spark_cluster.bench.report.formats import number
    from spark_cluster.cli.bench_format import figures_table
    from spark_cluster.cli.console import painted

    rows: list[tuple[Any, ...]] = []
    for cell in cells:
        for one in cell.questions:
            right = painted(f"{one.right}/{one.asked}", "" if one.right == one.asked else "yellow")
            times = (one.ttft_ms, one.answer_ms)
            shown = ("" if time is None else number(time) for time in times)
            rows.append((painted(one.question), right, *shown, painted(one.wrong, "dim")))
    if not rows:
        return None
    titles = ("question", "right", "TTFT ms", "answer ms", "why not")
    return _filled(figures_table(*titles, text=(0, 4)), rows)


def _filled(table: Table, rows: Iterable[tuple[Any, ...]]) -> Table:
    for row in rows:
        table.add_row(*row)
    return table
