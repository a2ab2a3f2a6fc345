"""Tables of the parts of a load that several replicas had, next to all of them together."""

from __future__ import annotations

from spark_cluster.bench.record import Metric
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.formats import decode_name, figure
from spark_cluster.bench.report.table import Table

NOTE = (
    "Decoding in t/s. Each replica gets the same number of requests at once; their throughputs are "
    "summed run by run. Overlap: smallest share of a run in which all were under load."
)


def replica_table(results: Results) -> Table:
    """The throughput of each replica, of all, and how far their runs overlapped."""
    rows = []
    for setup in results.setups:
        for cell in results.cells(setup):
            for share in cell.replicas:
                rows.append((
                    results.labels[setup.id],
                    decode_name(cell.key, concurrency=True),
                    share.node,
                    f"c={share.concurrency}",
                    _shown(share.metrics.get("tg_tps")),
                    _shown(cell.metrics.get("tg_tps")),
                    "" if cell.overlap is None else f"{cell.overlap:.0%}",
                ))  # fmt: skip
    columns = ("setup", "test", "node", "its load", "replica", "all together", "overlap")
    return Table("Replicas", columns, tuple(rows), (0, 1, 2), note=NOTE if rows else "")


def _shown(metric: Metric | None) -> str:
    return figure(metric) if metric is not None else ""
