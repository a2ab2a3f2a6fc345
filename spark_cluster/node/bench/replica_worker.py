"""Have workers on several nodes measure the same cells at the same time.

Each replica's load generator runs on the replica's own node, next to its server: the server is
bound to the loopback there, so nothing of it is opened to the network, no key or certificate is
needed, and no network lies between load and server, as in the cells that these are compared with.
So that the laptop is not needed either, the workers wait for each other (replica_group.py); what
they exchange are names of cells.

A cell begins on all nodes at once, and so does each of its runs: after a run the load generator
waits until all replicas have come so far, or have ended. A cell's result is kept when all load
generators have ended. The results of one attempt carry the same `attempt`; others are not put
together. When one worker ends, the others end too, and the cell in progress is measured again
later, by all.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from spark_cluster.node.bench import worker
from spark_cluster.node.bench.replica_group import Group, Lost


def measure_all(folder: Path, plan: dict[str, Any]) -> None:
    """Measure the cells that a replica has no result of yet, all replicas at the same time.

    Raises:
        worker.Ended: this replica or another one cannot go on.
    """
    worker.prepare(folder, plan)

    def check() -> None:
        if (folder / "stop").exists():
            raise worker.Ended(worker.STOPPED, "stopped")

    try:
        check()
        with Group(plan["replicas"], check) as group:
            while _measure_next(folder, plan, group):
                pass
            worker.write_durably(folder / worker.COMPLETE, "")
    except Lost as error:
        raise worker.Ended(worker.NO_REPLICA, f"another replica is lost: {error}") from None


def _measure_next(folder: Path, plan: dict[str, Any], group: Group) -> bool:
    """Measure the first cell that any replica has no result of; returns False without one."""
    cells = plan["cells"]
    results = {cell["id"]: folder / "cells" / f"{cell['id']}.json" for cell in cells}
    own = {id: _attempt(path) for id, path in results.items()}
    known = [found["attempts"] for found in group.exchange(attempts=own)]
    # Where attempts differ, a replica was cut before it could keep the result of the last one.
    left = [id for id in results if not own[id] or any(one.get(id) != own[id] for one in known)]
    if not left:
        return False
    number, cell = next((n, c) for n, c in enumerate(cells, 1) if c["id"] == left[0])
    title = f"cell {number} of {len(cells)}: {cell['id']}"
    worker.may_begin(folder, plan["health"])
    results[cell["id"]].unlink(missing_ok=True)
    group.begin_cell(folder)
    began = group.exchange(attempt=secrets.token_hex(8))
    print(title, flush=True)
    result = worker.measure(folder, cell, group.during_cell)
    group.end_cell()
    worker.must_still_serve(folder, plan["health"], cell["id"])
    group.exchange(cell["timeout_s"], ended=cell["id"])
    result.update(attempt=began[0]["attempt"], clock_s=group.clock_s)
    worker.keep(folder, cell["id"], result)
    print(f"{title}: {result['error'] or result['status'] or 'ok'}", flush=True)
    return True


def _attempt(path: Path) -> str:
    """Return the attempt that a result is of; empty without a result."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["attempt"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
