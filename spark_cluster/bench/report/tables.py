"""The tables of a run, each made once for the page, the post and the terminal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from spark_cluster.bench.compare import FLOOR_ALONE, FLOOR_SEVERAL
from spark_cluster.bench.record import (
    SHOWN_PERCENTILES,
    CellResult,
    Metric,
    MetricName,
    NodeRecord,
    Phase,
    Setup,
    VramReading,
)
from spark_cluster.bench.references import PredictedFigure
from spark_cluster.bench.report.rendering import (
    MARK,
    Table,
    amount,
    decode_name,
    duration,
    factor,
    figure,
    gib,
    number,
    predicted,
    prefill_name,
    shape,
    short,
    tabulate,
)
from spark_cluster.bench.report.results import Results, SizePair, is_noise, is_served, speed_up
from spark_cluster.models.naming import table as data_table

NOISE_NOTE = (
    f"~ marks a difference that identical runs show too (under {100 * FLOOR_ALONE:.0f} % at c=1, "
    f"under {100 * FLOOR_SEVERAL:.0f} % above)."
)
ONE, TWO, REPLICAS = "TP=1 (1\xa0Spark)", "TP=2 (2\xa0Sparks)", "2\xa0×\xa0TP=1 (2\xa0Sparks)"
OPEN_LOOP: dict[str, MetricName] = {
    "TTFT ms": "ttft_ms", "TPOT ms": "tpot_ms", "ITL ms": "itl_ms", "end to end ms": "e2el_ms",
}  # fmt: skip
PER_DEPTH: tuple[tuple[str, MetricName], ...] = (
    ("Token generation (t/s, c=1)", "tg_tps"),
    ("Prompt processing (t/s, c=1)", "pp_tps"),
    ("Time to first response (c=1, lower is better)", "ttfr_ms"),
)


def headline_table(results: Results) -> Table:
    """The figures of each setup in one row."""
    rows = []
    for setup in results.setups:
        decode, prefill, first = (
            results.at_lowest(setup, metric) for metric in ("tg_tps", "pp_tps", "ttfr_ms")
        )
        loads = results.at(setup, "tg_tps", depth=results.lowest_depth)
        best = max(loads, key=lambda point: point.metric.mean, default=None)
        peak = max((reading.used_mib for reading in setup.vram), default=0)
        rows.append({
            "setup": results.labels[setup.id],
            "decode tok/s": figure(decode.metric) if decode else "",
            "prefill tok/s": figure(prefill.metric) if prefill else "",
            "first response": duration(first.metric.mean) if first else "",
            "most tok/s": f"{number(best.metric.mean)} (c={best.x:g})" if best else "",
            "peak VRAM a node": gib(peak) if peak else "",
            "start-up": f"{setup.startup_s:,.0f} s" if setup.startup_s else "",
        })  # fmt: skip
    note = ""
    if results.shape is not None:
        prompt, output = results.shape
        note = (
            f"One request at a time, {prompt:,} tokens of prompt, {output:,} generated, depth "
            f"{results.lowest_depth:,}; most tok/s: all requests together at the load in brackets."
        )
    return tabulate("Each setup", rows, note)


def comparison_tables(results: Results) -> Iterator[Table]:
    """Yield TP=1 against TP=2 with the speed-up at each depth, then against load."""
    for pair in results.pairs:
        several = len(results.pairs) > 1
        suffix = f", {results.labels[pair.one.id].replace('TP=1', '').strip()}" if several else ""
        for title, metric in PER_DEPTH:
            yield _per_depth(results, pair, f"{title}{suffix}", metric)
        yield _per_load(results, pair, f"Throughput of all requests together (t/s){suffix}")


def _per_depth(results: Results, pair: SizePair, title: str, metric: MetricName) -> Table:
    one, two = (
        {p.x: p for p in results.at(s, metric, concurrency=1)} for s in (pair.one, pair.two)
    )
    name = prefill_name if metric != "tg_tps" else decode_name
    rows = []
    for depth in sorted(one.keys() & two.keys()):
        before, after = one[depth].metric, two[depth].metric
        ratio = speed_up(metric, before, after)
        gain = "" if ratio is None else f"{'~' if is_noise(ratio, 1) else ''}{factor(ratio)}"
        test = name(one[depth].cell.key, concurrency=False)
        rows.append({
            "test": test, ONE: amount(metric, before), TWO: amount(metric, after), "speed-up": gain,
        })  # fmt: skip
    return tabulate(title, rows, NOISE_NOTE if any("~" in row["speed-up"] for row in rows) else "")


def _per_load(results: Results, pair: SizePair, title: str) -> Table:
    depth = results.lowest_depth
    setups = {ONE: pair.one, TWO: pair.two}
    if replicas := results.replicas_of(pair):
        setups[REPLICAS] = replicas
    found = {
        name: {p.x: p for p in results.at(setup, "tg_tps", depth=depth)}
        for name, setup in setups.items()
    }
    rows = []
    for load in sorted(found[ONE].keys() | found[TWO].keys()):
        points = {name: by_load[load] for name, by_load in found.items() if load in by_load}
        if len(points) < 2 or load <= 1:
            continue
        best = max(points.values(), key=lambda p: p.metric.mean)
        shown = {name: figure(points[name].metric) if name in points else "" for name in setups}
        test = decode_name(best.cell.key, concurrency=True)
        rows.append({"test": test, **shown, "most": results.labels[best.cell.setup]})
    return tabulate(title, rows)


def benchy_tables(results: Results) -> Iterator[Table]:
    """Yield the table of llama-benchy for each setup, as its own report prints it."""
    for setup in results.setups:
        if cells := results.cells(setup):
            yield _benchy(results, setup, cells)


def _benchy(results: Results, setup: Setup, cells: tuple[CellResult, ...]) -> Table:
    several = any(cell.key.concurrency > 1 for cell in cells)
    columns = (
        "t/s (total)" if several else "t/s", "t/s (req)", "peak t/s", "peak t/s (req)",
        "ttfr (ms)", "est_ppt (ms)", "e2e_ttft (ms)",
    )  # fmt: skip
    rows = [
        {
            "model": short(setup.model),
            "test": test,
            **dict(zip(columns, map(figure, metrics), strict=True)),
            MARK: "attention" if cell.attention else "",
        }
        for cell in cells
        for test, metrics in benchy_rows(cell, concurrency=several)
    ]
    table = tabulate(results.labels[setup.id], rows)
    # As llama-benchy does: with one request at a time, a request's speed is the speed.
    return table if several else table.without("t/s (req)", "peak t/s (req)")


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
    rows = [
        {
            "setup": results.labels.get(cell.setup, cell.setup),
            "load": short(shape(cell.key)),
            "req/s done": mean(cell, "request_throughput"),
            "goodput req/s": mean(cell, "goodput"),
            "output tok/s": mean(cell, "output_tps"),
            **{title: _percentiles(cell, metric) for title, metric in OPEN_LOOP.items()},
        }
        for cell in results.record.cells
        if is_served(cell) and cell.status == "ok"
    ]
    note = f"Times as {' / '.join(SHOWN_PERCENTILES)} where the load generator gave them."
    limits = results.record.tool.settings.get("slo")
    if isinstance(limits, dict) and limits and any(row["goodput req/s"] for row in rows):
        numbers = {n: limit for n, limit in limits.items() if isinstance(limit, int | float)}
        kept = ", ".join(f"{n.removesuffix('_ms')} {limit:g} ms" for n, limit in numbers.items())
        note = f"Goodput: requests within {short(kept)}. {note}"
    return tabulate("Requests", rows, note)


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


def acceptance_table(results: Results) -> Table:
    """Decoding and the acceptance of drafts in each cell of a recipe with a drafter."""
    rows = []
    for setup in results.setups:
        cells = results.cells(setup)
        several = any(cell.key.concurrency > 1 for cell in cells)
        rows += [
            {
                "setup": results.labels[setup.id],
                "test": decode_name(cell.key, concurrency=several),
                "tok/s": figure(cell.metrics.get("tg_tps")),
                "accepted": mean(cell, "acceptance", ".1%"),
                "tokens a step": mean(cell, "acceptance_length"),
            }
            for cell in cells
            if cell.metrics.keys() & {"acceptance", "acceptance_length"}
        ]
    return tabulate("Acceptance of drafts", rows)


def prediction_table(results: Results) -> Table:
    """The plan's predictions next to what was measured."""

    def deviation(one: PredictedFigure) -> str:
        return f"{one.measured / one.value - 1:+.0%}" if one.value > 0 else ""

    rows = [
        {
            "setup": results.labels[one.setup],
            "figure": predicted(one.metric, one.key),
            "predicted (range)": f"{number(one.value)} ({number(one.low)} to {number(one.high)})",
            "measured": number(one.measured),
            "deviation": deviation(one),
            MARK: "" if one.is_inside else "attention",
        }
        for one in results.predicted
    ]
    outside = any(row[MARK] for row in rows)
    note = "Marked: outside the predicted range." if outside else ""
    return tabulate("Predicted and measured", rows, note)


def answers_table(results: Results) -> Table:
    """Vision and tool calls: what was asked, how many answers were right, and how long they took.

    A cell without answers has a row too, which says why.
    """
    rows = []
    for cell in results.record.cells:
        if cell.key.kind == "load":
            continue
        setup, kind = results.labels.get(cell.setup, cell.setup), cell.key.kind.replace("_", " ")
        for one in cell.questions if cell.status == "ok" else ():
            rows.append({
                "setup": setup,
                "kind": kind,
                "question": short(one.question, 60),
                "streamed": "yes" if one.streamed else "no",
                "right": f"{one.right} of {one.asked}",
                "TTFT ms": "" if one.ttft_ms is None else number(one.ttft_ms),
                "answer ms": "" if one.answer_ms is None else number(one.answer_ms),
                "why not": short(one.wrong),
                MARK: "attention" if one.right < one.asked else "",
            })  # fmt: skip
        if cell.status != "ok" or not cell.questions:
            rows.append({
                "setup": setup, "kind": kind, "question": "", "streamed": "", "right": cell.status,
                "TTFT ms": "", "answer ms": "", "why not": short(cell.reason),
                MARK: "bad" if cell.status == "failed" else "attention",
            })  # fmt: skip
    return tabulate("Vision and tool calls", rows)


def flagged_table(results: Results) -> Table:
    """Cells that failed, were left out, or whose figures want attention."""
    rows = [
        {
            "setup": results.labels.get(cell.setup, cell.setup),
            "cell": shape(cell.key),
            "status": "attention" if cell.status == "ok" else cell.status,
            "why": short("; ".join(filter(None, [cell.reason, *cell.attention]))),
            MARK: "bad" if cell.status == "failed" else "attention",
        }
        for status in ("failed", "skipped", "ok")
        for cell in results.record.cells
        if cell.status == status and (status != "ok" or cell.attention)
    ]
    return tabulate("Cells to look at", rows)


# -- what was measured on: memory, nodes, versions, flags ------------------------------------------

PHASES: tuple[Phase, ...] = get_args(Phase)
"""Of a server's life, as GPU memory is read in them."""


def readings(setup: Setup) -> dict[str, dict[str, VramReading]]:
    """The readings of a setup by node and phase; of several of one phase the highest."""
    found: dict[str, dict[str, VramReading]] = defaultdict(dict)
    for reading in setup.vram:
        known = found[reading.node].get(reading.phase)
        if known is None or reading.used_mib > known.used_mib:
            found[reading.node][reading.phase] = reading
    return found


def vram_table(results: Results) -> Table:
    """GPU memory of each node in each phase of each setup."""
    rows = []
    for label, node, phases in _readings(results):
        used = {phase: f"{phases[phase].used_mib:,}" if phase in phases else "" for phase in PHASES}
        total = max((r.total_mib or 0 for r in phases.values()), default=0)
        rows.append({
            "setup": label,
            "node": node,
            **{phase.replace("_", " "): text for phase, text in used.items()},
            "total": f"{total:,}" if total else "",
        })  # fmt: skip
    note = (
        "MiB held by GPU processes, as nvidia-smi --query-compute-apps lists them. before: by what "
        "ran until the setup was started. load peak is the highest reading; ready and under load "
        "are each of a moment, so that one may be below the other."
    )
    return tabulate("GPU memory by node and phase (MiB)", rows, note)


def process_table(results: Results) -> Table:
    """GPU memory by process while a server was under load (or ready, where that is all)."""
    rows = []
    for label, node, phases in _readings(results):
        reading = phases.get("under_load") or phases.get("ready")
        for process in reading.processes if reading else ():
            used = "" if process.used_mib is None else f"{process.used_mib:,}"
            about = {"pid": str(process.pid), "process": short(process.name, 80), "MiB": used}
            rows.append({"setup": label, "node": node, **about})
    return tabulate("GPU memory by process, under load", rows)


def _readings(results: Results) -> Iterator[tuple[str, str, dict[str, VramReading]]]:
    """Yield the label of each setup with each node and its readings by phase."""
    for setup in results.record.setups:
        for node, phases in readings(setup).items():
            yield results.labels[setup.id], node, phases


_MARKS = {"failed": "bad", "not run": "attention"}


def check_tables(results: Results) -> Iterator[Table]:
    """Yield the checks of each server's answers; none where the suite had none."""
    for setup in results.setups or results.record.setups:
        rows = [
            {
                "test": check.title,
                "streamed": "yes" if check.streamed else "no",
                "verdict": check.status,
                "found": short(check.found),
                "s": f"{check.seconds:.1f}" if check.status != "not run" else "",
                MARK: _MARKS.get(check.status, ""),
            }
            for check in setup.checks
        ]
        found = [row["verdict"] for row in rows]
        counts = ", ".join(f"{found.count(status)} {status}" for status in dict.fromkeys(found))
        yield tabulate(f"Answers of {results.labels[setup.id]}: {counts}", rows)


NODE_FIELDS = {
    "hardware": "hardware", "dgx": "DGX OS", "kernel": "kernel", "driver": "driver",
    "firmware": "firmware", "bios": "BIOS", "mtu": "MTU", "hcas": "HCAs",
}  # fmt: skip


def node_tables(results: Results) -> Iterator[Table]:
    """Yield the nodes side by side: what all share, and what differs."""
    nodes = [(short(node.name, 40), _node(node)) for node in results.record.nodes]
    yield from _side_by_side("Nodes", nodes)


def _node(node: NodeRecord) -> dict[str, str]:
    about = {title: getattr(node, name) for name, title in NODE_FIELDS.items()}
    about["HCAs"] = ", ".join(node.hcas)
    shown = {title: "" if value is None else str(value) for title, value in about.items()}
    return {**shown, **dict(sorted(node.environment.items()))}


def setup_tables(results: Results) -> Iterator[Table]:
    """Yield the setups side by side: recipe, model, placement, image and versions."""
    setups = results.setups or results.record.setups
    yield from _side_by_side("Setups", [(results.labels[s.id], _setup(s)) for s in setups])


def _setup(setup: Setup) -> dict[str, str]:
    return {
        "recipe": setup.recipe,
        "model": setup.model,
        "revision": setup.model_revision,
        "quantization": setup.quantization,
        "KV cache": setup.kv_cache_dtype,
        "engine": " over ".join(filter(None, (setup.engine, setup.executor))),
        "nodes": ", ".join(setup.nodes),
        "image": setup.image_repo_digest or setup.image_digest,
        "start-up": f"{setup.startup_s:,.0f} s" if setup.startup_s else "",
        "verified": ", ".join(setup.verified),
        **dict(sorted(setup.versions.items())),
    }


MUST_BE_ALIKE = {"DGX OS", "kernel", "driver", "firmware", "BIOS", "MTU", "image"}
"""In two nodes of one server, and in two setups that are compared."""


def _side_by_side(title: str, things: Sequence[tuple[str, Mapping[str, str]]]) -> Iterator[Table]:
    """Yield a table of what all things share, and one of what differs.

    Args:
        things: the name of each, and its fields, each a name to a text.
    """
    names = [name for name, _ in things]
    alike: list[tuple[str, ...]] = []
    differ: list[tuple[str, ...]] = []
    for field in dict.fromkeys(field for _, fields in things for field in fields):
        values = [short(fields.get(field, "")) for _, fields in things]
        if len(set(values)) > 1:
            differ.append((field, *values))
        elif values[0]:
            alike.append((field, values[0]))
    heading = "alike in all" if len(things) > 1 else "".join(names)
    yield Table(f"{title}: {heading}", ("field", "value"), tuple(alike), (0, 1))
    yield Table(
        f"{title}: different", ("field", *names), tuple(differ), tuple(range(len(names) + 1)),
        {i: "attention" for i, (name, *_) in enumerate(differ) if name in MUST_BE_ALIKE},
    )  # fmt: skip


# -- words -----------------------------------------------------------------------------------------

TERMS: list[dict[str, str]] = data_table("terms", "bench")["terms"]
"""Each abbreviation (`term`) with the `pattern` of its use and its `meaning`."""


def terms_table(shown: Sequence[Table]) -> Table:
    """The abbreviations that occur in tables, explained."""
    texts = (text for table in shown for row in (table.columns, *table.rows) for text in row)
    used = "\n".join([*texts, *(table.title + table.note for table in shown)])
    rows = [(one["term"], one["meaning"]) for one in TERMS if re.search(one["pattern"], used)]
    return Table("Abbreviations", ("term", "meaning"), tuple(rows), (0, 1))
