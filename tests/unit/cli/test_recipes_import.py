"""`recipes import` as a shell sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import put

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile, SparkClusterError, UsageError

LINE = "docker run --gpus all example/vllm:1 vllm serve example/Wren-7B"


class Import:
    """`recipes import` in a folder that is the project; raises what it raises."""

    def __init__(self, ask, folder: Path) -> None:
        self.ask, self.folder = ask, folder

    def __call__(self, *words: str, stdin: str = "") -> str:
        return self.ask("recipes", "import", *words, columns="100", stdin=stdin).stdout


@pytest.fixture
def run(ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    monkeypatch.chdir(tmp_path)
    return Import(ask, tmp_path)


def test_nothing_is_replaced_without_being_told(run: Import) -> None:
    path = put(run.folder / "recipes/wren-7b.yaml", "mine")
    with pytest.raises(UsageError, match=r"wren-7b\.yaml exists") as caught:
        run("--command", LINE)
    assert "--force" in caught.value.hint
    assert path.read_text() == "mine"
    run("--command", LINE, "--force")
    assert path.read_text().startswith("# Imported from a pasted command line.")
    assert list(path.parent.iterdir()) == [path]


def test_a_shipped_recipe_is_hidden_only_by_name(run: Import) -> None:
    with pytest.raises(UsageError, match="lab-paris already, which this one would hide"):
        run("--command", "vllm serve example/lab-paris")
    assert not (run.folder / "recipes").exists()


@pytest.mark.parametrize(
    ("output", "expected"),
    [("there", "there/wren-7b.yaml"), ("there/", "there/wren-7b.yaml"), ("a/b.yaml", "a/b.yaml")],
)
def test_output(run: Import, output: str, expected: str) -> None:
    told = run("--command", LINE, "--output", output)
    path = run.folder / expected
    assert f"Next: spark-cluster lint {expected}" in told, "it is not among the project's recipes"
    assert load_recipe(path, Project(run.folder)).name == path.stem
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o644


def test_standard_input_that_is_wrong_names_no_other_file(run: Import) -> None:
    with pytest.raises(InvalidFile) as caught:
        run("-", stdin="vllm serve m \\\n --seed")
    assert caught.value.where == "standard input:2"


def test_a_file_that_is_missing_is_not_said_to_be_of_no_known_kind(run: Import) -> None:
    with pytest.raises(SparkClusterError, match="no such file") as caught:
        run("MISSING")
    assert caught.value.hint.startswith("give the path of a file")
    assert "tried" not in caught.value.hint


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "cannot be written"), (("--output", "-"), "expected a file or folder")],
)
def test_where_no_recipe_can_be_written(run: Import, words: tuple[str, ...], said: str) -> None:
    file = put(run.folder / "recipes", "a file")
    with pytest.raises(UsageError, match=said):
        run("--command", LINE, *words)
    assert list(run.folder.iterdir()) == [file]
