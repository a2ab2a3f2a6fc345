"""Every command of README.md is run by `make test`, or stands in readme_commands.toml with the
reason why not; so are those of docs/ that are listed there."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import readme
from bench_records import dual_record, write_run
from cases import cases
from factories import put
from program import invoke, on_path

CI = ".ci/run"
COMPLETION = 'eval "$(spark-cluster completion bash)"'

TABLES = cases(__file__, "readme_commands.toml")
AS_IT_STANDS, RUN_BY = TABLES["as_it_stands"], TABLES["run_by"]

ANSWERS = "192.0.2.1\n192.0.2.2\n\n\n"
"""To the questions of `init`: two addresses, no more, and the user."""

LEFT_OUT = {"soak", "gpu", "skip"}
"""Marks of tests that `make test` leaves out."""


def runs(file: str) -> set[str]:
    """Return the commands of the pages that a file of tests runs: their words are unpacked into an
    argument list, in the words `*readme.words("spark-cluster top")`."""
    tree = ast.parse((readme.CHECKOUT / file).read_text())
    return set() if _left_out(tree) else set(_unpacked(tree))


def _left_out(node: ast.AST) -> bool:
    """Return whether a test, or a file by its `pytestmark`, has a mark of `LEFT_OUT`."""
    marks: list[ast.AST] = list(getattr(node, "decorator_list", []))
    marks += [
        part.value
        for part in getattr(node, "body", [])
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "pytestmark"
    ]
    parts = [part for mark in marks for part in ast.walk(mark)]
    return any(isinstance(part, ast.Attribute) and part.attr in LEFT_OUT for part in parts)


def _unpacked(node: ast.AST) -> Iterator[str]:
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.FunctionDef) and _left_out(part):
            continue
        if isinstance(part, ast.Starred):
            yield from (
                call.args[0].value
                for call in ast.walk(part)
                if isinstance(call, ast.Call)
                and ast.unparse(call.func) == "readme.words"
                and isinstance(call.args[0], ast.Constant)
            )
        yield from _unpacked(part)


def test_every_command_is_in_one_table():
    tables = [*AS_IT_STANDS, *RUN_BY, *TABLES["not_run"]]
    assert readme.COMMANDS <= set(tables) <= readme.DOCUMENTED
    assert len(tables) == len(set(tables))


def test_what_ci_runs():
    lines = {line.removeprefix("exec ") for line in (readme.CHECKOUT / CI).read_text().splitlines()}
    assert {line for line, (file, _) in RUN_BY.items() if file == CI} == lines & set(RUN_BY)


def test_every_file_runs_the_commands_that_the_table_says():
    for file in {file for file, _ in RUN_BY.values()} - {CI}:
        told = {line for line, (named, _) in RUN_BY.items() if named == file}
        assert told <= runs(file), file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user with three recorded runs."""
    made = tmp_path_factory.mktemp("readme")
    for name in ("A", "B", "RUN"):
        write_run(made / "bench-results" / name, dual_record(depths=(0,), loads=(1,)))
    return made


@pytest.mark.parametrize("line", AS_IT_STANDS)
def test_as_it_stands_on_its_page(line, folder):
    assert line in readme.DOCUMENTED
    shown = f"{line} && complete -p spark-cluster" if line == COMPLETION else line
    environment = on_path(folder) | {"COLUMNS": "80", "PYTHONPATH": readme.SOURCES}
    done = subprocess.run(
        ["bash", "-c", shown], check=False, capture_output=True, text=True, cwd=folder,
        env=environment, input=ANSWERS,
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "Traceback" not in printed
    assert AS_IT_STANDS[line] in done.stdout


def test_the_plan_is_the_one_that_the_readme_shows(tmp_path):
    line = "spark-cluster plan gpt-oss-120b --tp 2 --offline"
    (shown,) = [block for block in readme.blocks("") if block.startswith(f"$ {line}\n")]
    printed = invoke(*readme.words(line), project=tmp_path, columns="80").stdout
    told = {text.rstrip() for text in printed.splitlines()}
    assert set(shown.splitlines()[1:]) - {"..."} <= told


def test_make_clean(tmp_path):
    venv, cache = tmp_path / "venv", tmp_path / "cache"
    asked = tmp_path / "asked"
    put(venv / "bin/spark-cluster", f'#!/bin/sh\necho "$@" > {asked}\n', 0o755)
    put(cache / "lab/prepared/base", "")
    kept = put(cache / "other", "")
    (tmp_path / ".venv").symlink_to(venv)
    readme.make(*readme.words("make clean"), f"CACHE={cache}", venv=venv, cwd=tmp_path)
    assert asked.read_text() == "lab down --wipe\n"
    assert set(tmp_path.iterdir()) == {cache, asked}
    assert list(cache.iterdir()) == [kept]
