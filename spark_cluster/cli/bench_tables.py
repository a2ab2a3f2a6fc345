"""Tables of `bench show` for what llama-benchy does not measure: percentiles, and answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from spark_cluster.bench.record import CellResult, MetricName

TIMES: dict[MetricName, str] = {
    "ttft_ms": "TTFT ms", "tpot_ms": "TPOT ms", "itl_ms": "ITL ms", "e2el_ms": "last token ms",
}  # fmt: skip


def percentiles_table(cells: Iterable[CellResult]) -> Table | None:
    """Return percentiles of the times of `vllm bench serve`; None where no cell has any."""
    from spark_cluster.bench.record import SHOWN_PERCENTILES
    from spark_cluster.cli.bench_format import figure, load_text
    from spark_cluster.cli.console import painted

    rows: list[tuple[Any, ...]] = []
    for cell in cells:
        found = [name for name in TIMES if name in cell.metrics and cell.metrics[name].percentiles]
        if not found:
            continue
        rows.append((painted(load_text(cell.key), "bold"),))
        for name in found:
            told = cell.metrics[name].percentiles
            shown = (figure(told[p]) if p in told else "" for p in SHOWN_PERCENTILES)
            rows.append((f"  {TIMES[name]}", figure(cell.metrics[name].mean), *shown))
    return _table(("", "mean", *SHOWN_PERCENTILES), rows) if rows else None


def questions_table(cells: Iterable[CellResult]) -> Table | None:
    """Return each question with its right answers and times; None where no cell has any."""
    from spark_cluster.cli.bench_format import figure
    from spark_cluster.cli.console import painted

    rows: list[tuple[Any, ...]] = []
    for cell in cells:
        for one in cell.questions:
            right = painted(f"{one.right}/{one.asked}", "" if one.right == one.asked else "yellow")
            times = (one.ttft_ms, one.answer_ms)
            shown = ("" if time is None else figure(time) for time in times)
            rows.append((painted(one.question), right, *shown, painted(one.wrong, "dim")))
    if not rows:
        return None
    return _table(("question", "right", "TTFT ms", "answer ms", "why not"), rows, text=(0, 4))


def _table(
    titles: Sequence[str], rows: Iterable[tuple[Any, ...]], text: Sequence[int] = (0,)
) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, title in enumerate(titles):
        if index in text:
            table.add_column(title, overflow="fold")
        else:
            table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
