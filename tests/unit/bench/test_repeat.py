"""A recorded run that is run again: what is taken from the record, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_runs import STEADY, cell, record, setup, suite_of
from cases import each_row
from factories import SHIPPED, make_node, make_recipe, put

from spark_cluster.bench import repeat
from spark_cluster.bench.describe import of_repository, text_of
from spark_cluster.bench.expansion import expand
from spark_cluster.bench.record import NodeRecord, Record
from spark_cluster.bench.repeat import (
    SOURCE,
    continued,
    differences,
    expansion_of,
    foreign_setups,
    load_original,
)
from spark_cluster.bench.suite import Pair, Suite, Variant, canonical, load_suite
from spark_cluster.config.extension import NOTHING, Allowances
from spark_cluster.config.facts import Gpu
from spark_cluster.config.project import Project
from spark_cluster.config.recipe_settings import must_be_allowed
from spark_cluster.errors import InvalidFile, Refused, UsageError
from spark_cluster.node.dockerd import DockerImage
from spark_cluster.runner.session import Output

NAME = "gemma4-31b-fp8"
SERVER = f"{NAME}-tp1"
DIGEST = "sha256:" + "4b" * 32


def suite(**changed: Any) -> str:
    given = {"prompt": [512], "output": [64], "runs": 2, **changed}
    return canonical(suite_of(recipes=[NAME], **given))


def one(of: Any = None, **changed: Any) -> Any:
    """Return a recorded server of a recipe."""
    about = {"recipe": NAME, "recipe_text": text_of(of or make_recipe(NAME)), **changed}
    return setup(SERVER, **about)


def run_of(*setups: Any, suite_text: str = "", **changed: Any) -> Record:
    """A run of a shipped recipe on one Spark."""
    found = setups or (one(),)
    cells = [cell(found[0].id, tg_tps=STEADY)]
    text = suite_text or suite()
    return record(*cells, setups=found, suite_text=text, recipes=(NAME,), **changed)


def saved(folder: Path, run: Record) -> Path:
    put(folder / "run.json", run.model_dump_json())
    return folder


@pytest.fixture
def original(tmp_path):
    def make(run: Record, allow: Allowances = NOTHING) -> Any:
        return load_original(saved(tmp_path / "theirs", run), allow)

    return make


def test_cells_servers_and_recipes_are_those_of_the_record_and_not_of_the_user(original):
    theirs = make_recipe(NAME, description="of somebody else")
    run = run_of(one(theirs))
    (step,) = expansion_of(original(run), nodes=1).steps
    assert step.setup.id == SERVER
    assert [(one.id, one.runs, one.skip) for one in step.cells] == [
        (f"{SERVER}.pp512-tg64-d0-c1", 2, "")
    ]
    assert text_of(step.setup.served) == text_of(theirs)


def run_by(suite: Suite) -> Record:
    """A run of a shipped recipe by a suite, each of whose servers was up."""
    planned = expand(suite, {NAME: make_recipe(NAME)}, (NAME,)).setups
    setups = {
        one.id: setup(one.id, recipe=NAME, recipe_text=text_of(one.served)) for one in planned
    }
    return run_of(*setups.values(), suite_text=canonical(suite))


def test_a_variant_is_as_it_was_recorded(original):
    """A record has each server's recipe with its changes made; they are not made twice."""
    text = suite(sweep={"engine_args": {"enforce-eager": [True, False]}})
    planned = expand(Suite.model_validate_json(text), {NAME: make_recipe(NAME)}, (NAME,))
    setups = [
        setup(one.id, recipe=NAME, recipe_text=text_of(one.served), variant=one.variant_label)
        for one in planned.setups
    ]
    made = original(run_of(*setups, suite_text=text))
    found = expansion_of(made, nodes=1)
    assert [s.id for s in found.setups] == [s.id for s in planned.setups]
    served = [text_of(s.served) for s in found.setups]
    assert served == [text_of(s.served) for s in planned.setups]
    assert len(set(served)) == 2
    changed, _ = found.setups
    assert "enforce-eager" in changed.served.engine_args
    assert foreign_setups(made, SHIPPED) == [changed.id], "their suite changes it"


def test_what_a_shipped_suite_changes_of_a_shipped_recipe_is_shipped(original):
    shipped = load_suite("compile-vs-eager", SHIPPED)
    assert foreign_setups(original(run_by(shipped)), SHIPPED) == []
    code = {"hf-config-path": "them/code", "trust-remote-code": True}
    theirs = shipped.model_copy(update={"pairs": [Pair(name="x", b=Variant(engine_args=code))]})
    made = original(run_by(theirs))
    (foreign,) = foreign_setups(made, SHIPPED)
    assert made.recipes[foreign].engine_args["hf-config-path"] == "them/code"


def test_servers_that_cannot_be_repeated_are_left_out(original):
    both = suite(tp=[1, 2])
    two = setup(f"{NAME}-tp2", recipe=NAME, tp=2, recipe_text=text_of(make_recipe(NAME)))
    found = expansion_of(original(run_of(one(), two, suite_text=both)), 1)
    assert [s.skip for s in found.setups] == ["", "it needs 2 nodes; the inventory has 1"]
    alone = expansion_of(original(run_of(suite_text=both)), 2)
    assert "has no recipe of this server" in alone.setups[1].skip
    assert [c.skip for c in alone.cells][1] == alone.setups[1].skip


@each_row(__file__, "wrong_records.json", "records")
def test_a_record_that_is_wrong(original, field, text, said):
    """Each field holds a text of somebody else."""
    text = text.replace("DEEP", "[" * 10_000)
    run = run_of(suite_text=text) if field == "suite_text" else run_of(one(recipe_text=text))
    with pytest.raises(InvalidFile, match=said) as caught:
        original(run)
    assert "run.json" in (caught.value.where or "")


def test_a_record_without_recipes_cannot_be_repeated(original):
    with pytest.raises(UsageError, match="no suite or no recipe"):
        original(run_of(setup(SERVER)))


@pytest.mark.parametrize("name", SHIPPED.list("recipes"))
def test_every_shipped_recipe_comes_out_of_a_record_as_it_went_in(original, name):
    recipe = make_recipe(name)
    made = original(run_of(setup("s", recipe=name, recipe_text=text_of(recipe))))
    assert text_of(made.recipes["s"]) == text_of(recipe)


def test_whose_recipes_they_are(original, tmp_path):
    assert foreign_setups(original(run_of()), SHIPPED) == []
    changed = make_recipe(NAME, ready_timeout_s=77)
    run = run_of(one(changed))
    assert foreign_setups(original(run), SHIPPED) == [SERVER]
    unknown = run_of(one(changed, recipe="nobody-s"))
    assert foreign_setups(original(unknown), SHIPPED) == [SERVER]
    own = Project(tmp_path, SHIPPED.shipped)
    put(tmp_path / f"recipes/{NAME}.yaml", "name: 3\n")
    assert foreign_setups(original(run_of()), own) == [SERVER]


def test_files_and_variables_of_the_laptop_are_not_theirs(original, tmp_path):
    with_env = {**json.loads(text_of(make_recipe(NAME))), "env": {"A": {"env": "HF_SECRET"}}}
    run = run_of(one(recipe_text=json.dumps(with_env)))
    with pytest.raises(Refused, match="asks for the variable HF_SECRET"):
        must_be_allowed(original(run).recipes[SERVER])
    must_be_allowed(original(run, Allowances(env=("HF_SECRET",))).recipes[SERVER])
    folder = json.loads(text_of(make_recipe(NAME)))
    folder["model"] |= {"source": "directory", "directory": str(tmp_path / "theirs")}
    run = run_of(one(recipe_text=json.dumps(folder)))
    with pytest.raises(Refused, match="sent to the nodes"):
        must_be_allowed(original(run).recipes[SERVER])
    must_be_allowed(original(run, Allowances((tmp_path / "theirs",))).recipes[SERVER])


def test_the_new_run_can_be_continued(original, tmp_path):
    made = original(run_of())
    mine = tmp_path / "mine"
    made.save(mine)
    new = run_of(repeats=made.repeats())
    found = continued(new, mine, NOTHING, 1)
    assert found.expansion == expansion_of(made, 1)
    put(mine / SOURCE, run_of(id="other").model_dump_json())
    with pytest.raises(InvalidFile, match="is not the record of a that this run repeats"):
        continued(new, mine, NOTHING, 1)
    (mine / SOURCE).unlink()
    with pytest.raises(UsageError):
        continued(new, mine, NOTHING, 1)


def test_what_differs_here():
    run = run_of(
        nodes=(
            NodeRecord(name="a", driver="580.95.05", kernel="6.11", hardware="GB10"),
            NodeRecord(name="b", driver="580.95.05", kernel="6.14", hardware="GB10"),
        )
    )
    node = make_node("spark1")
    facts = replace(node.facts, gpu=Gpu("GB10", "12.1", "590.1"), kernel="6.14")
    found = list(differences(run, [replace(node, facts=facts)], run.tool.version))
    assert found == [
        "nodes: 2 there, 1 here",
        "driver: 580.95.05 there, 590.1 here",
        "kernel: 6.11, 6.14 there, 6.14 here",
    ]
    assert "llama-benchy: 0.4.0 there, 9 here" in list(differences(run, [], "9"))


# -- images ----------------------------------------------------------------------------------------

REFERENCE = make_recipe(NAME).image.reference
REPOSITORY = REFERENCE.rpartition(":")[0]
HERE = "sha256:" + "00" * 32


def of_image(**image: Any) -> Any:
    """Return a recipe with another image."""
    recipe = make_recipe(NAME)
    return recipe.model_copy(update={"image": recipe.image.model_copy(update=image)})


def chosen(original: Any, recorded: Any, here: DockerImage | None, registry: str = "") -> Any:
    """Return what is chosen for a server, with an image on one node.

    Args:
        registry: why it does not give an image; empty where it does.
    """
    made = original(run_of(recorded))
    asked: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> Output:
        asked.append(argv)
        return Output(bool(registry), "", registry)

    def gather(_what: str, commands: dict[str, Any]) -> Any:
        shown = [{"Id": here.id, "RepoDigests": here.digests}] if here else []
        out = {"status": 0 if here else 1, "stdout": json.dumps(shown)}
        return SimpleNamespace(wait=lambda: {"commands": dict.fromkeys(commands, out)})

    session = SimpleNamespace(submit=gather, run=run, node="spark1")
    play: Any = SimpleNamespace(
        nodes=[make_node("spark1")],
        session=lambda _node: session,
        together=lambda *calls: tuple(call() for call in calls),
    )
    found = repeat.choose(play, made.record.setups, made.recipes)
    return made, found, asked


@pytest.mark.parametrize("here", [None, DockerImage(HERE)])
def test_an_image_that_is_not_the_recorded_one_is_pinned_to_its_digest(original, here):
    recorded = one(image_digest=HERE[:-2] + "11", image_repo_digest=f"{REPOSITORY}@{DIGEST}")
    made, found, asked = chosen(original, recorded, here)
    assert found.images == {SERVER: DIGEST}
    assert asked == [["docker", "manifest", "inspect", f"{REPOSITORY}@{DIGEST}"]]
    (line,) = found.differences
    assert line.endswith("is pulled by its digest")
    (step,) = expansion_of(made.pinned(found.images), 1).steps
    assert step.setup.served.image.reference == f"{REFERENCE}@{DIGEST}"
    assert foreign_setups(made, SHIPPED) == [], "it is of the repository that the user trusts"


def test_an_image_that_is_there_already_is_taken_by_its_name(original):
    recorded = one(image_digest=HERE, image_repo_digest=f"{REPOSITORY}@{DIGEST}")
    for here in (
        DockerImage(HERE),
        DockerImage("sha256:ff", digests=(f"mirror.example/x@{DIGEST}",)),
    ):
        _, found, asked = chosen(original, recorded, here)
        assert (found.images, found.differences, asked) == ({}, (), [])


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        (one(image_digest=DIGEST), "the record has no digest of a registry"),
        (one(image_digest=f"other/name@{DIGEST}"), "the record has no digest of a registry"),
        (one(image_repo_digest=f"{REPOSITORY}@sha256:zz"), "no digest of a registry"),
        (one(of_image(archive="/srv/a.tar"), image_repo_digest=f"{REPOSITORY}@{DIGEST}"),
         "has to be loaded or built"),
        (one(of_image(digest=DIGEST)), "is pulled by its digest"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_pinned_is_listed(original, recorded, why):
    _, found, asked = chosen(original, recorded, None)
    assert (found.images, asked) == ({}, [])
    (line,) = found.differences
    assert "is not on spark1: it " in line
    assert why in line


def test_an_image_that_the_registry_does_not_give_is_listed(original):
    recorded = one(image_repo_digest=f"{REPOSITORY}@{DIGEST}")
    _, found, _ = chosen(original, recorded, DockerImage(HERE), "manifest unknown\x1b[31m\n")
    assert found.images == {}
    (line,) = found.differences
    assert line.startswith(f"image {REFERENCE}: {REPOSITORY}@{DIGEST} there, {HERE} on spark1")
    assert "spark1: manifest unknown" in line
    assert "\x1b" not in line


def test_an_image_of_the_same_digest_in_the_recipe_needs_no_pin(original):
    _, found, _ = chosen(original, one(of_image(digest=DIGEST)), DockerImage(HERE))
    assert (found.images, found.differences) == ({}, ())


def test_a_pinned_run_is_continued_with_the_same_images(original, tmp_path):
    made = original(run_of(one(image_repo_digest=f"{REPOSITORY}@{DIGEST}")))
    made.save(tmp_path / "mine")
    new = run_of(repeats=made.repeats({SERVER: DIGEST}))
    (step,) = continued(new, tmp_path / "mine", NOTHING, 1).expansion.steps
    assert step.setup.served.image.digest == DIGEST


def test_the_repository_of_docker_hub_has_two_names():
    digest = f"vllm/vllm-openai@{DIGEST}"
    for reference in ("docker.io/vllm/vllm-openai:v0.12.0", "vllm/vllm-openai"):
        assert of_repository([f"x/y@{DIGEST}", digest], reference) == digest
    assert of_repository([digest], "registry.example:5000/vllm/vllm-openai:1") == ""
