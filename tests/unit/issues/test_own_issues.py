"""Known issues of the user's project, next to those that ship."""

from __future__ import annotations

from pathlib import Path

import factories
import pytest
from click.testing import CliRunner
from example_pages import write_files

from spark_cluster.cli import cli
from spark_cluster.config.project import Project
from spark_cluster.errors import InvalidFile, Refused
from spark_cluster.importers import commandline
from spark_cluster.issues.entries import catalogue, for_check, recognise, shipped
from spark_cluster.issues.rules import lint

LINE = "OSError: /models/gemma-3-27b-it/config.json: No such file or directory"
COMMAND = "docker run registry.example/vllm:1 vllm serve org/m"

ISSUE = """
[[issue]]
id = "own-thing"
title = "something of ours"
severity = "warning"
symptom = "it is slow"
cause = "we did it"
fix = "undo it"
source = "ours"
confidence = "high"
keyed_on = ["flag"]
"""


def put(project_folder: Path, text: str, name: str = "x.toml") -> Path:
    return factories.put(project_folder / "known_issues" / name, text)


def test_the_example_of_the_page(project_folder: Path) -> None:
    assert catalogue() == shipped(), "read before there is a file"
    write_files("extend-known-issue.md", project_folder)
    with Project(project_folder).in_use():
        assert [id for id in catalogue() if id not in shipped()] == [
            "nas-not-mounted",
            "our-proxy-image",
        ]
        (issue,) = recognise(LINE)
        assert issue.id == "nas-not-mounted"
        found = {match.id for match in lint(commandline.parse(COMMAND))}
        assert "our-proxy-image" in found
        cleared = COMMAND.replace("run", "run -e HTTPS_PROXY=x")
        found = {match.id for match in lint(commandline.parse(cleared))}
        assert "our-proxy-image" not in found
        assert [issue.id for issue in for_check("nas.mounted")] == ["nas-not-mounted"]


def test_commands_find_them(project_folder: Path, tmp_path: Path) -> None:
    write_files("extend-known-issue.md", project_folder)
    log = tmp_path / "engine.log"
    log.write_text(f"INFO 07-01 12:00:00 [x.py:1] starting\n{LINE}\n")
    run = CliRunner().invoke
    done = run(cli, ["--project", str(project_folder), "explain", str(log)])
    assert "nas-not-mounted" in done.output, done.output
    done = run(cli, ["--project", str(project_folder), "explain", "--about", "our-proxy-image"])
    assert done.exit_code == 0, done.output
    done = run(cli, ["--project", str(tmp_path), "explain", str(log)])
    assert "nas-not-mounted" not in done.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[issue", "x.toml: not TOML"),
        (
            ISSUE.replace("own-thing", "shm-too-small-for-two") + "rule = true\n",
            "shm-too-small-for-two: rule: a rule is a function of spark-cluster",
        ),
        (ISSUE + 'checks = ["a.b"]\n' + ISSUE + 'checks = ["a.b"]\n', "own-thing: this id is"),
        (ISSUE.replace("own-thing", "ptxas-too-old") + 'checks = ["a.b"]\n', "this id is taken"),
    ],
)
def test_wrong_ones(project_folder: Path, text: str, expected: str) -> None:
    put(project_folder, text)
    with pytest.raises(InvalidFile) as caught:
        catalogue()
    assert expected in str(caught.value)


def test_a_check_that_ships_keeps_its_cause(project_folder: Path) -> None:
    check = next(id for issue in shipped().values() for id in issue.checks)
    before = for_check(check)
    put(project_folder, ISSUE + f'checks = ["{check}"]\n')
    with Project(project_folder).in_use():
        assert for_check(check) == before


def test_a_run_checks_them_before_it_connects(project_folder: Path) -> None:
    put(project_folder, "[[issue")
    (project_folder / "inventory.yaml").write_text("nodes: {a: {address: 127.0.0.1, port: 1}}\n")
    (project_folder / "p.py").write_text("def main(play): pass\n")
    done = CliRunner().invoke(
        cli, ["--project", str(project_folder), "playbook", str(project_folder / "p.py")]
    )
    assert "x.toml: not TOML" in str(done.exception)


def test_what_others_can_write_is_not_read(project_folder: Path) -> None:
    put(project_folder, ISSUE + 'checks = ["a.b"]\n').chmod(0o666)
    with pytest.raises(
        Refused, match=r"known_issues/ of the project is not used: .*writable by everyone"
    ):
        catalogue()
