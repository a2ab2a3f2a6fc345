"""The plot of a run's memory: each node over time, its phases, and what the plan predicted."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.bench.report.drawing import SMALL, SOFT, Plot, PlotCanvas, clipped, colour, style
from spark_cluster.engine.vram import MemoryRecord
from spark_cluster.errors import Failed, UsageError, install_extra
from spark_cluster.node.durable import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FORMATS = (".svg", ".png")


def is_installed() -> bool:
    """Return whether plots can be drawn here."""
    return find_spec("matplotlib") is not None


def write_plot(record: MemoryRecord, path: Path) -> None:
    """Draw the memory of a run into a file, SVG or PNG by its name; an earlier one is replaced.

    Raises:
        UsageError: the name ends otherwise, or matplotlib is not installed.
        Failed: it cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"{path.name}: a plot is written as {' or '.join(FORMATS)}",
            hint="give the file one of these endings",
        )
    if not is_installed():
        raise UsageError("a plot needs matplotlib", hint=install_extra("bench"))
    plot = memory_plot(record)
    data = plot.png if path.suffix.lower() == ".png" else plot.svg.encode()
    try:
        write_file(path, data)
    except OSError as error:
        raise Failed(
            f"the plot cannot be written: {error.strerror}",
            where=str(path),
            hint="give another file, in a folder that exists",
        ) from None


def memory_plot(record: MemoryRecord) -> Plot:
    """Draw GPU memory and MemAvailable of each node of a run with readings."""
    first, last = record.readings[0].at, record.readings[-1].at
    unit, length = ("min", 60.0) if last - first > 180 else ("s", 1.0)
    end = max((last - first) / length * 1.04, 1.0)
    with style():
        canvas = PlotCanvas(
            "memory", clipped(f"GPU memory: {record.command}", 48), (2.0, 1.2), top=1.0
        )
        held, available = canvas.panels
        for index, node in enumerate(record.nodes):
            own = [reading for reading in record.readings if reading.node == node]
            at = [*((r.at - first) / length for r in own), end]
            used, left = [r.used_mib / 1024 for r in own], [r.mem_available_mib / 1024 for r in own]
            for axes, values in ((held, used), (available, left)):
                axes.plot(
                    at, [*values, values[-1]], color=colour(index), drawstyle="steps-post",
                    label=clipped(node, 24),
                )  # fmt: skip
        for planned in sorted({event.ready_mib for event in record.planned}):
            held.axhline(
                planned / 1024, color=SOFT, linewidth=1.2, linestyle="--",
                label=f"planned: {planned / 1024:.1f}",
            )  # fmt: skip
        _phases(canvas, [(name, (at - first) / length) for name, at in record.spans()], end)
        held.set_ylim(bottom=0)
        held.set_title("held by GPU processes, GiB", fontsize=8.5, loc="left", pad=22)
        held.tick_params(labelbottom=False)
        available.set_ylim(bottom=0)
        available.set_title("MemAvailable, GiB", fontsize=8.5, loc="left", pad=3)
        available.set_xlabel(unit)
        available.set_xlim(0, end)
        canvas.legend()
        canvas.description = f"{canvas.title}, of each node over {end:.0f} {unit}"
        return canvas.finish()


def _phases(canvas: PlotCanvas, spans: list[tuple[str, float]], end: float) -> None:
    """Draw a line where a phase begins, and its name above; names take turns in two rows."""
    held: Axes = canvas.panels[0]
    for number, (name, at) in enumerate(spans):
        for axes in canvas.panels:
            if number:
                axes.axvline(at, color=SOFT, linewidth=0.8, linestyle=(0, (1, 2)))
        at_right = at / end > 0.8
        held.annotate(
            name.replace("_", " "), (at / end, 1.0), xycoords="axes fraction",
            xytext=(2 if at_right else 0, 2 + 9 * (number % 2)), textcoords="offset points",
            fontsize=SMALL, color=SOFT, ha="right" if at_right else "left",
        )  # fmt: skip
