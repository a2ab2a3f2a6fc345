"""The end of a Ray that a killed `bench fabric` left, by the command that a node runs."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import each_row

from spark_cluster.bench import fabric_run
from spark_cluster.bench.fabric_run import LIMIT_S
from spark_cluster.errors import Failed
from spark_cluster.runner.session import Output

PROGRAM = '#!/bin/sh\necho "$(basename "$0") $*" >>"$STATE/calls"\n'
DOCKER = PROGRAM + 'case "$*" in *ls*label=spark-cluster.fabric=r1) cat "$STATE/ids";; esac\n'


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """`node(ids, unit)`: run the command (by default the end's) with stand-ins; what was called."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("docker", DOCKER), ("systemctl", PROGRAM)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(ids: str, unit: str | None, command: list[str] | None = None) -> list[str]:
        (tmp_path / "ids").write_text(ids)
        file = tmp_path / "ray.service"
        if unit is not None:
            file.write_text(unit)
        *words, _ = fabric_run.end_command("r1")
        path = f"{programs}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "STATE": str(tmp_path)}
        argv = command or [*words, str(file)]
        subprocess.run(argv, check=False, env=env, timeout=60)
        return (tmp_path / "calls").read_text().splitlines()

    return run


@each_row(__file__, "fabric_ends.json", "ends")
def test_only_what_the_run_has_made_is_ended(node, ids, unit, acts):
    """Not what `up` has made since, nor another run whose name has the same letters."""
    listed, *done = node(ids, unit)
    assert listed.startswith("docker container ls")
    assert "name=^/?spark-ray$" in listed
    assert done == acts


def test_the_limit_is_later_than_any_measurement():
    assert fabric_run.end_limit_s(300) > 300 + LIMIT_S


@pytest.mark.parametrize("unit", [None, "[Unit]\n"])
def test_ray_does_not_come_back_with_a_node_that_was_cut_off(node, tmp_path, unit):
    """A transient timer is gone then, so that nothing would end it."""

    def run(argv: list[str]) -> Output:
        *words, _ = argv
        calls = node("", unit, [*words, str(tmp_path / "ray.service")])
        assert "docker update --restart no spark-ray" in calls
        assert ("systemctl --quiet disable spark-ray.service" in calls) == bool(unit)
        return Output(1, "", "no such container\n")

    sessions: list[Any] = [SimpleNamespace(run=run, node="spark1")]
    with pytest.raises(Failed, match="start again with the node: no such container"):
        fabric_run.start_no_more(sessions)


def test_the_command_is_not_the_description_of_its_unit():
    """systemd would read its lines as settings of the unit."""
    asked: list[list[str]] = []
    session = SimpleNamespace(run=lambda argv: asked.append(argv) or Output(0, "", ""), node="a")
    sessions: list[Any] = [session]
    fabric_run.arm(sessions, "r1", 10)
    (words,) = asked
    assert any(word.startswith("--description=") for word in words[: words.index("--")])


def test_a_node_that_does_not_take_the_timer():
    refused = SimpleNamespace(run=lambda _argv: Output(1, "", "no bus\n"), node="spark1")
    sessions: list[Any] = [refused]
    with pytest.raises(Failed, match="systemd-run: no bus"):
        fabric_run.arm(sessions, "r1", 10)
    fabric_run.disarm(sessions)
