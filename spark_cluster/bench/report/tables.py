"""The tables of a run, each made once for the page, the post and the terminal.

What their columns are is declared in `tables.toml`; here stands which rows they have. To add one,
declare it there, put it into a section, and give its rows in `ROWS`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args

from jinja2 import ChainableUndefined, Environment

from spark_cluster.bench.compare import FLOOR_ALONE, FLOOR_SEVERAL
from spark_cluster.bench.record import (
    SHOWN_PERCENTILES,
    CellResult,
    Metric,
    MetricName,
    Phase,
    Setup,
    VramReading,
)
from spark_cluster.bench.report import rendering
from spark_cluster.bench.report.rendering import Table, number, short
from spark_cluster.bench.report.results import Results, is_noise, is_served, speed_up
from spark_cluster.config.yamlfile import table_beside
from spark_cluster.models.naming import table as data_table

DECLARED: dict[str, Any] = table_beside(__file__, "tables.toml")
"""Sections, tables and fields, as `tables.toml` explains them."""

PER_DEPTH: tuple[tuple[str, MetricName], ...] = (
    ("Token generation (t/s, c=1)", "tg_tps"),
    ("Prompt processing (t/s, c=1)", "pp_tps"),
    ("Time to first response (c=1, lower is better)", "ttfr_ms"),
)

PHASES: tuple[Phase, ...] = get_args(Phase)
"""Of a server's life, as GPU memory is read in them."""

TERMS: list[dict[str, str]] = data_table("terms", "bench")["terms"]
"""Each abbreviation (`term`) with the `pattern` of its use and its `meaning`."""

Row = Mapping[str, Any]
"""What the expressions of a row's columns speak of, by name."""


MARK = "(mark)"
"""Key of a row of `tabulate` with its mark."""

# -- from declarations to tables -------------------------------------------------------------------


def mean(cell: CellResult, name: MetricName, form: str = "") -> str:
    """Return a figure of a cell as text; empty where it was not measured."""
    metric = cell.metrics.get(name)
    if metric is None:
        return ""
    return format(metric.mean, form) if form else number(metric.mean)


def _percentiles(cell: CellResult, name: MetricName) -> str:
    known = cell.metrics[name].percentiles if name in cell.metrics else {}
    found = [number(known[p]) for p in SHOWN_PERCENTILES if p in known]
    return " / ".join(found) or mean(cell, name)


def _of_known(form: Callable[..., str]) -> Callable[..., str]:
    """Return the form of what is known; what is not is empty."""

    def text(value: Any, *more: Any) -> str:
        is_unknown = value is None or isinstance(value, ChainableUndefined)
        return "" if is_unknown else form(value, *more)

    return text


@cache
def environment() -> Environment:
    """Return what evaluates the expressions; they are ours, and what they speak of is the record's,
    of which a text stays a text."""
    made = Environment(undefined=ChainableUndefined, autoescape=False)  # noqa: S701  (no markup)
    names = (
        "amount", "decode_name", "duration", "factor", "figure", "gib", "moment", "number",
        "predicted", "prefill_name", "shape", "short", "size_text",
    )  # fmt: skip
    own: dict[str, Callable[..., str]] = {
        "mean": mean,
        "percentiles": _percentiles,
        "share": "{:+.0%}".format,
        "whole": "{:,.0f}".format,
    }
    forms = {name: getattr(rendering, name) for name in names} | own
    made.filters.update({name: _of_known(form) for name, form in forms.items()})
    made.globals["shown_percentiles"] = SHOWN_PERCENTILES
    return made


@cache
def _expression(text: str) -> Callable[..., Any]:
    return environment().compile_expression(text)


def _texts(columns: Mapping[str, str], row: Row) -> dict[str, str]:
    """Return the texts of a row, or of a thing, by their columns' names."""
    found = {title: _expression(column)(row) for title, column in columns.items()}
    return {title: "" if value is None else str(value) for title, value in found.items()}


def declared(name: str, rows: Iterable[Row], **about: Any) -> Table:
    """Return a table of `tables.toml`.

    Args:
        about: what title, note, the columns' titles and every row speak of, too.
    """
    table, found = DECLARED[name], [{**about, **row} for row in rows]
    columns = {said(title, **about): text for title, text in table["columns"].items()}
    made = [_texts({**columns, MARK: table.get("mark", "''")}, row) for row in found]
    title, note = (said(table.get(part, ""), rows=found, **about) for part in ("title", "note"))
    return tabulate(title, made, note)


def said(text: str, **about: Any) -> str:
    """Return what a template says."""
    return environment().from_string(text).render(about)


def _of_run(results: Results, name: str, rows: Iterable[Row], **about: Any) -> Table:
    """Return a declared table of a run."""
    return declared(name, rows, results=results, label=results.label, **about)


def tabulate(title: str, rows: Iterable[Mapping[str, str]], note: str = "") -> Table:
    """Return a table of rows, each a column's name to its text, and `MARK` to the row's mark.

    Columns in which no row has anything are left out.
    """
    found = list(rows)
    used = (name for row in found for name, text in row.items() if text and name != MARK)
    order = [name for name in (found[0] if found else ()) if name != MARK]
    filled = set(used)
    columns = tuple(name for name in order if name in filled)
    return Table(
        title,
        columns,
        tuple(tuple(row[name] for name in columns) for row in found),
        tuple(i for i, name in enumerate(columns) if name in DECLARED["text_columns"]),
        {i: row[MARK] for i, row in enumerate(found) if row.get(MARK)},
        note if found else "",
    )


def tables_of(results: Results, name: str) -> Iterator[Table]:
    """Yield the tables of a name, those without a row too."""
    if name in SEVERAL:
        yield from SEVERAL[name](results)
    else:
        yield _of_run(results, name, ROWS[name](results), limits=_limits(results))


# -- rows ------------------------------------------------------------------------------------------


def _setups(results: Results) -> Iterator[Row]:
    for setup in results.setups:
        loads = results.at(setup, "tg_tps", depth=results.lowest_depth)
        yield {
            "setup": setup,
            "most": max(loads, key=lambda point: point.metric.mean, default=None),
        }


def _requests(results: Results) -> Iterator[Row]:
    """Yield the cells of `vllm bench serve`, whose figures are of requests and not of tokens."""
    cells = (cell for cell in results.record.cells if cell.status == "ok")
    yield from ({"cell": cell} for cell in cells if is_served(cell))


def _limits(results: Results) -> str:
    """Return the limits of goodput, in words; empty where it was not measured."""
    limits = results.record.tool.settings.get("slo")
    if not isinstance(limits, dict) or not any(
        "goodput" in c.metrics for c in results.record.cells
    ):
        return ""
    known = {name: one for name, one in limits.items() if isinstance(one, int | float)}
    return ", ".join(f"{name.removesuffix('_ms')} {one:g} ms" for name, one in known.items())


def _with_drafts(results: Results) -> Iterator[Row]:
    for setup in results.setups:
        cells = results.cells(setup)
        for cell in cells:
            if cell.metrics.keys() & {"acceptance", "acceptance_length"}:
                yield {"cell": cell, "several": _several(cells)}


def _several(cells: Sequence[CellResult]) -> bool:
    """Return whether a cell has several requests at once, which the tests' names then say."""
    return any(cell.key.concurrency > 1 for cell in cells)


def _questions(results: Results) -> Iterator[Row]:
    for cell in results.record.cells:
        if cell.key.kind != "load":
            asked = cell.questions if cell.status == "ok" else ()
            yield from ({"cell": cell, "one": one} for one in asked or (None,))


def _flagged(results: Results) -> Iterator[Row]:
    """Yield the cells that failed, were left out, or whose figures want attention."""
    for status in ("failed", "skipped", "ok"):
        for cell in results.record.cells:
            if cell.status == status and (status != "ok" or cell.attention):
                yield {"cell": cell}


def readings(setup: Setup) -> dict[str, dict[str, VramReading]]:
    """The readings of a setup by node and phase; of several of one phase the highest."""
    found: dict[str, dict[str, VramReading]] = defaultdict(dict)
    for reading in setup.vram:
        known = found[reading.node].get(reading.phase)
        if known is None or reading.used_mib > known.used_mib:
            found[reading.node][reading.phase] = reading
    return found


def _memory(results: Results) -> Iterator[Row]:
    for setup in results.record.setups:
        for node, phases in readings(setup).items():
            yield {"setup": setup, "node": node, "phases": phases}


def _processes(results: Results) -> Iterator[Row]:
    """Yield the processes while a server was under load (or ready, where that is all)."""
    for row in _memory(results):
        reading = row["phases"].get("under_load") or row["phases"].get("ready")
        yield from ({**row, "process": one} for one in (reading.processes if reading else ()))


ROWS: dict[str, Callable[[Results], Iterable[Row]]] = {
    "headline": _setups,
    "requests": _requests,
    "acceptance": _with_drafts,
    "predicted": lambda results: [{"one": one} for one in results.predicted],
    "answers": _questions,
    "flagged": _flagged,
    "memory": _memory,
    "processes": _processes,
}
"""The rows of each table of which a run has one."""


# -- of several a run has one for each pair, setup or node -----------------------------------------


def _comparison(results: Results) -> Iterator[Table]:
    """Yield TP=1 against TP=2 with the speed-up at each depth, then against load."""
    for one, two in results.pairs:
        label = results.labels[one.id].replace("TP=1", "").strip()
        suffix = f", {label}" if len(results.pairs) > 1 else ""
        for title, metric in PER_DEPTH:
            rows = list(_per_depth(results, (one, two), metric))
            noisy = any(row["is_noise"] for row in rows)
            floors = {"alone": f"{100 * FLOOR_ALONE:.0f}", "several": f"{100 * FLOOR_SEVERAL:.0f}"}
            about = {"title": f"{title}{suffix}", "metric": metric, "noisy": noisy, **floors}
            yield _of_run(results, "comparison", rows, **about)
        yield _of_run(results, "throughput", _per_load(results, one, two), suffix=suffix)


def _per_depth(results: Results, pair: Iterable[Setup], metric: MetricName) -> Iterator[Row]:
    one, two = ({p.x: p for p in results.at(s, metric, concurrency=1)} for s in pair)
    for depth in sorted(one.keys() & two.keys()):
        ratio = speed_up(metric, one[depth].metric, two[depth].metric)
        noise = ratio is not None and is_noise(ratio, 1)
        yield {"one": one[depth], "two": two[depth], "ratio": ratio, "is_noise": noise}


def _per_load(results: Results, one: Setup, two: Setup) -> Iterator[Row]:
    setups = {"one": one, "two": two, "replicas": results.replicas_of(one)}
    found = {
        name: {p.x: p for p in results.at(setup, "tg_tps", depth=results.lowest_depth)}
        for name, setup in setups.items()
        if setup is not None
    }
    for load in sorted(found["one"].keys() | found["two"].keys()):
        points = {name: by_load[load] for name, by_load in found.items() if load in by_load}
        if len(points) > 1 and load > 1:
            yield {"points": points, "best": max(points.values(), key=lambda p: p.metric.mean)}


def _cells(results: Results) -> Iterator[Table]:
    """Yield the table of llama-benchy for each setup."""
    for setup in results.setups:
        cells = results.cells(setup)
        several = _several(cells)
        rows = [
            {"cell": cell, "test": test, "metrics": metrics}
            for cell in cells
            for test, metrics in benchy_rows(cell, concurrency=several)
        ]
        yield _of_run(results, "cells", rows, setup=setup, several=several)


def benchy_rows(
    cell: CellResult, *, concurrency: bool
) -> Iterator[tuple[str, tuple[Metric | None, ...]]]:
    """Yield the rows that llama-benchy prints for a cell: prefill, then decoding.

    Args:
        concurrency: name it in the tests' names; it does so when any cell has more than one.

    Returns:
        The test's name, and t_s, t_s_req, peak_ts, peak_ts_req, ttfr, est_ppt, e2e_ttft.
    """
    get = cell.metrics.get
    if "pp_tps" in cell.metrics:
        request = get("pp_tps_request") or get("pp_tps")
        times = (get("ttfr_ms"), get("est_ppt_ms"), get("e2e_ttft_ms"))
        name = rendering.prefill_name(cell.key, concurrency)
        yield name, (get("pp_tps"), request, None, None, *times)
    if "tg_tps" in cell.metrics:
        request = get("tg_tps_request") or get("tg_tps")
        peaks = (get("peak_tps"), get("peak_tps_request"))
        name = rendering.decode_name(cell.key, concurrency)
        yield name, (get("tg_tps"), request, *peaks, None, None, None)


def _checks(results: Results) -> Iterator[Table]:
    """Yield the checks of each server's answers; none where the suite had none."""
    for setup in results.setups or results.record.setups:
        found = Counter(check.status for check in setup.checks)
        counts = ", ".join(f"{count} {status}" for status, count in found.items())
        rows = ({"check": check} for check in setup.checks)
        yield _of_run(results, "checks", rows, setup=setup, counts=counts)


def _side_by_side(
    title: str, things: Sequence[tuple[str, Any, Mapping[str, str]]]
) -> Iterator[Table]:
    """Yield a table of what all things share, and one of what differs.

    Args:
        title: of both; in lower case the name of the fields.
        things: the name of each, itself, and its fields that are not declared.
    """
    names = [name for name, _, _ in things]
    known = [
        {**_texts(DECLARED[title.lower()], {"one": one}), **dict(sorted(more.items()))}
        for _, one, more in things
    ]
    alike: list[tuple[str, ...]] = []
    differ: list[tuple[str, ...]] = []
    for field in dict.fromkeys(field for fields in known for field in fields):
        values = [short(fields.get(field, "")) for fields in known]
        if len(set(values)) > 1:
            differ.append((field, *values))
        elif values[0]:
            alike.append((field, values[0]))
    heading = "alike in all" if len(things) > 1 else "".join(names)
    yield Table(f"{title}: {heading}", ("field", "value"), tuple(alike), (0, 1))
    yield Table(
        f"{title}: different", ("field", *names), tuple(differ), tuple(range(len(names) + 1)),
        {i: "attention" for i, row in enumerate(differ) if row[0] in DECLARED["must_be_alike"]},
    )  # fmt: skip


def _side_by_side_setups(results: Results) -> Iterator[Table]:
    setups = results.setups or results.record.setups
    yield from _side_by_side("Setups", [(results.labels[s.id], s, s.versions) for s in setups])


def _side_by_side_nodes(results: Results) -> Iterator[Table]:
    nodes = results.record.nodes
    yield from _side_by_side("Nodes", [(short(n.name, 40), n, n.environment) for n in nodes])


SEVERAL: dict[str, Callable[[Results], Iterable[Table]]] = {
    "comparison": _comparison,
    "cells": _cells,
    "checks": _checks,
    "setups": _side_by_side_setups,
    "nodes": _side_by_side_nodes,
}
"""The tables of which a run has several."""


# -- words -----------------------------------------------------------------------------------------


def terms_table(shown: Iterable[Table]) -> Table:
    """The abbreviations that occur in tables, explained."""
    texts = (
        text
        for table in shown
        for row in (table.columns, *table.rows, (table.title + table.note,))
        for text in row
    )
    used = "\n".join(texts)
    rows = [(one["term"], one["meaning"]) for one in TERMS if re.search(one["pattern"], used)]
    return Table("Abbreviations", ("term", "meaning"), tuple(rows), (0, 1))
