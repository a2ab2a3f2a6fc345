"""A recipe saved with changes: it is read again as what was saved."""

import json
from typing import Any

import program
import pytest

from spark_cluster.config.launch import override, read_overrides
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe, save, text
from spark_cluster.errors import UsageError
from spark_cluster.importers.vllm_flags import kinds

SHIPPED = Project()
RECIPE = "gemma4-31b-nvfp4"


def of(recipe: Recipe) -> dict[str, Any]:
    """What makes two recipes the same, but for their names."""
    return recipe.model_dump(mode="json", exclude={"name"})


def changed(*options: str) -> Recipe:
    recipe = load_recipe(RECIPE, SHIPPED)
    return override(recipe, read_overrides(options, "vllm", kinds("vllm")))


@pytest.mark.parametrize("name", SHIPPED.list("recipes"))
def test_every_shipped_recipe_is_read_again_as_it_was(name, tmp_path):
    project = Project(tmp_path)
    recipe = load_recipe(name, project)
    path = save(recipe, f"my-{name}", project)
    again = load_recipe(f"my-{name}", project)
    assert path == tmp_path / f"recipes/my-{name}.yaml"
    assert of(again) == of(recipe)
    for tp in {recipe.tensor_parallel.min, recipe.size_for(2)}:
        assert again.flags(tp) | {"served-model-name": ""} == (
            recipe.flags(tp) | {"served-model-name": ""}
        )


def test_what_was_changed_is_its_own(tmp_path):
    project = Project(tmp_path)
    options = ("max-model-len=32k", "env.NCCL_DEBUG=WARN", "image.ref=other/vllm:2")
    recipe = changed(*options, "gpu-memory-utilization=0.5", "env.ODD=yes")
    path = save(recipe, "mine", project)
    again = load_recipe("mine", project)
    assert again.overrides == {}
    assert again.engine_args["max-model-len"] == 32000
    assert (again.env["NCCL_DEBUG"], again.env["ODD"]) == ("WARN", "yes")
    assert (again.image.reference, again.gpu_memory_utilization) == ("other/vllm:2", 0.5)
    assert again.measured == []
    head = path.read_text().partition("\nname: mine\n")[0]
    assert head.replace("\n# ", " ") == (
        f"# Saved from the recipe {RECIPE} with -e NCCL_DEBUG=WARN -e ODD=yes "
        "-o gpu-memory-utilization=0.5 --image other/vllm:2 -o max-model-len=32000."
    )


def test_a_name_that_is_taken_needs_consent(tmp_path):
    project, recipe = Project(tmp_path), load_recipe(RECIPE, SHIPPED)
    with pytest.raises(UsageError, match=f"there is a recipe {RECIPE} already"):
        save(recipe, RECIPE, project)
    save(recipe, "mine", project)
    with pytest.raises(UsageError, match="there is a recipe mine already") as caught:
        save(recipe, "mine", project)
    assert "--force" in caught.value.hint
    save(changed("max-model-len=1k"), "mine", project, force=True)
    assert load_recipe("mine", project).engine_args["max-model-len"] == 1000
    assert [path.name for path in (tmp_path / "recipes").iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "a b", ".hidden"])
def test_a_name_that_is_no_file_of_the_folder_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="expected letters"):
        save(load_recipe(RECIPE, SHIPPED), name, Project(tmp_path))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "recipes").write_text("a file")
    with pytest.raises(UsageError, match="cannot be written"):
        save(load_recipe(RECIPE, SHIPPED), "mine", Project(tmp_path))


def test_a_secret_stays_a_reference():
    recipe = load_recipe(RECIPE, SHIPPED)
    env = {"HF_TOKEN": {"env": "HF_TOKEN"}}
    made = Recipe.model_validate({**recipe.model_dump(exclude_unset=True), "env": env})
    assert "HF_TOKEN:\n    env: HF_TOKEN" in text(made, "mine")


def test_the_command_saves_it(tmp_path):
    words = ["save", "mine", "--from", RECIPE, "--max-num-seqs", "2", "--json"]
    done = program.run("recipes", *words, cwd=tmp_path)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["from"], found["overrides"]) == (RECIPE, {"max-num-seqs": 2})
    assert load_recipe("mine", Project(tmp_path)).engine_args["max-num-seqs"] == 2
