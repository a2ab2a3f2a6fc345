"""Recipes: what wrong ones say, and the arguments they become."""

import functools
import shlex
from pathlib import Path

import pytest
from cases import cases
from packaging.specifiers import SpecifierSet
from serve_plans import recipe_of

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile, Refused

BARE = "name: r\nmodel: {name: org/m, served_name: m}\n"
VENV = BARE + "runtime: venv\nvenv: {path: /opt/vllm, requirements: [vllm==0.32.0]}\n"
BASE = BARE + "image: {ref: 'repo/image:1'}\n"
TEXTS = {"BASE": BASE.rstrip(), "BARE": BARE.rstrip(), "VENV": VENV.rstrip()}
CASES = cases(__file__, "recipe.toml", **TEXTS)


def load(folder: Path, text: str) -> Recipe:
    path = folder / "r.yaml"
    path.write_text(text)
    return load_recipe(path, Project(folder))


made = functools.partial(recipe_of, "o/m")


@pytest.mark.parametrize(
    "case", CASES["wrong"], ids=lambda case: case["expected"].split(":")[1].strip()
)
def test_wrong_recipes(tmp_path, case):
    with pytest.raises(InvalidFile) as caught:
        load(tmp_path, case["text"])
    assert str(caught.value).replace(f"{tmp_path}/r.yaml:", "") == case["expected"]


def test_no_secret_in_a_message(tmp_path):
    for line in ("engine_args: {api-key: sk-1}", "env: {OPENAI_API_KEY: sk-1}"):
        with pytest.raises(InvalidFile) as caught:
            load(tmp_path, BASE + line)
        assert "sk-1" not in str(caught.value)


def test_defaults(tmp_path):
    recipe = load(tmp_path, BASE)
    assert recipe.model.in_hub_cache
    assert recipe.model.node_path == "org/m", "the folder is known with the revision"
    assert recipe.located({"org/m": "/hub/x"}).model.node_path == "/hub/x"
    assert recipe.image.reference == "repo/image:1"
    assert recipe.gpu_memory_utilization is None
    assert recipe.probe.expect == "Paris"


def test_a_virtual_environment(tmp_path):
    recipe = load(tmp_path, VENV)
    assert (recipe.venv.path, recipe.venv.python) == ("/opt/vllm", "python3")
    assert of_recipe(recipe, 1).image == ""


def test_a_drafter_in_short_flags_is_known():
    flags = {"spec-method": "eagle3", "spec-model": "a/b", "spec-tokens": 3}
    launch = of_recipe(made(engine_args=flags), 1)
    assert (launch.drafter, launch.drafted_tokens) == ("a/b", 3)


def test_every_kind_of_argument():
    recipe = made(
        engine_args={
            "max-model-len": 4096,
            "enforce-eager": True,
            "allowed-origins": ["a", 2],
            "compilation-config": {"mode": 3, "level": 2},
            "dtype": "bfloat16",
            "swap-space": 0.5,
        }
    )
    assert shlex.join(recipe.args_for(2, 0.7)) == (
        '--allowed-origins a 2 --compilation-config \'{"level":2,"mode":3}\' --dtype bfloat16 '
        "--enforce-eager --gpu-memory-utilization 0.7 --max-model-len 4096 --served-model-name m "
        "--swap-space 0.5 --tensor-parallel-size 2"
    )


def test_the_recipes_own_memory_share_wins():
    args = made(gpu_memory_utilization=0.6).args_for(1, 0.7)
    assert args[args.index("--gpu-memory-utilization") + 1] == "0.6"
    assert "--gpu-memory-utilization" not in made().args_for(1)


def test_a_size_it_does_not_do_is_refused():
    with pytest.raises(Refused, match="size 1 to 2, not 3\n  use --tp 2"):
        made().args_for(3)
    with pytest.raises(Refused, match="size 2, not 1\n  use --tp 2"):
        made(tensor_parallel={"min": 2, "max": 2}).args_for(1)


def test_numbers_in_the_environment_are_text():
    assert made(env={"OMP_NUM_THREADS": 1}).env == {"OMP_NUM_THREADS": "1"}


def test_mounts_and_digests():
    digest = "sha256:" + "a" * 64
    recipe = made(
        image={"ref": "i:1", "digest": digest},
        mounts=[
            {"source": "/a/", "target": "/b"},
            {"source": "/c", "target": "/d", "read_only": False},
        ],
    )
    assert recipe.image.reference == f"i:1@{digest}"
    assert [mount.volume for mount in recipe.mounts] == ["/a:/b:ro", "/c:/d"]


def test_a_relative_directory_starts_at_the_recipe(tmp_path):
    text = BASE.replace("served_name: m", "served_name: m, source: directory, directory: models/m")
    assert load(tmp_path, text).model.directory == tmp_path / "models/m"
    home = load(tmp_path, text.replace("models/m", "~/m")).model.directory
    assert home == Path.home() / "m"


CARDS = {"the checkpoint's own card, quoted in part 7"}
SHIPPED = sorted(Project(Path(__file__).parent).list("recipes"))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_are_sound(name, tmp_path):
    recipe = load_recipe(name, Project(tmp_path))
    sizes = recipe.tensor_parallel.usual
    assert len({tuple(recipe.args_for(tp)) for tp in sizes}) == len(sizes)
    assert recipe.name == name
    assert recipe.description
    assert recipe.ready_timeout_s >= (300 if name == "lab-paris" else 900), "it compiles for long"


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "lab-paris"])
def test_shipped_recipes_say_what_plans_need(name, tmp_path):
    recipe = load_recipe(name, Project(tmp_path))
    assert recipe.model.base
    assert recipe.model.quantization
    assert recipe.vllm.supported
    assert recipe.sources
    assert {m.source for m in recipe.measured} <= {*recipe.sources, *CARDS}
    assert recipe.vllm.version is None or recipe.vllm.version in SpecifierSet(
        recipe.vllm.supported, prereleases=True
    )
    assert not recipe.image.ref.endswith((":latest", ":nightly")), "tags that move"
    if recipe.image.build:
        assert "git clone" not in recipe.image.build.dockerfile, "a branch is another one tomorrow"


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("gemma4")])
def test_what_the_articles_had_wrong_is_right(name, tmp_path):
    """Besides what `lint` knows: tools are called, and the kernels are looked for in the log."""
    recipe = load_recipe(name, Project(tmp_path))
    assert recipe.engine_args["enable-auto-tool-choice"] is True
    if recipe.model.quantization == "nvfp4" and "a4b" in name:
        assert any("MARLIN" in line for line in recipe.readiness.log_expect)
