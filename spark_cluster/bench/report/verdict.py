"""The verdict of a run: how it went, each setup's figures, and which serves which purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_cluster.bench.record import Metric, MetricName, Setup
from spark_cluster.bench.report.cells import Point, Results, speed_up
from spark_cluster.bench.report.formats import (
    decode_name,
    duration,
    factor,
    figure,
    gib,
    number,
    prefill_name,
    short,
    tokens,
)
from spark_cluster.bench.report.lead import lead
from spark_cluster.bench.report.table import Table


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run.

    Attributes:
        mark: `ok`, `attention` or `bad`.
        title: what was measured, on what.
        text: how many cells, and what is wrong with which.
    """

    mark: str
    title: str
    text: str


@dataclass(frozen=True)
class Answer:
    """The setup that serves a purpose.

    Attributes:
        winner: label of the setup; empty when it was not measured or nothing differs.
        text: the figures that say so.
    """

    purpose: str
    winner: str
    text: str


def verdict(results: Results) -> Verdict:
    """Say how the run went."""
    record = results.record
    count = len(record.cells)
    bad, left_out = results.with_status("failed"), results.with_status("skipped")
    attention = sum(bool(cell.attention) and cell.status == "ok" for cell in record.cells)
    parts = [f"{results.with_status('ok')} of {count} cells measured"]
    parts += [f"{bad} failed"] if bad else []
    parts += [f"{left_out} left out"] if left_out else []
    parts += [f"{attention} to be read with care"] if attention else []
    text = ", ".join(parts)
    if record.status != "complete":
        text = {"running": "Still running", "stopped": "Stopped early", "failed": "Failed"}[
            record.status
        ] + f": {text}"
    mark = "bad" if bad or record.status == "failed" else "ok"
    if mark == "ok" and (attention or left_out or record.status != "complete"):
        mark = "attention"
    return Verdict(mark, _title(results), f"{text}.")


def _title(results: Results) -> str:
    setups = results.setups or results.record.setups
    models = list(dict.fromkeys(setup.model.rsplit("/", 1)[-1] for setup in setups))
    names = short(", ".join(models[:3]) + (" and others" if len(models) > 3 else ""), 120)
    nodes = {node for setup in setups for node in setup.nodes} or {
        node.name for node in results.record.nodes
    }
    hardware = {node.hardware for node in results.record.nodes if node.hardware}
    what = short(next(iter(hardware)), 60) if len(hardware) == 1 else "node"
    if not nodes:
        return names or results.record.suite
    return f"{names} on {len(nodes)} × {what}"


def headline_table(results: Results) -> Table:
    """The figures of each setup in one row."""
    rows = []
    for setup in results.setups:
        decode, prefill, first = (
            _at_lowest(results, setup, metric) for metric in ("tg_tps", "pp_tps", "ttfr_ms")
        )
        best = results.best_throughput(setup)
        most = f"{number(best.metrics['tg_tps'].mean)} (c={best.key.concurrency})" if best else ""
        peak = max((reading.used_mib for reading in setup.vram), default=0)
        rows.append((
            results.labels[setup.id],
            figure(decode.metric) if decode else "",
            figure(prefill.metric) if prefill else "",
            duration(first.metric.mean) if first else "",
            most,
            gib(peak) if peak else "",
            f"{setup.startup_s:,.0f} s" if setup.startup_s else "",
        ))  # fmt: skip
    columns = (
        "setup", "decode tok/s", "prefill tok/s", "first response", "most tok/s",
        "peak VRAM a node", "start-up",
    )  # fmt: skip
    note = _shape_note(results)
    return Table("Each setup", columns, tuple(rows), note=note).without_empty_columns()


def _shape_note(results: Results) -> str:
    if results.shape is None:
        return ""
    prompt, output = results.shape
    depth = results.lowest_depth
    return (
        f"One request at a time, {prompt:,} tokens of prompt, {output:,} generated, depth "
        f"{depth:,}; most tok/s: all requests together at the load in brackets."
    )


def _at_lowest(results: Results, setup: Setup, metric: MetricName) -> Point | None:
    points = results.at(setup, metric, concurrency=1)
    return points[0] if points and points[0].x == results.lowest_depth else None


def answers(results: Results) -> Iterator[Answer]:
    """Yield which setup serves a single user, a quick first token, and many users."""
    yield _single_user(results)
    yield _first_token(results)
    yield _throughput(results)


def _single_user(results: Results) -> Answer:
    purpose = "One user: tokens a second"
    points = _of_setups(results, "tg_tps", results.lowest_depth)
    if not points:
        return Answer(purpose, "", "Not measured: no cell with one request at a time has a result.")
    return _best(results, purpose, "tg_tps", points, 1)


def _first_token(results: Results) -> Answer:
    purpose = "One user: prefill and first token"
    lines = [results.at(setup, "ttfr_ms", concurrency=1) for setup in _single(results)]
    depths = [{int(point.x) for point in points} for points in lines if points]
    if not depths:
        return Answer(purpose, "", "Not measured: no cell with one request at a time has a result.")
    common = set.intersection(*depths) or set.union(*depths)
    deep, shallow = (_of_setups(results, "ttfr_ms", d) for d in (max(common), min(common)))
    found = _best(results, purpose, "ttfr_ms", deep, 1)
    if len(common) == 1:
        return found
    order = sorted(shallow, key=lambda id: shallow[id].metric.mean)
    times = [f"{duration(shallow[id].metric.mean)} ({results.labels[id]})" for id in order[:2]]
    return replace(found, text=f"{found.text} At depth {min(common):,}: {' against '.join(times)}.")


def _throughput(results: Results) -> Answer:
    purpose = "Many users: two replicas or TP=2"
    for pair in results.pairs:
        replicas = results.replicas_of(pair)
        if replicas is None:
            break
        depth = results.lowest_depth
        split = {p.x: p for p in results.at(replicas, "tg_tps", depth=depth)}
        joint = {p.x: p for p in results.at(pair.two, "tg_tps", depth=depth)}
        common = split.keys() & joint.keys()
        if not common:
            return Answer(purpose, "", "No load was measured on both two replicas and TP=2.")
        most, *fewer = sorted(common, reverse=True)
        points = {replicas.id: split[most], pair.two.id: joint[most]}
        found = _best(results, purpose, "tg_tps", points, int(most))
        more = [
            _at_load(results, int(load), {replicas.id: split[load], pair.two.id: joint[load]})
            for load in fewer
        ]
        return replace(found, text=" ".join([found.text, *more]))
    return Answer(
        purpose, "", "Not measured: it takes one model at TP=2 and as two replicas at TP=1."
    )


def _at_load(results: Results, load: int, points: dict[str, Point]) -> str:
    """Say which of two setups is ahead at a load, in a sentence."""
    (first, best), (_, other) = sorted(points.items(), key=lambda p: -p[1].metric.mean)
    ahead = lead("tg_tps", best.metric, other.metric, load)
    if ahead is None:
        return f"At c={load}: no verdict."
    if not ahead.is_clear:
        return f"At c={load}: {ahead.why_open}."
    return f"At c={load}: {results.labels[first]}, {factor(ahead.ratio)}, {ahead.interval}."


def _of_setups(results: Results, metric: MetricName, depth: int) -> dict[str, Point]:
    found = {}
    for setup in _single(results):
        for point in results.at(setup, metric, concurrency=1):
            if point.x == depth:
                found[setup.id] = point
    return found


def _single(results: Results) -> Sequence[Setup]:
    """Setups that a single user is served by: of replicas it is one only."""
    return [setup for setup in results.setups if setup.replicas == 1] or results.setups


def _best(
    results: Results, purpose: str, metric: MetricName, points: dict[str, Point], load: int
) -> Answer:
    """Name the best of several setups and how far ahead of the next one it is."""
    lower = metric.endswith("_ms")
    order = sorted(points, key=lambda id: points[id].metric.mean, reverse=not lower)
    first = points[order[0]]
    name = (prefill_name if lower else decode_name)(first.cell.key, concurrency=load > 1)
    shown = f"{_amount(metric, first.metric)} at {name}"
    winner = results.labels[order[0]]
    if len(order) == 1:
        return Answer(purpose, winner, f"{shown}; no other setup was measured for it.")
    other = points[order[1]]
    against = f"{results.labels[order[1]]} ({_amount(metric, other.metric)})"
    ahead = lead(metric, first.metric, other.metric, load)
    if ahead is None:
        return Answer(purpose, "", f"{shown} against {against}.")
    if not ahead.is_clear:
        return Answer(purpose, "", f"{shown} against {against}: {ahead.why_open}.")
    gain = f"{factor(ahead.ratio)} as fast as {against}, {ahead.interval}"
    return Answer(purpose, winner, f"{shown}, {gain}.")


def _amount(metric: MetricName, figure: Metric) -> str:
    return duration(figure.mean) if metric.endswith("_ms") else f"{number(figure.mean)} tok/s"


def headline(results: Results) -> str:
    """The run in one sentence, for a post: decoding on one Spark and on two."""
    for pair in results.pairs:
        one, two = (_at_lowest(results, s, "tg_tps") for s in (pair.one, pair.two))
        if one is None or two is None:
            continue
        ratio = speed_up("tg_tps", one.metric, two.metric)
        gain = f"{factor(ratio)} the " if ratio else ""
        return (
            f"{number(two.metric.mean)} tok/s for {_where(two)} on two Sparks (TP=2), "
            f"{gain}{number(one.metric.mean)} of one Spark."
        )
    best = [(_at_lowest(results, setup, "tg_tps"), setup) for setup in results.setups]
    found = [(point, setup) for point, setup in best if point is not None]
    if not found:
        return _without_tokens(results) or "No cell with one request at a time was measured."
    point, setup = max(found, key=lambda item: item[0].metric.mean)
    return f"{number(point.metric.mean)} tok/s for {_where(point)} ({results.labels[setup.id]})."


def _without_tokens(results: Results) -> str:
    """The run in one sentence where llama-benchy measured nothing; empty for none."""
    good = [cell for cell in results.record.cells if cell.status == "ok"]
    asked = [question for cell in good for question in cell.questions]
    if asked:
        right, count = sum(q.right for q in asked), sum(q.asked for q in asked)
        return f"{right} of {count} answers are right."
    served = [(cell.metrics["request_throughput"].mean, cell) for cell in good
              if "request_throughput" in cell.metrics]  # fmt: skip
    if not served:
        return ""
    most, cell = max(served, key=lambda found: found[0])
    goodput = cell.metrics.get("goodput")
    within = f", {number(goodput.mean)} of them within the limits" if goodput else ""
    return (
        f"{number(most)} requests/s served{within} ({results.labels.get(cell.setup, cell.setup)})."
    )


def _where(point: Point) -> str:
    depth = f" at {tokens(point.cell.key.depth)} of context" if point.cell.key.depth else ""
    return f"one user{depth}"
