"""Every command of README.md is run by `make test`, or stands in `NOT_RUN` with the reason; so are
those of docs/ that are listed here."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import readme
from bench_records import dual_record, write_run
from factories import put
from program import invoke, on_path

CI = ".ci/run"
LAB, PROCESS = "tests/lab", "tests/process"
COMPLETION = 'eval "$(spark-cluster completion bash)"'

AS_IT_STANDS = {
    "spark-cluster init": "inventory.yaml (spark1, spark2)",
    COMPLETION: "complete -o nosort -F _spark_cluster_completion spark-cluster",
    "spark-cluster completion --help": "{bash|zsh|fish}",
    "spark-cluster version": "paramiko",
    "spark-cluster lab tools --list": "systemd-container",
    "spark-cluster plan gpt-oss-120b --tp 2 --offline": "✔ fits  gpt-oss-120b",
    "spark-cluster bench suites": "One node, two nodes (TP=2), and two replicas",
    "spark-cluster bench report bench-results/RUN": "bench-results/RUN/report/report.html",
    "spark-cluster bench compare bench-results/RUN --published": "published figures",
    "spark-cluster bench compare bench-results/A bench-results/B": "B is judged against A",
    "python -m benchmarks.predictions": "two Sparks, one",
}
"""Command to a part of what it prints: each is run by a shell, as it is, in this file."""

ANSWERS = "192.0.2.1\n192.0.2.2\n\n\n"
"""To the questions of `init`: two addresses, no more, and the user."""

RUN_BY = {
    "make demo": (CI, ""),
    "make test": (CI, ""),
    "make demo-bench": (f"{LAB}/test_bench_tools.py", "another suite named `lab`: one server"),
    "make bench": (f"{LAB}/test_main_job.py", "BENCH: two tools, two nodes, one round"),
    "make docs": (f"{PROCESS}/docs/test_site.py", "with three links broken, which it finds"),
    "make clean": (f"{PROCESS}/docs/test_readme.py", "a cache of the test's own, no lab in it"),
    "python -m benchmarks.commands": (f"{LAB}/test_main_job.py", "one command, once"),
    "pipx install .": (f"{PROCESS}/packaging/test_wheel.py", "pip, which pipx calls; no index"),
    "pipx install '.[bench]'": (f"{PROCESS}/packaging/test_wheel.py", "the same, --dry-run"),
    "spark-cluster setup": (f"{LAB}/test_first_up.py", "the answers as options"),
    "spark-cluster trust": (
        f"{PROCESS}/runner/test_trust.py",
        "an sshd here; the consent by --yes",
    ),
    "spark-cluster up --tp 2": (f"{LAB}/test_main_job.py", "the lab"),
    "spark-cluster verify": (f"{LAB}/test_recipe_fields.py", "the lab; three checks"),
    "spark-cluster dashboard": (
        f"{PROCESS}/cli/test_dashboard_cli.py",
        "a node that is off; --open",
    ),
    "spark-cluster ray up": (f"{LAB}/test_ray_cluster.py", "the lab"),
    "spark-cluster ray submit --working-dir train -- python3 train.py": (
        f"{LAB}/test_ray_cluster.py",
        "the lab; gloo on CPUs",
    ),
    "spark-cluster ray logs -f JOB": (f"{LAB}/test_ray_cluster.py", "the lab; a job of its own"),
    "spark-cluster ray status": (f"{LAB}/test_ray_cluster.py", "the lab; --json"),
    "spark-cluster ray down": (f"{LAB}/test_ray_cluster.py", "the lab; --json"),
    "spark-cluster bench fabric": (f"{LAB}/test_bench_fabric.py", "the lab; gloo on CPUs"),
    "spark-cluster bench run dual": (f"{LAB}/test_bench.py", "the lab; a suite of four cells"),
    "spark-cluster bench repeat THEIRS --check": (f"{LAB}/test_bench_fabric.py", "one's own run"),
    "spark-cluster top": (f"{LAB}/test_top.py", "the lab; four samples"),
    "spark-cluster provision": (f"{LAB}/test_provision.py", "the lab"),
    "spark-cluster provision --check --diff": (f"{LAB}/test_provision.py", "the lab"),
    "spark-cluster provision --limit spark2 --ask-password": (
        f"{LAB}/test_provision.py",
        "the lab; the password from a variable",
    ),
    "spark-cluster playbook greet.py --check --diff": (f"{LAB}/test_provision.py", "the lab"),
    "spark-cluster models pull ORG/NAME": (f"{LAB}/test_first_up.py", "a hub on this machine"),
    "spark-cluster keys add NAME": (f"{LAB}/test_main_job.py", "the lab"),
    "spark-cluster lab down": (f"{LAB}/test_fresh_machine.py", "a machine whose lab is down"),
}
"""Command to the file that runs it, and what stands for what its page means."""

NOT_RUN = {
    "make gpu": "its tests need an NVIDIA GPU, and are skipped without one",
    "uv tool install .": "uv is not on the machine; it builds and installs what pipx does",
}

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
    tables = [*AS_IT_STANDS, *RUN_BY, *NOT_RUN]
    assert readme.COMMANDS <= set(tables) <= readme.DOCUMENTED
    assert len(tables) == len(set(tables))


def test_what_ci_runs():
    lines = {line.removeprefix("exec ") for line in (readme.CHECKOUT / CI).read_text().splitlines()}
    assert {line for line, (file, _) in RUN_BY.items() if file == CI} == lines & set(RUN_BY)


def test_every_file_runs_the_commands_that_the_table_says():
    for file in {file for file, _ in RUN_BY.values()} - {CI}:
        told = {line for line, (named, _) in RUN_BY.items() if named == file}
        assert told <= runs(file), file


@pytest.mark.parametrize(
    "source",
    [
        "# user(*readme.words('make test'))",
        "def test_it():\n    '''It runs `make test`.'''\n    readme.words('make test')",
        "@pytest.mark.soak\ndef test_it():\n    user(*readme.words('make test'))",
        "pytestmark = [pytest.mark.lab, pytest.mark.gpu]\nuser(*readme.words('make test'))",
    ],
)
def test_a_mention_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str):
    monkeypatch.setattr(readme, "CHECKOUT", tmp_path)
    put(tmp_path / "test_mention.py", source)
    assert runs("test_mention.py") == set()


def test_commands_of_a_page():
    """Of blocks for a shell, with or without a prompt, and of the text."""
    page = (
        "```\nspark-cluster a --b   # why\nmake c\n```\n"
        "```text\n$ spark-cluster -i lab d\nok\n```\n```yaml\ne: f\n```\n"
        "As `make g` and `.venv/bin/spark-cluster lab h` do it, `up` and `make` are no lines.\n"
    )
    known = {"spark-cluster a --b", "make c", "spark-cluster d", "make g", "spark-cluster lab h"}
    assert readme.commands(page) == known


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user with three recorded runs."""
    made = tmp_path_factory.mktemp("readme")
    for name in ("A", "B", "RUN"):
        write_run(made / "bench-results" / name, dual_record(depths=(0,), loads=(1,)))
    return made


@pytest.mark.parametrize("line", AS_IT_STANDS)
def test_as_it_stands_on_its_page(line: str, folder: Path):
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


def test_the_plan_is_the_one_that_the_readme_shows(tmp_path: Path):
    line = "spark-cluster plan gpt-oss-120b --tp 2 --offline"
    (shown,) = [block for block in readme.blocks("") if block.startswith(f"$ {line}\n")]
    printed = invoke(*readme.words(line), project=tmp_path, columns="80").stdout
    told = {text.rstrip() for text in printed.splitlines()}
    assert set(shown.splitlines()[1:]) - {"..."} <= told


def test_make_clean(tmp_path: Path):
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
