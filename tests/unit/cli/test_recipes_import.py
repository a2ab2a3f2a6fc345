"""`recipes import` as a shell sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from json_schema import document as fits

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile, SparkClusterError, UsageError

LINE = (
    "docker run -d --gpus all -p 8000:8000 -e HF_TOKEN=s3cret -v ~/m:/m example/vllm:1 "
    "vllm serve example/Wren-7B --max-model-len 4096 --gpu-memory-utilization 0.6"
)
VLLM_RECIPE = """\
model: {model_id: example/Wren-7B, base_args: [--trust-remote-code]}
variants:
  default: {precision: bf16}
  fp8: {model_id: example/Wren-7B-FP8, docker_image: "example/vllm:2"}
features:
  tools: {args: [--enable-auto-tool-choice]}
opt_in_features: [tools]
"""


class Import:
    """`recipes import` in a folder that is the project; raises what it raises."""

    def __init__(self, ask, folder: Path) -> None:
        self.ask, self.folder = ask, folder

    def __call__(self, *words: str, stdin: str = "") -> str:
        return self.ask("recipes", "import", *words, columns="100", stdin=stdin).stdout

    @property
    def written(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("recipes/*"))


@pytest.fixture
def run(ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    monkeypatch.chdir(tmp_path)
    return Import(ask, tmp_path)


def test_a_command_line_becomes_a_recipe_of_the_project(run: Import) -> None:
    said = run("--command", LINE)
    assert run.written == ["wren-7b.yaml"]
    recipe = load_recipe("wren-7b", Project(run.folder))
    assert recipe.model.name == "example/Wren-7B"
    assert recipe.engine_args == {"max-model-len": 4096}
    assert "command line → recipes/wren-7b.yaml" in said
    assert "kept as it is  --max-model-len" in said
    assert "HF_TOKEN (value not shown)" in said
    assert "spark-cluster lint wren-7b" in said
    assert "s3cret" not in said
    assert "s3cret" not in (run.folder / "recipes/wren-7b.yaml").read_text()
    assert all(len(line) <= 101 for line in said.splitlines())


def test_json(run: Import) -> None:
    document = fits("recipes-import", run("--command", LINE, "--name", "wren", "--json"))
    assert document["ok"] is True
    assert document["name"] == "wren"
    assert document["kind"] == "command line"
    assert document["file"] == str(run.folder / "recipes/wren.yaml")
    assert document["kept"] == ["--max-model-len"]
    assert {"what": "--gpus all", "where": "always so"} in document["carried"]
    assert {one["what"] for one in document["left_out"]} >= {"--detach", "--publish 8000:8000"}


def test_nothing_is_replaced_without_being_told(run: Import) -> None:
    run("--command", LINE)
    path = run.folder / "recipes/wren-7b.yaml"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"wren-7b\.yaml exists") as caught:
        run("--command", LINE)
    assert "--force" in caught.value.hint
    assert path.read_text() == "mine"
    run("--command", LINE, "--force")
    assert path.read_text().startswith("# Imported from a pasted command line.")
    assert run.written == ["wren-7b.yaml"]


def test_a_shipped_recipe_is_hidden_only_by_name(run: Import) -> None:
    line = "vllm serve example/lab-paris"
    with pytest.raises(UsageError, match="lab-paris already, which this one would hide"):
        run("--command", line)
    assert run.written == []
    run("--command", line, "--name", "lab-paris")
    assert run.written == ["lab-paris.yaml"]


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


def test_a_recipe_is_not_written_to_standard_output(run: Import) -> None:
    with pytest.raises(UsageError, match="expected a file or folder"):
        run("--command", LINE, "--output", "-")
    assert [path.name for path in run.folder.iterdir()] == []


def test_a_file_with_a_variant_and_a_feature(run: Import) -> None:
    source = run.folder / "wren.yaml"
    source.write_text(VLLM_RECIPE)
    run(str(source), "--variant", "fp8", "--feature", "tools")
    recipe = load_recipe("wren-7b-fp8", Project(run.folder))
    assert recipe.image.ref == "example/vllm:2"
    assert recipe.engine_args == {"trust-remote-code": True, "enable-auto-tool-choice": True}


def test_standard_input(run: Import) -> None:
    run("-", stdin=VLLM_RECIPE)
    assert run.written == ["wren-7b.yaml"]
    run("-", "--name", "line", stdin=LINE)
    text = (run.folder / "recipes/line.yaml").read_text()
    assert text.startswith("# Imported from standard input.")


def test_standard_input_that_is_wrong_names_no_other_file(run: Import) -> None:
    with pytest.raises(InvalidFile) as caught:
        run("-", stdin="vllm serve m \\\n --seed")
    assert caught.value.where == "standard input:2"


def test_model_and_image(run: Import) -> None:
    run("--command", "vllm serve /data/wren", "--model", "example/Wren", "--image", "e/vllm:3")
    recipe = load_recipe("wren", Project(run.folder))
    assert (recipe.model.name, recipe.model.path) == ("example/Wren", "/data/wren")
    assert recipe.image.ref == "e/vllm:3"


def test_a_file_that_is_missing_is_not_said_to_be_of_no_known_kind(run: Import) -> None:
    with pytest.raises(SparkClusterError, match="no such file") as caught:
        run("MISSING")
    assert caught.value.hint.startswith("give the path of a file")
    assert "tried" not in caught.value.hint


def test_a_folder_that_cannot_be_written(run: Import) -> None:
    (run.folder / "recipes").write_text("a file")
    with pytest.raises(UsageError, match="cannot be written"):
        run("--command", LINE)
