"""Parts that an import lacks stay with the recipe; builds of other tools are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.importer import Choice, Imported
from spark_cluster.importers.templated import fill
from spark_cluster.importers.vllm_recipes import spark_commands

MODS = """\
recipe_version: "1"
name: Wren
container: vllm-node
mods: [mods/fix-wren]
build_args: [--tf5]
env: []
defaults: {tensor_parallel: 2}
command: |
  vllm serve example/wren -tp {tensor_parallel} --chat-template wren.jinja --wren-mode fast \\
    --tool-call-parser wren
"""

MODEL_FILE = """\
meta: {title: Lark, tasks: [text]}
model: {model_id: example/Lark-70B}
features: {}
variants:
  default: {precision: bf16}
  nvfp4:
    model_id: example/Lark-70B-NVFP4
    precision: nvfp4
    hardware_overrides:
      dgx_spark_gb10: {extra_args: [--max-num-seqs, "4"]}
  fp8: {precision: fp8, model_id: example/Lark-70B-FP8}
guide: |
  ## Install
  ```bash
  vllm serve example/other
  ```
  ### DGX Spark (GB10)
  #### One node
  ```bash
  # Use container: example/spark-vllm:dated
  vllm serve example/Lark-70B-NVFP4 --max-model-len 65536
  ```
  Ask it:
  ```bash
  curl http://localhost:8000/v1/models
  ```
  #### Two nodes
  ```
  vllm serve example/Lark-70B-NVFP4 -tp 2
  ```
  ## Elsewhere
  ```
  vllm serve example/Lark-70B -tp 8
  ```
"""


def made(tmp_path: Path, text: str, choice: Choice | None = None) -> tuple[Recipe, Imported]:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    imported = write(read_file(path, choice))
    target = tmp_path / f"{imported.name}.yaml"
    target.write_text(imported.text)
    return load_recipe(target, Project(tmp_path)), imported


def blocking(recipe: Recipe) -> set[str]:
    return {entry.what for entry in recipe.not_carried_over if entry.blocks}


def test_mods_and_what_only_they_bring(tmp_path: Path) -> None:
    recipe, imported = made(tmp_path, MODS)
    assert blocking(recipe) == {"--chat-template wren.jinja", "--wren-mode fast"}
    others = {entry.what for entry in recipe.not_carried_over if not entry.blocks}
    assert others == {"image vllm-node", "mods: mods/fix-wren", "build_args: --tf5"}
    assert "recipe_version: 1" in imported.text, "what is not needed stays a comment"
    assert "env: found a list, read as an empty mapping" in imported.notes


def test_without_mods_an_unknown_flag_is_the_images_own_matter(tmp_path: Path) -> None:
    text = MODS.replace("mods: [mods/fix-wren]\n", "").replace("vllm-node", "example/vllm-node")
    recipe, _ = made(tmp_path, text)
    assert blocking(recipe) == set()


def test_a_model_file_of_images_is_no_chat(tmp_path: Path) -> None:
    text = "meta: {tasks: [omni]}\nmodel: {model_id: example/Paint}\nomni: {tasks: %s}\n"
    recipe, _ = made(tmp_path, text % "[t2i]")
    assert blocking(recipe) == {"generation of images"}
    recipe, _ = made(tmp_path, text % "[{id: t2a, curl: x}]")
    assert blocking(recipe) == {"generation of speech"}
    recipe, _ = made(tmp_path, text % "3")
    assert blocking(recipe) == set()


def test_the_variants_and_commands_for_a_spark_are_offered(tmp_path: Path) -> None:
    _, imported = made(tmp_path, MODEL_FILE)
    assert [offer.option for offer in imported.offers] == [
        "--variant nvfp4",
        "--variant guide",
        "--variant guide-2",
    ]
    assert imported.offers[1].what == "the guide's command, Install: DGX Spark (GB10): One node"


def test_a_command_of_the_guide(tmp_path: Path) -> None:
    recipe, _ = made(tmp_path, MODEL_FILE, Choice("guide"))
    assert recipe.model.name == "example/Lark-70B-NVFP4"
    assert recipe.model.base == "example/Lark-70B"
    assert recipe.image.ref == "example/spark-vllm:dated"
    assert recipe.engine_args == {"max-model-len": 65536}
    recipe, _ = made(tmp_path, MODEL_FILE, Choice("guide-2"))
    assert recipe.tensor_parallel.default == 2
    with pytest.raises(UsageError, match="the guide has 2 commands for a DGX Spark"):
        made(tmp_path, MODEL_FILE, Choice("guide-3"))
    with pytest.raises(UsageError, match="--feature"):
        made(tmp_path, MODEL_FILE, Choice("guide", ("text_only",)))


@pytest.mark.parametrize("guide", [None, 3, "", "## DGX Spark\n```\nvllm serve 'x\n```\n", "```"])
def test_a_guide_without_a_command(guide: object) -> None:
    assert spark_commands(guide) == []


def test_a_key_given_twice(tmp_path: Path) -> None:
    text = "container: example/c\ncommand: vllm serve m\ncontainer: example/c\n"
    _, imported = made(tmp_path, text)
    assert any("container: given twice" in note for note in imported.notes)
    with pytest.raises(InvalidFile, match="given twice"):
        made(tmp_path, text.replace("example/c\n", "example/d\n", 1))


def test_a_shells_own_variable_is_no_placeholder(tmp_path: Path) -> None:
    text = (
        "container: example/c\ndefaults: {n: 2}\n"
        "command: |\n  export A=${B};\n  vllm serve m -tp {n}\n"
    )
    recipe, _ = made(tmp_path, text)
    assert recipe.tensor_parallel.default == 2


def test_a_type_that_can_mean_one_thing_only(tmp_path: Path) -> None:
    text = (
        "recipe_version: 2\nname: 27\nmodel: example/m\nruntime: vllm\ncontainer: example/c\n"
        "min_nodes: '2'\nmetadata: []\n"
    )
    recipe, imported = made(tmp_path, text)
    assert (recipe.name, recipe.tensor_parallel.min) == ("27", 2)
    assert {note.partition(":")[0] for note in imported.notes} >= {"name", "min_nodes", "metadata"}
    with pytest.raises(InvalidFile, match="min_nodes: found 'two', expected a whole number"):
        made(tmp_path, text.replace("'2'", "two"))


def test_empty_lists_in_a_model_file(tmp_path: Path) -> None:
    text = MODEL_FILE.replace("features: {}", "features: []").replace(
        "{precision: bf16}", "{precision: bf16, extra_env: [], extra_args: {}}"
    )
    recipe, imported = made(tmp_path, text)
    assert recipe.model.name == "example/Lark-70B"
    assert "features: found a list, read as an empty mapping" in imported.notes


def test_a_comment_with_an_endless_word_names_no_image() -> None:
    """A registry's file is read without anyone looking at it: no expression may take minutes."""
    for word, image in (("org/vllm:1", "org/vllm:1"), ("/" * 19_000, "")):
        guide = f"# DGX Spark\n```\n# image {word}\nvllm serve org/m\n```\n"
        (command,) = spark_commands(guide)
        assert command.launch.image == image


def test_many_places_of_a_long_value_are_refused_before_they_are_filled() -> None:
    """200 KB of a recipe would stand for gigabytes of a command."""
    values = {"a": "x" * 1000}
    with pytest.raises(InvalidFile, match="longer than 200000 characters"):
        fill("vllm serve m " + "{a}" * 201, values, "r.yaml:1")
    assert fill("vllm serve {a}", values, "r.yaml:1").endswith("x" * 1000)
