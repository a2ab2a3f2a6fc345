"""A launch becomes a recipe of ours, and nothing of it gets lost without a word."""

import shlex

import pytest
from article_commands import PART_9
from cases import cases
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Drafter, FromLaptop
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import parse as checked
from spark_cluster.errors import InvalidFile
from spark_cluster.importers.commandline import parse
from spark_cluster.importers.files import slug, write
from spark_cluster.importers.importer import Imported, Source

CASES = cases(__file__, "import_recipe_text.toml")


def recipe_of(imported: Imported) -> Recipe:
    return checked(Recipe, YAML(typ="safe", pure=True).load(imported.text))


def left(imported: Imported) -> dict[str, str]:
    return {one.what: one.why for one in imported.left_out}


def carried(imported: Imported) -> dict[str, str]:
    return {one.what: one.where for one in imported.carried}


def of_command(line: str) -> tuple[Recipe, Imported]:
    imported = write(Source(parse(line)))
    return recipe_of(imported), imported


@pytest.mark.parametrize(("flags", "drafter"), CASES["drafters"])
def test_all_the_ways_to_name_a_drafter(flags, drafter):
    recipe, imported = of_command(f"vllm serve org/m {flags}")
    assert recipe.drafter == Drafter.model_validate(drafter)
    assert "drafter" in carried(imported).values()


@pytest.mark.parametrize(("flags", "why"), CASES["broken_drafters"])
def test_a_drafter_that_is_not_whole_is_left_out(flags, why):
    recipe, imported = of_command(f"vllm serve org/m {flags}")
    assert recipe.drafter is None
    assert any(why in reason for reason in left(imported).values())


def test_a_default_size_is_no_limit():
    recipe, _ = of_command("vllm serve example/m -tp 2")
    sizes = recipe.tensor_parallel
    assert (sizes.min, sizes.unlimited, sizes.default) == (1, True, 2)
    recipe.check_size(1)
    recipe.check_size(4)
    assert [recipe.size_for(nodes) for nodes in (1, 2, 4)] == [1, 2, 2]
    recipe, _ = of_command("vllm serve example/m")
    assert [recipe.size_for(nodes) for nodes in (1, 2)] == [1, 1]


@pytest.mark.parametrize(("flags", "what", "why"), CASES["flags"])
def test_flags_without_a_place(flags, what, why):
    _, imported = of_command(f"vllm serve org/m {flags}")
    assert why in left(imported)[what]
    assert "s3cret" not in imported.text


@pytest.mark.parametrize(("options", "what", "why"), CASES["options"])
def test_options_of_docker_without_a_place(options, what, why):
    _, imported = of_command(f"docker run {options} e/img vllm serve org/m")
    assert why in left(imported)[what or options]
    assert "s3cret" not in imported.text


@pytest.mark.parametrize(("variable", "value"), CASES["secrets"])
def test_a_secret_becomes_a_reference(variable, value):
    recipe, imported = of_command(f"docker run -e {variable}={value} e/img vllm serve org/m")
    assert recipe.secret_env[variable].env == variable
    assert recipe.plain_env == {}
    told = carried(imported)[f"{variable} (value not shown)"]
    assert f"export {variable}" in told
    assert "s3cret" not in imported.text.lower() + str(imported).lower()


def test_a_digest_that_is_none():
    with pytest.raises(InvalidFile, match="expected sha256: and 64 hexadecimal digits"):
        write(Source(parse(PART_9)), image="i@sha256:x")


def test_a_build():
    launch = Launch("org/m", image="mine:1", dockerfile="FROM x\nRUN y\n")
    imported = write(Source(launch))
    assert recipe_of(imported).image.build is not None
    assert recipe_of(imported).image.ref == "local/mine:1", "never somebody else's name"
    assert "dockerfile: |\n" in imported.text


def test_a_recipe_survives_being_a_launch(tmp_path):
    shipped = Project(tmp_path)
    for name in ("gemma4-26b-a4b-fp8-mtp", "gemma4-31b-fp8", "qwen3.6-35b-a3b-nvfp4"):
        recipe = load_recipe(name, shipped)
        again = recipe_of(write(Source(of_recipe(recipe, 1)), name=name))
        assert again.engine_args == recipe.engine_args
        assert again.env == recipe.env
        assert again.image.ref == recipe.image.ref
        assert (again.drafter is None) == (recipe.drafter is None)


@pytest.mark.parametrize(("text", "name"), CASES["names"])
def test_slug(text, name):
    assert slug(text) == name


WORD = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


@given(
    st.dictionaries(st.sampled_from(["dtype", "tool-call-parser", "made-up", "seed-it"]), WORD),
    st.dictionaries(st.sampled_from(["A", "B_TOKEN", "NCCL_IB_HCA", "C1"]), WORD),
    st.lists(st.tuples(WORD, WORD), max_size=2),
)
@example({"made-up": "1E100"}, {}, [])
def test_whatever_the_words_are_the_text_is_read_back(args, env, volumes):
    words = ["docker", "run"]
    words += [part for key, value in env.items() for part in ("-e", f"{key}={value}")]
    for source, target in volumes:
        words += ["--mount", f"type=bind,src=/{source.replace(',', '')},dst=/{target}"]
    words += ["e/img", "vllm", "serve", "org/m"]
    words += [f"--{key}={value}" for key, value in args.items()]
    launch = parse(shlex.join(words))
    imported = write(Source(launch))
    recipe = recipe_of(imported)
    told = left(imported)
    for flag, value in launch.args.items():
        assert recipe.engine_args.get(flag) == value or any(
            what.startswith(f"--{flag}") for what in told
        )
    for name, value in launch.env.items():
        kept = recipe.env.get(name) in (value, FromLaptop(env=name))
        assert kept or any(what.startswith(name) for what in told)
    places = len(recipe.mounts) + len(recipe.patches)
    left_volumes = sum(one.what.startswith("-v ") for one in imported.left_out)
    assert places + left_volumes == len(launch.volumes)
