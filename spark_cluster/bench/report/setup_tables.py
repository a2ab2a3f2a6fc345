"""The tables of what was measured on: memory, nodes, versions, flags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from spark_cluster.bench.record import NodeRecord, Phase, Setup, VramReading
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.formats import MARK, Table, short, tabulate

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
    note = "MiB held by GPU processes, as nvidia-smi --query-compute-apps lists them."
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
    yield Table(f"{title}: {heading}", ("", "value"), tuple(alike), (0, 1))
    yield Table(
        f"{title}: different", ("", *names), tuple(differ), tuple(range(len(names) + 1)),
        {i: "attention" for i, (name, *_) in enumerate(differ) if name in MUST_BE_ALIKE},
    )  # fmt: skip
