"""Stand-ins for a run with two replicas: nodes with folders, a play, and what `up` returns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

from bench_runs import begun
from factories import SHIPPED, make_node
from serve_plans import inventory_of, served_by

from spark_cluster.bench.expansion import Step, expand, measurable
from spark_cluster.bench.node_files import LocalFiles
from spark_cluster.bench.record import ReplicaServer, Setup
from spark_cluster.bench.replica_run import Replica
from spark_cluster.bench.run import BenchRun
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.config.inventory_part import part_of
from spark_cluster.engine.resolve import resolve
from spark_cluster.errors import Refused, Unreachable
from spark_cluster.runner.session import Output

DATA = Path(__file__).parent / "data" / "benchy"
NODES = (
    replace(make_node("spark1", own=("10.0.0.1/24",)), user="nvidia"),
    replace(make_node("spark2", own=("10.0.0.2/24",), address="10.0.0.2", head=False), user="me"),
)


class Session:
    """A node with a folder of a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.measuring = self.gone = self.is_cut = False
        self.asked: list[list[str]] = []

    def must_be_there(self) -> None:
        if self.gone:
            raise Unreachable("the connection was lost", where=self.folder.name)

    def run(self, argv: list[str], **_: Any) -> Output:
        self.asked.append(argv)
        self.must_be_there()
        is_held = self.measuring and "flock" in argv[-2]
        return Output(1 if is_held else 0, "", "")


class StepFiles(LocalFiles):
    """The files of a node that has the folder of one step, and nothing else.

    Args:
        session: with `is_cut` its connection ends after the workers' files.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session.folder.name, str(session.folder))
        self.session = session

    def sizes(self, folder: str) -> dict[str, int]:
        return super().sizes(f"/{PurePosixPath(folder).name}")

    def read(self, path: str, size: int) -> bytes:
        place, name = PurePosixPath(path).parts[-2:]
        if self.session.is_cut and place == "raw":
            raise Unreachable("the connection was lost", where=self.session.folder.name)
        return super().read(f"/{place}/{name}", size)


class Play:
    """A play as far as looking at a run asks it."""

    check = False

    def __init__(self, place: Path) -> None:
        self.nodes = list(NODES)
        self.inventory = inventory_of(*NODES)
        self.all = {node.name: Session(place / node.name) for node in NODES}
        self.connections = SimpleNamespace(session=lambda name: self.all[name], files=self._files)
        self.failed_stage = ""
        self.notes: list[str] = []

    @contextmanager
    def _files(self, name: str) -> Iterator[StepFiles]:
        self.all[name].must_be_there()
        yield StepFiles(self.all[name])

    @property
    def head(self) -> Any:
        for node in self.nodes:
            if node.is_head:
                return node
        raise Refused("the head is not in this run")

    def session(self, node: Any) -> Session:
        return self.all[node.name]

    def note(self, text: str, **_: Any) -> None:
        self.notes.append(text)


def replicas_run(laptop: Path) -> BenchRun:
    """A run of two cells, whose servers were brought up."""
    suite = Suite.model_validate(
        {"name": "s", "recipes": ["r"], "prompt": [64], "output": [8], "concurrency": [2, 4],
         "replicas": 2, "runs": 3}
    )  # fmt: skip
    servers = tuple(ReplicaServer(nodes=(node.name,)) for node in NODES)
    found = measurable(suite, expand(suite))
    setup = Setup(id=found.setups[0].id, recipe="r", model="m", tp=1, replicas=2,
                  nodes=("spark1", "spark2"), servers=servers)  # fmt: skip
    return begun(suite, laptop, found, [setup])


def measured(session: Session, cell: str, attempt: str = "1") -> None:
    """Leave on a node what its load generator and its worker write."""
    for name in ("raw", "cells"):
        (session.folder / name).mkdir(parents=True, exist_ok=True)
    for kind in ("json", "jsonl"):
        shutil.copy(DATA / f"ok.{kind}", session.folder / f"raw/{cell}.{kind}")
    worker = {"status": 0, "error": "", "started": 100.0, "finished": 110.0, "attempt": attempt}
    (session.folder / f"cells/{cell}.json").write_text(json.dumps(worker))


def replicas_of(step: Step) -> list[Replica]:
    """Return what `up` gives for each node; the user opened the head's endpoint."""
    found = []
    recipe = step.setup.served
    for node in NODES:
        alone = replace(node, is_head=True)
        inventory = part_of(inventory_of(*NODES, bind="management", open=True), [node.name])
        served = served_by(resolve(recipe, inventory, [alone], 1))
        part = SimpleNamespace(project=SHIPPED, inventory=inventory, head=alone)
        found.append(Replica(part, alone, served, 1.0))  # type: ignore[arg-type]
    return found
