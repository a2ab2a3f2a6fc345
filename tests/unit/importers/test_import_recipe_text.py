"""A launch becomes a recipe of ours, and nothing of it gets lost without a word."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from article_commands import LAUNCHES, MTP, PART_7, PART_9, SINGLE_SPARK
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
from spark_cluster.importers.files import DEFAULT_IMAGES, slug, write
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


@pytest.mark.parametrize("title", LAUNCHES)
def test_the_articles_load_with_our_own_reader(tmp_path: Path, title: str) -> None:
    imported = write(Source(parse(LAUNCHES[title])))
    path = tmp_path / f"{imported.name}.yaml"
    path.write_text(imported.text)
    recipe = load_recipe(path, Project(tmp_path))
    launch = parse(LAUNCHES[title])
    assert recipe.model.base == launch.base
    assert recipe.gpu_memory_utilization == launch.args["gpu-memory-utilization"]
    again = of_recipe(recipe, tp=1)
    ours = {"served-model-name", "tensor-parallel-size", "port", "host", "speculative-config"}
    assert {k: v for k, v in again.args.items() if k not in ours} == {
        k: v for k, v in launch.args.items() if k not in ours
    }
    assert max(len(line) for line in imported.text.splitlines()) <= 160


def test_part_9_word_for_word() -> None:
    recipe, imported = of_command(PART_9)
    assert recipe.name == "gemma4-31b-nvfp4"
    assert recipe.vllm.version == "0.19.0"
    assert recipe.engine_args["tool-call-parser"] == "pythonic"
    assert set(left(imported)) == {
        "-v ~/models/gemma4-31b-nvfp4:/models/gemma4-31b",
        "--detach",
        "--name gemma4-31b",
        "--shm-size 64gb",
        "--publish 8002:8000",
    }
    assert carried(imported)["--gpus all"] == "always so"
    (task,) = imported.to_do
    assert "--model ORG/NAME" in task
    assert "# TO DO: write the repository" in imported.text
    assert "# - --publish 8002:8000: the network is the node's own" in imported.text


def test_the_patch_of_part_7() -> None:
    recipe, imported = of_command(PART_7)
    (patch,) = recipe.patches
    assert (patch.file, patch.origin) == ("gemma4_patched.py", "model")
    assert patch.target.endswith("/models/gemma4.py")
    assert "serve.bind" in left(imported)["--host 0.0.0.0"]
    assert not any("gemma4_patched" in what for what in left(imported))


def test_a_patch_from_elsewhere_comes_from_the_laptop() -> None:
    target = "/usr/lib/python3/dist-packages/vllm/a.py"
    recipe, imported = of_command(f"docker run -v /home/me/fix.py:{target} img vllm serve org/m")
    assert (recipe.patches[0].file, recipe.patches[0].origin) == ("fix.py", "laptop")
    assert any("put fix.py next to the recipe" in task for task in imported.to_do)


def test_mounts_and_caches_of_the_single_spark() -> None:
    recipe, imported = of_command(SINGLE_SPARK)
    assert [mount.source for mount in recipe.mounts] == ["/ai/models"]
    assert recipe.env == {
        "TORCH_CUDA_ARCH_LIST": "12.1a",
        "VLLM_FLASHINFER_MOE_BACKEND": "latency",
    }
    assert "VLLM_CACHE_ROOT=/ai/vllm-cache/gemma" in left(imported)
    assert "-v /ai/vllm-cache:/ai/vllm-cache" in left(imported)
    (told,) = imported.to_do
    assert told.startswith("allow /ai/models of the nodes to be written to")


def test_the_drafter() -> None:
    recipe, imported = of_command(MTP)
    assert recipe.drafter == Drafter(
        method="gemma4_mtp", name="google/gemma-4-26B-A4B-it-assistant", tokens=4
    )
    assert recipe.image.ref == DEFAULT_IMAGES["vllm"]
    assert any("no container image is named" in task for task in imported.to_do)
    assert "serve.port" in left(imported)["--port 11437"]


@pytest.mark.parametrize(("flags", "drafter"), CASES["drafters"])
def test_all_the_ways_to_name_a_drafter(flags: str, drafter: dict[str, object]) -> None:
    recipe, imported = of_command(f"vllm serve org/m {flags}")
    assert recipe.drafter == Drafter.model_validate(drafter)
    assert "drafter" in carried(imported).values()


@pytest.mark.parametrize(("flags", "why"), CASES["broken_drafters"])
def test_a_drafter_that_is_not_whole_is_left_out(flags: str, why: str) -> None:
    recipe, imported = of_command(f"vllm serve org/m {flags}")
    assert recipe.drafter is None
    assert any(why in reason for reason in left(imported).values())


def test_stages_and_replicas_are_fields_of_their_own() -> None:
    recipe, _ = of_command("vllm serve example/m -tp 2 -pp 3")
    assert (recipe.pipeline_parallel, recipe.data_parallel) == (3, 1)
    assert recipe.tensor_parallel.default == 2
    assert recipe.nodes_for(2) == 6
    assert recipe.flags(2)["pipeline-parallel-size"] == 3
    recipe, _ = of_command("vllm serve example/m -dp 2 -pp 1")
    assert (recipe.pipeline_parallel, recipe.data_parallel) == (1, 2)
    assert "pipeline-parallel-size" not in recipe.flags(1)


def test_a_default_size_is_no_limit() -> None:
    recipe, _ = of_command("vllm serve example/m -tp 2")
    sizes = recipe.tensor_parallel
    assert (sizes.min, sizes.unlimited, sizes.default) == (1, True, 2)
    recipe.check_size(1)
    recipe.check_size(4)
    assert [recipe.size_for(nodes) for nodes in (1, 2, 4)] == [1, 2, 2]
    recipe, _ = of_command("vllm serve example/m")
    assert [recipe.size_for(nodes) for nodes in (1, 2)] == [1, 1]


@pytest.mark.parametrize(("flags", "what", "why"), CASES["flags"])
def test_flags_without_a_place(flags: str, what: str, why: str) -> None:
    _, imported = of_command(f"vllm serve org/m {flags}")
    assert why in left(imported)[what]
    assert "s3cret" not in imported.text


@pytest.mark.parametrize(("options", "what", "why"), CASES["options"])
def test_options_of_docker_without_a_place(options: str, what: str | None, why: str) -> None:
    _, imported = of_command(f"docker run {options} e/img vllm serve org/m")
    assert why in left(imported)[what or options]
    assert "s3cret" not in imported.text


@pytest.mark.parametrize(("variable", "value"), CASES["secrets"])
def test_a_secret_becomes_a_reference(variable: str, value: str) -> None:
    recipe, imported = of_command(f"docker run -e {variable}={value} e/img vllm serve org/m")
    assert recipe.secret_env[variable].env == variable
    assert recipe.plain_env == {}
    told = carried(imported)[f"{variable} (value not shown)"]
    assert f"export {variable}" in told
    assert "s3cret" not in imported.text.lower() + str(imported).lower()


def test_a_folder_that_is_written_to_is_to_be_allowed() -> None:
    line = "docker run -v /nowhere/a:/a -v /nowhere/b:/b:ro e/img vllm serve org/m"
    recipe, imported = of_command(line)
    assert [mount.source for mount in recipe.mounts] == ["/nowhere/a", "/nowhere/b"]
    (told,) = [text for text in imported.to_do if "--allow-mount" in text]
    assert told.startswith("allow /nowhere/a of the nodes to be written to")


def test_a_model_is_put_into_no_system_folder() -> None:
    recipe, imported = of_command("docker run -v /root/.ssh:/m e/img vllm serve /m")
    assert recipe.model.path is None
    assert "no model may be put there" in left(imported)["-v /root/.ssh:/m"]


class TestModel:
    def test_a_repository(self) -> None:
        recipe, imported = of_command("docker run e/img vllm serve org/M-7B --revision abc")
        assert (recipe.name, recipe.model.name, recipe.model.revision) == (
            "m-7b",
            "org/M-7B",
            "abc",
        )
        assert recipe.model.served_name == "org/M-7B"
        assert carried(imported)["--revision abc"] == "model.revision"

    def test_a_folder_of_the_node(self) -> None:
        recipe, imported = of_command("docker run -v /data/m:/m e/img vllm serve /m/seven")
        assert recipe.model.path == "/data/m/seven"
        assert recipe.model.name == "seven"
        assert recipe.mounts[0].read_only
        assert len(imported.to_do) == 2
        assert any(told.startswith("allow /data/m/seven of") for told in imported.to_do)

    def test_the_hub_s_cache(self) -> None:
        path = "/root/.cache/huggingface/hub/models--org--M-7B/snapshots/abc"
        recipe, imported = of_command(f"docker run e/img vllm serve {path}")
        assert (recipe.model.name, recipe.model.path) == ("org/M-7B", None)
        assert imported.to_do == []

    def test_a_variable_of_the_shell(self) -> None:
        recipe, imported = of_command("docker run e/img vllm serve $MODEL")
        assert (recipe.model.name, recipe.model.served_name) == ("model", "model")
        assert "only the shell knows what $MODEL is" in imported.to_do[0]

    def test_model_and_image_given(self) -> None:
        digest = "sha256:" + "b" * 64
        imported = write(Source(parse(PART_9)), name="mine", model="org/m", image=f"i:1@{digest}")
        recipe = recipe_of(imported)
        assert (recipe.name, recipe.model.name) == ("mine", "org/m")
        assert (recipe.image.ref, recipe.image.digest) == ("i:1", digest)
        assert imported.to_do == []

    def test_a_digest_that_is_none(self) -> None:
        with pytest.raises(InvalidFile, match="expected sha256: and 64 hexadecimal digits"):
            write(Source(parse(PART_9)), image="i@sha256:x")

    def test_a_build(self) -> None:
        launch = Launch("org/m", image="mine:1", dockerfile="FROM x\nRUN y\n")
        imported = write(Source(launch))
        assert recipe_of(imported).image.build is not None
        assert recipe_of(imported).image.ref == "local/mine:1", "never somebody else's name"
        assert "dockerfile: |\n" in imported.text


def test_a_recipe_survives_being_a_launch(tmp_path: Path) -> None:
    shipped = Project(tmp_path)
    for name in ("gemma4-26b-a4b-fp8-mtp", "gemma4-31b-fp8", "qwen3.6-35b-a3b-nvfp4"):
        recipe = load_recipe(name, shipped)
        again = recipe_of(write(Source(of_recipe(recipe, 1)), name=name))
        assert again.engine_args == recipe.engine_args
        assert again.env == recipe.env
        assert again.image.ref == recipe.image.ref
        assert (again.drafter is None) == (recipe.drafter is None)


@pytest.mark.parametrize(("text", "name"), CASES["names"])
def test_slug(text: str, name: str) -> None:
    assert slug(text) == name


WORD = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


@given(
    st.dictionaries(st.sampled_from(["dtype", "tool-call-parser", "made-up", "seed-it"]), WORD),
    st.dictionaries(st.sampled_from(["A", "B_TOKEN", "NCCL_IB_HCA", "C1"]), WORD),
    st.lists(st.tuples(WORD, WORD), max_size=2),
)
@example({"made-up": "1E100"}, {}, [])
def test_whatever_the_words_are_the_text_is_read_back(
    args: dict[str, str], env: dict[str, str], volumes: list[tuple[str, str]]
) -> None:
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
