"""The head of the lab: llama-benchy started there by hand, and the sampler's CPU time."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from spark_cluster.bench.on_node import FOLDER
from spark_cluster_lab import LabNode

HAND = "/tmp/spark-cluster-by-hand"

CPU = """\
for unit in $(systemctl list-units --plain --no-legend 'spark-cluster-telemetry-*' | cut -d' ' -f1)
do
  pid=$(systemctl show -P MainPID "$unit")
  [ ! -r "/proc/$pid/stat" ] || { cat /proc/uptime; cat "/proc/$pid/stat"; }
done
true
"""
"""The sampler alone: the lab's stand-in for nvidia-smi is a script that takes more than the real
one."""


def by_hand(node: LabNode, run: str) -> dict[str, dict[str, Any]]:
    """Measure the cells of a run once more, each with the command line that the run had.

    Returns:
        llama-benchy's results by cell.
    """
    folder = node.run(["sh", "-c", f'echo {FOLDER}/"$0"/*', run]).stdout.strip()
    plan = json.loads(node.run(["cat", f"{folder}/plan.json"]).stdout)
    user = node.run(["stat", "-c", "%U", folder]).stdout.strip()
    node.run(["sh", "-c", 'rm -rf "$0" && install -d -o "$1" "$0" "$0/raw"', HAND, user])
    as_user = ["runuser", "-u", user, "--"]
    for name, target in plan["links"].items():  # the text for the prompts
        link = f"{HAND}/{name}"
        node.run([*as_user, "mkdir", "-p", link.rpartition("/")[0]])
        node.run([*as_user, "ln", "-s", target, link])
    found = {}
    for cell in plan["cells"]:
        argv = [word.replace(folder, HAND) for word in cell["argv"]]
        settings = [f"{name}={value}" for name, value in cell["env"].items()]
        node.run([*as_user, "env", "-C", HAND, *settings, *argv])
        found[cell["id"]] = json.loads(node.run(["cat", f"{HAND}/{cell['result']}"]).stdout)
    return found


class SamplerLoad:
    """The share of a core that a node's sampler takes, watched while the block runs.

    Attributes:
        share: None where it was not seen twice.
    """

    def __init__(self, node: LabNode, ticks: int) -> None:
        self.share: float | None = None
        self._node, self._ticks = node, ticks
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> SamplerLoad:
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(30.0)

    def _watch(self) -> None:
        first: tuple[float, float] | None = None
        while not self._ended.wait(2.0):
            now = reading(self._node.run(["sh", "-c", CPU], check=False).stdout, self._ticks)
            if now is None:
                continue
            first = first or now
            if now[0] - first[0] > 10:
                self.share = (now[1] - first[1]) / (now[0] - first[0])


def reading(text: str, ticks: int) -> tuple[float, float] | None:
    """Return the seconds since boot and the CPU seconds of a sampler; None without one.

    Args:
        text: /proc/uptime, and /proc/PID/stat.
        ticks: a second.
    """
    lines = text.splitlines()
    if len(lines) < 2:
        return None
    words = lines[1].rpartition(")")[2].split()
    return float(lines[0].split()[0]), (int(words[11]) + int(words[12])) / ticks


def record_of(folder: Path) -> dict[str, Any]:
    """Return the record of a run."""
    found: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return found
