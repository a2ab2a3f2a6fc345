"""The plot of a run's memory, kept next to its record on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.events import Note

if TYPE_CHECKING:
    from pathlib import Path

    from spark_cluster.cluster.run import Run
    from spark_cluster.engine.memory_phases import MemoryPhases


def keep_plot(run: Run, memory: MemoryPhases) -> Path | None:
    """Draw the memory of a run next to its record; None where nothing is drawn.

    A server that serves is not failed for its plot: what goes wrong is a note. Without matplotlib,
    which comes with the extra `bench`, nothing is drawn and nothing said: the readings are in the
    record, and `vram --plot` names the extra.
    """
    if all(node.under_load is None for node in memory.nodes.values()):
        return None  # nothing was started
    from spark_cluster.bench.report import plot_run
    from spark_cluster.engine import memory_record

    if not plot_run.is_installed():
        return None
    path = memory_record.plot_path(run.id)
    try:
        plot_run.write_plot(memory_record.of_run(run.id), path)
    except SparkClusterError as error:
        run.bus.emit(Note(f"no plot of the memory: {error}", "warning"))
        return None
    return path
