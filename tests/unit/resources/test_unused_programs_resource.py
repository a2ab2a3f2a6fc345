"""UnusedPrograms: an earlier program goes when no unit runs it, and not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_cluster.resources import File, UnusedPrograms

FOLDER = "/var/lib/spark-cluster/supervise"
UNIT = "/etc/systemd/system/spark-cluster-supervise.service"
OLD, NEW, GUARD = (f"{FOLDER}/{number:064x}.pyz" for number in range(3))


def put(root: Path, name: str, text: str = "") -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def runs(program: str) -> str:
    return f"[Service]\nExecStart=/usr/bin/python3 {program}/spark_cluster/node x:main /etc/x\n"


@pytest.fixture
def programs(node: Any) -> Any:
    """A node with three programs: the unit runs one, a guard that it has started another."""
    for program in (OLD, NEW, GUARD):
        put(node.root, program)
    put(node.root, f"{FOLDER}/state/state.json", "{}")
    put(node.root, f"{FOLDER}/settings.json", "{}")
    put(node.root, UNIT, runs(NEW))
    put(node.root, "/run/systemd/transient/spark-cluster-load-guard-x.service", runs(GUARD))
    return node


def left(node: Any) -> set[str]:
    return {path.name for path in (node.root / FOLDER.lstrip("/")).iterdir()}


KEPT = {"state", "settings.json"}


def test_what_no_unit_runs_is_removed_and_no_more(programs: Any) -> None:
    assert programs.apply(UnusedPrograms(FOLDER)).verdict == "change"
    assert left(programs) == KEPT | {Path(NEW).name, Path(GUARD).name}
    assert programs.apply(UnusedPrograms(FOLDER)).verdict == "ok"


def test_a_guard_that_has_ended_leaves_its_program_to_the_next_run(programs: Any) -> None:
    programs.apply(UnusedPrograms(FOLDER))
    (programs.root / "run/systemd/transient/spark-cluster-load-guard-x.service").unlink()
    assert programs.apply(UnusedPrograms(FOLDER)).verdict == "change"
    assert left(programs) == KEPT | {Path(NEW).name}


def test_check_mode_knows_the_unit_that_will_be_and_removes_nothing(programs: Any) -> None:
    put(programs.root, UNIT, runs(OLD))
    unit = File(UNIT, content=runs(NEW))
    found = programs.check(unit, UnusedPrograms(FOLDER))
    assert found.verdict == "change"
    assert found.event["changes"] == {"unused": [[Path(OLD).name], []]}
    assert len(left(programs)) == 5


def test_a_program_of_many_files_goes_when_the_unit_runs_an_archive(programs: Any) -> None:
    put(programs.root, f"{FOLDER}/start.py")
    put(programs.root, f"{FOLDER}/spark_cluster/node/paths.py")
    put(programs.root, UNIT, runs(f"{FOLDER}/start.py"))
    programs.apply(UnusedPrograms(FOLDER))
    assert {"start.py", "spark_cluster"} <= left(programs)
    put(programs.root, UNIT, runs(NEW))
    programs.apply(UnusedPrograms(FOLDER))
    assert not {"start.py", "spark_cluster"} & left(programs)


def test_a_masked_unit_runs_nothing(programs: Any) -> None:
    unit = programs.root / UNIT.lstrip("/")
    unit.unlink()
    unit.symlink_to("/dev/null")
    programs.apply(UnusedPrograms(FOLDER))
    assert left(programs) == KEPT | {Path(GUARD).name}


def test_without_the_folder_there_is_nothing_to_do(node: Any) -> None:
    assert node.apply(UnusedPrograms(FOLDER)).verdict == "ok"
