"""The tables of measured figures, each made once for the page and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_cluster.bench.record import SHOWN_PERCENTILES, CellResult, Metric, MetricName, Setup
from spark_cluster.bench.report.cells import Pair, Results, is_noise, is_served, speed_up
from spark_cluster.bench.report.formats import (
    decode_name,
    duration,
    factor,
    figure,
    number,
    predicted,
    prefill_name,
    shape,
    short,
    spread,
)
from spark_cluster.bench.report.table import Table
from spark_cluster.bench.statistics import FLOOR_ALONE, FLOOR_SEVERAL

NOISE_NOTE = (
    f"~ marks a difference that identical runs show too (under {100 * FLOOR_ALONE:.0f} % at c=1, "
    f"under {100 * FLOOR_SEVERAL:.0f} % above)."
)
ONE, TWO, REPLICAS = "TP=1 (1\xa0Spark)", "TP=2 (2\xa0Sparks)", "2\xa0×\xa0TP=1 (2\xa0Sparks)"
OPEN_LOOP: tuple[MetricName, ...] = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
PER_DEPTH: tuple[tuple[str, MetricName], ...] = (
    ("Token generation (t/s, c=1)", "tg_tps"),
    ("Prompt processing (t/s, c=1)", "pp_tps"),
    ("Time to first response (c=1, lower is better)", "ttfr_ms"),
)


def comparison_tables(results: Results) -> Iterator[Table]:
    """Yield TP=1 against TP=2 with the speed-up at each depth, then against load."""
    for pair in results.pairs:
        several = len(results.pairs) > 1
        suffix = f", {results.labels[pair.one.id].replace('TP=1', '').strip()}" if several else ""
        for title, metric in PER_DEPTH:
            table = _per_depth(results, pair, f"{title}{suffix}", metric)
            if table.rows:
                yield table
        load = _per_load(results, pair, f"Throughput of all requests together (t/s){suffix}")
        if load.rows:
            yield load


def _per_depth(results: Results, pair: Pair, title: str, metric: MetricName) -> Table:
    one = {point.x: point for point in results.at(pair.one, metric, concurrency=1)}
    two = {point.x: point for point in results.at(pair.two, metric, concurrency=1)}
    rows = []
    for depth in sorted(one.keys() & two.keys()):
        before, after = one[depth].metric, two[depth].metric
        name = prefill_name if metric != "tg_tps" else decode_name
        gain = _gain(speed_up(metric, before, after), 1)
        test = name(one[depth].cell.key, concurrency=False)
        rows.append((test, _amount(metric, before), _amount(metric, after), gain))
    columns = ("test", ONE, TWO, "speed-up")
    return Table(title, columns, tuple(rows), note=_note(rows))


def _per_load(results: Results, pair: Pair, title: str) -> Table:
    depth = results.lowest_depth
    replicas = results.replicas_of(pair)
    setups = [pair.one, pair.two, *([replicas] if replicas else [])]
    found = [{p.x: p for p in results.at(s, "tg_tps", depth=depth)} for s in setups]
    rows = []
    for load in sorted(found[0].keys() | found[1].keys()):
        points = [by_load.get(load) for by_load in found]
        if sum(point is not None for point in points) < 2 or load <= 1:
            continue
        best = max((p for p in points if p), key=lambda p: p.metric.mean)
        shown = [_amount("tg_tps", p.metric) if p else "" for p in points]
        label = results.labels[best.cell.setup]
        rows.append((decode_name(best.cell.key, concurrency=True), *shown, label))
    names = [ONE, TWO, *([REPLICAS] if replicas else [])]
    return Table(title, ("test", *names, "most"), tuple(rows))


def benchy_tables(results: Results) -> Iterator[Table]:
    """Yield the table of llama-benchy for each setup, as its own report prints it."""
    for setup in results.setups:
        cells = results.cells(setup)
        if cells:
            yield _benchy(results, setup, cells)


def _benchy(results: Results, setup: Setup, cells: tuple[CellResult, ...]) -> Table:
    several = any(cell.key.concurrency > 1 for cell in cells)
    rows: list[tuple[str, ...]] = []
    marked = {}
    for cell in cells:
        for test, metrics in benchy_rows(cell, concurrency=several):
            if cell.attention:
                marked[len(rows)] = "attention"
            rows.append((short(setup.model), test, *map(spread, metrics)))
    columns = (
        "model", "test", "t/s (total)" if several else "t/s", "t/s (req)", "peak t/s",
        "peak t/s (req)", "ttfr (ms)", "est_ppt (ms)", "e2e_ttft (ms)",
    )  # fmt: skip
    table = Table(results.labels[setup.id], columns, tuple(rows), (0, 1), marked)
    if not several:  # as llama-benchy does: a request's speed is the speed
        table = table.without("t/s (req)").without("peak t/s (req)")
    return table


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
        name = prefill_name(cell.key, concurrency=concurrency)
        yield name, (get("pp_tps"), request, None, None, *times)
    if "tg_tps" in cell.metrics:
        request = get("tg_tps_request") or get("tg_tps")
        peaks = (get("peak_tps"), get("peak_tps_request"))
        name = decode_name(cell.key, concurrency=concurrency)
        yield name, (get("tg_tps"), request, *peaks, None, None, None)


def served_table(results: Results) -> Table:
    """The figures of `vllm bench serve`: most of them are about requests and not about tokens."""
    rows = []
    for cell in results.record.cells:
        if not is_served(cell) or cell.status != "ok":
            continue
        done, good, output = (
            cell.metrics.get(name) for name in ("request_throughput", "goodput", "output_tps")
        )
        rows.append((
            results.labels.get(cell.setup, cell.setup),
            short(shape(cell.key)),
            number(done.mean) if done else "",
            number(good.mean) if good else "",
            number(output.mean) if output else "",
            *(_percentiles(cell, metric) for metric in OPEN_LOOP),
        ))  # fmt: skip
    columns = ("setup", "load", "req/s done", "goodput req/s", "output tok/s")
    note = f"Times as {' / '.join(SHOWN_PERCENTILES)} where the load generator gave them."
    limits = results.record.tool.settings.get("slo")
    if isinstance(limits, dict) and limits and any(row[3] for row in rows):
        numbers = {n: limit for n, limit in limits.items() if isinstance(limit, int | float)}
        kept = ", ".join(f"{n.removesuffix('_ms')} {limit:g} ms" for n, limit in numbers.items())
        note = f"Goodput: requests within {short(kept)}. {note}"
    table = Table(
        "Requests",
        (*columns, "TTFT ms", "TPOT ms", "ITL ms", "end to end ms"),
        tuple(rows),
        (0, 1),
        note=note,
    )
    return table.without_empty_columns()


def _percentiles(cell: CellResult, name: MetricName) -> str:
    metric = cell.metrics.get(name)
    if metric is None:
        return ""
    found = [metric.percentiles[p] for p in SHOWN_PERCENTILES if p in metric.percentiles]
    return " / ".join(number(value) for value in found) or number(metric.mean)


def sweep_table(results: Results) -> Table:
    """Decoding with each variant of a sweep or a pair, c=1, and the acceptance of drafts."""
    rows = []
    for setup in results.setups:
        points = results.at(setup, "tg_tps", concurrency=1)
        point = next(iter(points), None)
        if point is None:
            continue
        accepted = point.cell.metrics.get("acceptance")
        length = point.cell.metrics.get("acceptance_length")
        rows.append((
            results.labels[setup.id],
            decode_name(point.cell.key, concurrency=False),
            spread(point.metric),
            f"{accepted.mean:.0%}" if accepted else "",
            number(length.mean) if length else "",
        ))  # fmt: skip
    columns = ("setup", "test", "tok/s", "acceptance", "accepted a step")
    varied = any(setup.variant for setup in results.setups)
    return Table("Variants", columns, tuple(rows if varied else ()), (0, 1)).without_empty_columns()


def acceptance_table(results: Results) -> Table:
    """The acceptance of drafts in each cell of a recipe with a drafter."""
    rows = []
    for setup in results.setups:
        cells = results.cells(setup)
        several = any(cell.key.concurrency > 1 for cell in cells)
        for cell in cells:
            accepted = cell.metrics.get("acceptance")
            length = cell.metrics.get("acceptance_length")
            if accepted is None and length is None:
                continue
            rows.append((
                results.labels[setup.id],
                decode_name(cell.key, concurrency=several),
                f"{accepted.mean:.1%}" if accepted else "",
                number(length.mean) if length else "",
            ))  # fmt: skip
    columns = ("setup", "test", "accepted", "tokens a step")
    return Table("Acceptance of drafts", columns, tuple(rows), (0, 1)).without_empty_columns()


def prediction_table(results: Results) -> Table:
    """The plan's predictions next to what was measured."""
    rows: list[tuple[str, ...]] = []
    marked = {}
    for setup in results.setups:
        cells = {cell.key: cell for cell in results.cells(setup)}
        for prediction in setup.predictions:
            cell = cells.get(prediction.key)
            measured = cell.metrics.get(prediction.metric) if cell else None
            if measured is None:
                continue
            inside = prediction.low <= measured.mean <= prediction.high
            if not inside:
                marked[len(rows)] = "attention"
            rows.append((
                results.labels[setup.id],
                predicted(prediction),
                f"{number(prediction.value)} ({number(prediction.low)} to "
                f"{number(prediction.high)})",
                number(measured.mean),
                f"{measured.mean / prediction.value - 1:+.0%}" if prediction.value > 0 else "",
            ))  # fmt: skip
    columns = ("setup", "figure", "predicted (range)", "measured", "deviation")
    note = "Marked: outside the predicted range." if marked else ""
    return Table("Predicted and measured", columns, tuple(rows), (0, 1), marked, note)


def answers_table(results: Results) -> Table:
    """Vision and tool calls: what was asked, how many answers were right, and how long they took.

    A cell without answers has a row too, which says why.
    """
    rows: list[tuple[str, ...]] = []
    marked = {}
    for cell in results.record.cells:
        if cell.key.kind == "load":
            continue
        about = (results.labels.get(cell.setup, cell.setup), cell.key.kind.replace("_", " "))
        for one in cell.questions if cell.status == "ok" else ():
            if one.right < one.asked:
                marked[len(rows)] = "attention"
            rows.append((
                *about,
                short(one.question, 60),
                "yes" if one.streamed else "no",
                f"{one.right} of {one.asked}",
                "" if one.ttft_ms is None else number(one.ttft_ms),
                "" if one.answer_ms is None else number(one.answer_ms),
                short(one.wrong),
            ))  # fmt: skip
        if cell.status != "ok" or not cell.questions:
            marked[len(rows)] = "bad" if cell.status == "failed" else "attention"
            rows.append((*about, "", "", cell.status, "", "", short(cell.reason)))
    columns = ("setup", "kind", "question", "streamed", "right", "TTFT ms", "answer ms", "why not")
    left = (0, 1, 2, 3, 7)
    table = Table("Vision and tool calls", columns, tuple(rows), left, marked)
    return table.without_empty_columns()


def flagged_table(results: Results) -> Table:
    """Cells that failed, were left out, or whose figures want attention."""
    cells = sorted(results.flagged, key=lambda c: ("failed", "skipped", "ok").index(c.status))
    rows = tuple(
        (
            results.labels.get(cell.setup, cell.setup),
            shape(cell.key),
            {"ok": "attention"}.get(cell.status, cell.status),
            short("; ".join(filter(None, [cell.reason, *cell.attention]))),
        )
        for cell in cells
    )
    marked = {i: "bad" if c.status == "failed" else "attention" for i, c in enumerate(cells)}
    return Table("Cells to look at", ("setup", "cell", "", "why"), rows, (0, 1, 2, 3), marked)


def _amount(name: MetricName, metric: Metric) -> str:
    return duration(metric.mean) if name.endswith("_ms") else figure(metric)


def _gain(ratio: float | None, concurrency: int) -> str:
    if ratio is None:
        return ""
    return f"{'~' if is_noise(ratio, concurrency) else ''}{factor(ratio)}"


def _note(rows: Sequence[tuple[str, ...]]) -> str:
    return NOISE_NOTE if any(row[-1].startswith("~") for row in rows) else ""
