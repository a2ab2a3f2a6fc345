"""Checks of the user's project, over answers of real agents."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import factories
import pytest
from cases import each_case, each_row
from doctor_samples import seen
from example_pages import write_files

from spark_cluster.config.extension import using
from spark_cluster.config.project import Project
from spark_cluster.doctor import examine
from spark_cluster.doctor.observations import Context, Observations, question, sources
from spark_cluster.errors import InvalidFile, Refused, UsageError
from spark_cluster.runner.session import Session

CHECK = """\
from spark_cluster.doctor.check import check
from spark_cluster.doctor.observations import NodeSource, ok

@check("own.thing", title="it is there", needs=("hosts",), effect="risks")
def thing(seen):
    return ok("yes")
"""
FINDMNT = "#!/bin/sh\ntest -e {root}/mounted && echo nas:/models\n"


def put(project_folder: Path, text: str, name: str = "own.py") -> Path:
    return factories.put(project_folder / "checks" / name, text)


def observed(agent: Callable[..., Session], root: Path, **options: Any) -> Observations:
    """The project's sources, asked of a real agent."""
    context = Context(own=examine.sources_of_checks())
    mine = {name: context.own[name] for name in context.own}
    asked = question(context)
    wanted = {
        kind: {name: what for name, what in asked[kind].items() if name in mine}
        for kind in ("commands", "files", "trees")
    }
    answer = agent().request("gather", **wanted, **options)
    answer["files"]["hosts"] = "127.0.0.1 localhost\n"
    return Observations("spark1", answer, _sources=sources(context))


def results(found: Observations) -> dict[str, Any]:
    return {c.id: c.result(found, found.node) for c in examine.checks()}


def test_the_examples_of_the_pages(project_folder, agent, tmp_path):
    write_files("extend-check.md", project_folder)
    write_files("extend-known-issue.md", project_folder)
    root = tmp_path / "spark1"
    (root / "usr/local/bin").mkdir(parents=True)
    findmnt = root / "usr/local/bin/findmnt"
    findmnt.write_text(FINDMNT.format(root=root))
    findmnt.chmod(0o755)
    found = results(observed(agent, root))
    assert (found["nas.mounted"].status, found["nas.name"].status) == ("fail", "warn")
    assert found["nas.mounted"].issue == "nas-not-mounted"
    assert found["nas.mounted"].fix == "spark-cluster exec -b -l spark1 -- mount /models"
    assert found["nas.mounted"].looked_at == "findmnt /models"
    (root / "mounted").write_text("")
    found = results(observed(agent, root))
    assert found["nas.mounted"].found == "/models is nas:/models"
    late = observed(agent, root)
    late.answer["commands"]["nas_mount"] = None
    assert results(late)["nas.mounted"].status == "unknown"


def test_doctor_runs_them_with_its_own(project_folder):
    put(project_folder, CHECK)
    ids = [result.id for result in examine.judge([seen()])]
    assert len(ids) == len(examine.NODE) + 1
    assert "own.thing" in ids
    examine.must_be_known(["own", "own.thing", "link", "pair.mtu", "system.reachable"])
    with pytest.raises(UsageError, match="no such area or check") as caught:
        examine.must_be_known(["other"])
    assert "own" in caught.value.hint
    with using(None):
        assert len(examine.judge([seen()])) == len(examine.NODE)


def test_known_issues_with_a_check_of_logs(project_folder):
    text = factories.KNOWN_ISSUE.replace('"info"', '"error"')
    text += """log = [{has = "flux capacitor is empty"}]
samples = ["E: flux capacitor is empty"]
log_check = {id = "own.flux", title = "the flux capacitor is full"}
"""
    path = factories.put(project_folder / "known_issues/x.toml", text)
    assert "flux capacitor is empty" in examine.own_words()
    (check,) = examine.checks()
    assert check.result(seen(), "spark1").status == "ok"
    untitled = path.read_text().replace(', title = "the flux capacitor is full"', "")
    path.rename(path.with_name("y.toml")).write_text(untitled)
    title_is_missing = pytest.raises(InvalidFile, match=r"own-thing: log_check\.title: missing")
    with Project(project_folder).in_use(), title_is_missing:
        examine.checks()


@each_row(__file__, "own_checks.toml", "one_that_fails_is_unknown")
def test_one_that_fails_is_unknown(project_folder, body, expected):
    put(project_folder, CHECK.replace('ok("yes")', body))
    found = seen()
    found.answer["commands"]["gpu"] = None
    (check,) = examine.checks()
    result = check.result(found, "spark1")
    assert result.status == "unknown"
    assert re.search(expected, result.found)


@each_case(__file__, "wrong_checks.json")
def test_wrong_ones(project_folder, case):
    put(project_folder, CHECK.replace(case["old"], case["new"]))
    with pytest.raises(InvalidFile) as caught:
        examine.checks()
    assert re.search(case["expected"], str(caught.value)), str(caught.value)


def test_two_of_one_id(project_folder):
    put(project_folder, CHECK)
    put(project_folder, CHECK, "second.py")
    with pytest.raises(InvalidFile, match=r"second\.py:4: check own\.thing: id: there is a check"):
        examine.checks()


def test_checks_of_another_program_are_not_run(project_folder):
    put(project_folder, "raise SystemExit(3)\n")
    assert examine.checks() == ()


@pytest.mark.parametrize("part", [".", "checks", "checks/own.py"])
def test_what_others_can_write_is_not_run(project_folder, part):
    put(project_folder, CHECK + f"open({str(project_folder / 'ran')!r}, 'w')\n")
    (project_folder / part).chmod(0o777)
    with pytest.raises(
        Refused, match=r"checks/ of the project is not used: .*writable by everyone"
    ):
        examine.checks()
    assert not (project_folder / "ran").exists()
