"""A fake cluster on which suites are measured: the project's own `up` and `down` bring up and take
down what the test says, and a program takes the place of the one that measures."""

from __future__ import annotations

import json
from typing import Any

from fake_programs import Said
from piped_cluster import Make, PipedCluster
from serve_plans import served_by

from spark_cluster.config.engines import words
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.result import Served
from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.play import Play

PLAYBOOK = """\
from bench_cluster import CLUSTERS
def main(play, **given):
    return CLUSTERS[{project!r}].{name}(play, **given)
"""

CLUSTERS: dict[str, BenchCluster] = {}


class BenchCluster:
    """Nodes on which a run brings up servers and measures them.

    Attributes:
        errors: why the server with this number of the order in which they are begun does not start.
        stage: of `up`, in which that happens.
        not_free: why memory is not free after a server was taken down.
        log: what happened, in order.
        ended: what the program that measures prints as an error, and its status, in place of
            measuring.
    """

    def __init__(self, make: Make, *names: str, more: str = "") -> None:
        self.fake: PipedCluster = make(*names, more=more)
        self.play: Play = self.fake.play
        self.errors: dict[int, SparkClusterError] = {}
        self.stage = "load"
        self.not_free: SparkClusterError | None = None
        self.log: list[str] = []
        self.ended: Said | None = None
        self._servers: list[tuple[str, ...]] = []
        CLUSTERS[str(self.fake.project)] = self
        for name in ("up", "down"):
            text = PLAYBOOK.format(project=str(self.fake.project), name=name)
            self.fake.playbook(name, text)
        self.fake.marked("llama_benchy")
        self.fake.head.programs["python3"] = self._measure
        self.fake.head.programs["mkdir"] = lambda _given, _stdin: ""  # nowhere on this machine
        (self.fake.head.root / "var/lib/spark-cluster").mkdir(parents=True, exist_ok=True)

        docker = self.fake.head.programs["docker"]
        self.fake.head.programs["docker"] = lambda given, stdin: (
            Said() if given[0] == "exec" else docker(given, stdin)  # no versions of its programs
        )

    def up(self, play: Play, *, deployment: Deployment, load: bool) -> Served:
        """Take the place of `up`."""
        assert not load, "its memory under load is read while its cells are measured"
        args = words(deployment.first.flags)
        if args not in self._servers:
            self._servers.append(args)
        number = self._servers.index(args)
        self.log.append(f"up {number}")
        if number in self.errors:
            with play.stage(self.stage):
                raise self.errors[number]
        self.fake.head.run_container(SERVER, dict(deployment.first.labels), ["serve", *args])
        return served_by(deployment)

    def down(self, _play: Play) -> None:
        """Take the place of `down`."""
        self.log.append(f"down {len(self._servers) - 1}")
        if SERVER in self.fake.head.containers:
            self.fake.head.remove_container(SERVER)
        if self.not_free is not None:
            raise self.not_free

    def _measure(self, given: list[str], _stdin: str) -> Said:
        """Take the place of the program that measures: each cell has ended with status 0."""
        folder = given[-1]
        self.log.append(f"measure {len(self._servers) - 1}")
        plan: dict[str, Any] = json.loads(self.fake.head.text(f"{folder}/plan.json") or "")
        ended = plan["cells"][:1] if self.ended is not None else plan["cells"]
        for cell in ended:
            result = {"status": 0, "error": "", "started": 1.8e9, "finished": 1.8e9 + 1}
            self.fake.head.put(f"{folder}/cells/{cell['id']}.json", json.dumps(result))
        if self.ended is not None:
            return self.ended
        self.fake.head.put(f"{folder}/complete")
        return Said()
