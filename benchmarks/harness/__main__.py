"""`python -m benchmarks.harness`: what `bench run` adds to llama-benchy started by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.harness.figures import Verdict, around, deviation, gaps, throughputs, verdicts
from benchmarks.harness.figures import by_hand as of_results
from benchmarks.harness.lab_head import SamplerLoad, by_hand, record_of
from spark_cluster_lab import Lab, LabNode

ROOT = Path(__file__).resolve().parents[2]

SUITE = """\
name: harness
recipes: [lab-paris]
prompt: [64]
output: [512]
depth: [0, 256, 512]
runs: {runs}
settings: {{coherence: false}}
"""


@dataclass
class Rounds:
    """What all rounds gave."""

    ours: list[dict[str, list[float]]] = field(default_factory=list)
    theirs: list[dict[str, list[float]]] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    each: list[float] = field(default_factory=list)
    sampler: list[float] = field(default_factory=list)

    def verdicts(self) -> list[Verdict]:
        """Return the figures."""
        differs = deviation(self.ours, self.theirs)
        return verdicts(differs, self.between, self.each, self.sampler)


def spark_cluster(folder: Path, *words: str) -> dict[str, Any]:
    """Run the command line in a process of its own; return its JSON document."""
    argv = [sys.executable, "-m", "spark_cluster", "-i", "lab", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(
        argv, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):  # 1: a cell failed, which the figures show
        raise click.ClickException(f"{' '.join(words)} ended with status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    if "seconds" not in found:
        raise click.ClickException(f"{' '.join(words)}: {found.get('message', done.stdout)}")
    return found


def bench_run(folder: Path, name: str) -> dict[str, Any]:
    """Measure the suite by `bench run`; the server stays up for what follows."""
    return spark_cluster(folder, "bench", "run", "harness", "--out", name, "--keep", "--json")


def measure_round(folder: Path, name: str, node: LabNode, rounds: Rounds) -> None:
    """Measure the suite by `bench run`, and then by hand on the same server."""
    with SamplerLoad(node, os.sysconf("SC_CLK_TCK")) as load:
        told = bench_run(folder, name)
    record = record_of(folder / name)
    rounds.between += gaps(record)
    rounds.each.append(around(record, float(told["seconds"]["measure"])))
    rounds.sampler += [load.share] if load.share is not None else []
    rounds.ours.append(throughputs(record))
    rounds.theirs.append(of_results(by_hand(node, record["id"])))


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--runs", default=5, show_default=True, help="Repetitions of each cell.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all here.")
def main(rounds: int, runs: int, json_file: Path | None) -> None:
    """Measure the overhead of `bench run` on the lab's server; the lab has to be up."""
    node = Lab.default().node("spark1")
    found = Rounds()
    with tempfile.TemporaryDirectory(prefix="scbench-") as name:
        folder = Path(name)
        (folder / "suites").mkdir()
        (folder / "suites/harness.yaml").write_text(SUITE.format(runs=runs), encoding="utf-8")
        try:
            bench_run(folder, "warm-up")  # starts the server, and is not counted
            for number in range(rounds):
                measure_round(folder, f"round-{number}", node, found)
                click.echo(f"round {number + 1} of {rounds} is measured", err=True)
        finally:
            spark_cluster(folder, "down", "--json")
    judged = found.verdicts()
    for one in judged:
        click.echo(f"{one.name:<36} {one.shown:>8}, wanted under {one.wanted:g}: {one.text}")
    if json_file:
        document = {"verdicts": [one.to_dict() for one in judged], **vars(found)}
        json_file.write_text(json.dumps(document, indent=2), encoding="utf-8")
    sys.exit(0 if all(one.met for one in judged) else 1)


if __name__ == "__main__":
    main()
