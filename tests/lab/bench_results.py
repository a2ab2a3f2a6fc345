"""A benchmark's user in the lab, and what a run leaves on the laptop."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commandline import WAIT_S, CommandLine

from spark_cluster.bench.on_node import FOLDER
from spark_cluster_lab import Lab, LabNode

SUITES = Path(__file__).parent / "suites"
LEFT = ["sh", "-c", "systemctl stop 'spark-cluster-telemetry-*'; rm -rf \"$0\"", FOLDER]


def record(folder: Path) -> dict[str, Any]:
    """The record in the folder of a run."""
    return json.loads((folder / "run.json").read_text())


def results(node: LabNode) -> dict[str, float]:
    """Each cell that has a result on the node, with the moment at which it was begun."""
    show = f'for f in {FOLDER}/*/*/cells/*.json; do [ ! -f "$f" ] || {{ echo "$f"; cat "$f"; '
    show += "echo; }; done"
    lines = [line for line in node.run(["sh", "-c", show]).stdout.splitlines() if line]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return {Path(path).stem: json.loads(text)["started"] for path, text in pairs}


def cells(user: CommandLine, folder: str) -> dict[str, float]:
    """Each cell of a run's record, with the moment at which it was begun."""
    return {cell["id"]: cell["started"] for cell in record(user.home / folder)["cells"]}


def attached(user: CommandLine, folder: str, count: int, *words: str) -> None:
    """Go on with a run until each of its cells has a result, and none was measured twice."""
    before = cells(user, folder)
    process = user.start("bench", "attach", folder, *words, "--json").process
    out, err = process.communicate(timeout=WAIT_S)
    document = json.loads(out)
    assert document["cells"] == count, out + err
    assert process.returncode == (1 if document["failed"] else 0)
    reasons = [c["reason"] for c in record(user.home / folder)["cells"] if c["status"] != "ok"]
    # A busy machine may get all tokens of a run at once, of which there is no speed.
    wrong = [one for one in reasons if not one.endswith(("runs were dropped", "has no value"))]
    assert not wrong
    assert before.items() <= cells(user, folder).items(), "no cell was measured twice"
    assert record(user.home / folder)["status"] == "complete"


@contextmanager
def bench_user(
    lab: Lab, home: Path, *suites: str, nodes: Sequence[str] = ("spark1",)
) -> Iterator[CommandLine]:
    """A user with suites of their own; nothing of earlier runs is on the nodes, and no server
    stays.

    Args:
        suites: names of those in the folder `suites`.
        nodes: whose folders of earlier runs are removed.
    """
    made = CommandLine(home)
    for name in nodes:
        lab.node(name).run(LEFT)
    (made.home / "suites").mkdir()
    for name in suites:
        shutil.copy(SUITES / f"{name}.yaml", made.home / "suites")
    yield made
    made("down")
