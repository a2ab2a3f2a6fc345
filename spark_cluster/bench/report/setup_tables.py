"""The tables of what was measured on: memory, nodes, versions, flags."""

from __future__ import annotations

from collections import defaultdict

from spark_cluster.bench.record import NodeRecord, Setup, VramReading
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.formats import short
from spark_cluster.bench.report.table import Table

PHASES = ("before", "load_peak", "ready", "under_load", "after")
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
    for setup in results.record.setups:
        for node, phases in readings(setup).items():
            used = (f"{phases[p].used_mib:,}" if p in phases else "" for p in PHASES)
            total = max((r.total_mib or 0 for r in phases.values()), default=0)
            label = results.labels[setup.id]
            rows.append((label, node, *used, f"{total:,}" if total else ""))
    columns = ("setup", "node", *(phase.replace("_", " ") for phase in PHASES), "total")
    note = "MiB held by GPU processes, as nvidia-smi --query-compute-apps lists them."
    table = Table("GPU memory by node and phase (MiB)", columns, tuple(rows), (0, 1), note=note)
    return table.without_empty_columns()


def process_table(results: Results) -> Table:
    """GPU memory by process while a server was under load (or ready, where that is all)."""
    rows = []
    for setup in results.record.setups:
        for node, phases in readings(setup).items():
            reading = phases.get("under_load") or phases.get("ready")
            for process in reading.processes if reading else ():
                used = "" if process.used_mib is None else f"{process.used_mib:,}"
                name = short(process.name, 80)
                rows.append((results.labels[setup.id], node, str(process.pid), name, used))
    columns = ("setup", "node", "pid", "process", "MiB")
    return Table("GPU memory by process", columns, tuple(rows), (0, 1, 3))


MARKS = {"failed": "bad", "not run": "attention"}
"""Of checks, for the eye."""


def check_tables(results: Results) -> list[Table]:
    """The checks of each server's answers; none where the suite had none."""
    found = []
    for setup in results.setups or results.record.setups:
        rows = tuple(
            (
                check.title,
                "yes" if check.streamed else "no",
                check.status,
                short(check.found),
                f"{check.seconds:.1f}" if check.status != "not run" else "",
            )
            for check in setup.checks
        )
        statuses = [check.status for check in setup.checks]
        marked = {i: MARKS[status] for i, status in enumerate(statuses) if status in MARKS}
        counts = ", ".join(f"{statuses.count(s)} {s}" for s in dict.fromkeys(statuses))
        if rows:
            columns = ("test", "streamed", "verdict", "found", "s")
            title = f"Answers of {results.labels[setup.id]}: {counts}"
            found.append(Table(title, columns, rows, (0, 1, 2, 3), marked))
    return found


NODE_FIELDS = (
    ("hardware", "hardware"), ("dgx", "DGX OS"), ("kernel", "kernel"), ("driver", "driver"),
    ("firmware", "firmware"), ("bios", "BIOS"), ("mtu", "MTU"), ("hcas", "HCAs"),
)  # fmt: skip


def node_tables(results: Results) -> list[Table]:
    """The nodes side by side."""
    nodes = results.record.nodes
    fields = [(title, [_shown(node, field) for node in nodes]) for field, title in NODE_FIELDS]
    names = sorted({name for node in nodes for name in node.environment})
    fields += [(name, [node.environment.get(name, "") for node in nodes]) for name in names]
    return _side_by_side("Nodes", [short(node.name, 40) for node in nodes], fields)


MUST_BE_ALIKE = {"DGX OS", "kernel", "driver", "firmware", "BIOS", "MTU", "image"}
"""In two nodes of one server, and in two setups that are compared."""


def setup_tables(results: Results) -> list[Table]:
    """The setups side by side: recipe, model, placement, image and versions."""
    setups = results.setups or results.record.setups
    fields: list[tuple[str, list[str]]] = [
        ("recipe", [setup.recipe for setup in setups]),
        ("model", [setup.model for setup in setups]),
        ("revision", [setup.model_revision for setup in setups]),
        ("quantization", [setup.quantization for setup in setups]),
        ("KV cache", [setup.kv_cache_dtype for setup in setups]),
        ("engine", [" over ".join(filter(None, (s.engine, s.executor))) for s in setups]),
        ("nodes", [", ".join(setup.nodes) for setup in setups]),
        ("image", [setup.image_repo_digest or setup.image_digest for setup in setups]),
        ("start-up", [f"{s.startup_s:,.0f} s" if s.startup_s else "" for s in setups]),
        ("verified", [", ".join(setup.verified) for setup in setups]),
    ]
    names = sorted({name for setup in setups for name in setup.versions})
    fields += [(name, [setup.versions.get(name, "") for setup in setups]) for name in names]
    labels = [results.labels[setup.id] for setup in setups]
    return _side_by_side("Setups", labels, fields)


def _side_by_side(title: str, names: list[str], fields: list[tuple[str, list[str]]]) -> list[Table]:
    """Return a table of what all columns share, and one of what differs."""
    fields = [(name, [short(value) for value in values]) for name, values in fields if any(values)]
    several = len(names) > 1
    alike = [(name, v) for name, v in fields if not several or len(set(v)) == 1]
    differ = [(name, v) for name, v in fields if several and len(set(v)) > 1]
    heading = f"{title}: alike in all" if several else f"{title}: {next(iter(names), '')}"
    found = [
        Table(heading, ("", "value"), tuple((n, v[0]) for n, v in alike), (0, 1)),
        Table(
            f"{title}: different", ("", *names), tuple((n, *v) for n, v in differ),
            tuple(range(len(names) + 1)),
            {i: "attention" for i, (n, _) in enumerate(differ) if n in MUST_BE_ALIKE},
        ),
    ]  # fmt: skip
    return [table for table in found if table.rows]


def _shown(node: NodeRecord, field: str) -> str:
    value = getattr(node, field)
    if field == "hcas":
        return ", ".join(value)
    return "" if value is None else str(value)
