"""`plan`: what fits, how fast it will be and what is known to go wrong, before any download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import click

from spark_cluster.bench.references import own_evidence
from spark_cluster.cli.app import App
from spark_cluster.cli.options import (
    Allowing,
    DeclaredCommand,
    EndpointPort,
    Finite,
    Overriding,
    hub,
)
from spark_cluster.cli.plan_picture import show, show_advice, show_together
from spark_cluster.cli.serving import (
    OVERRIDE,
    changed,
    changed_launch,
    models_to_serve,
    must_be_for_all,
    must_be_given,
    serves_several,
)
from spark_cluster.config import image_build
from spark_cluster.config.extension import Allowances
from spark_cluster.config.facts import Facts
from spark_cluster.config.launch import Changes, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_settings import (
    files_must_be_allowed,
    missing_variables,
    mounts_must_be_allowed,
)
from spark_cluster.config.recipes import load_recipe
from spark_cluster.engine import firewall, launches
from spark_cluster.engine.hub_models import NodeDocuments, stored_models
from spark_cluster.engine.resolve import ServedModel
from spark_cluster.engine.survey import placed as placed_on_nodes
from spark_cluster.engine.survey import survey
from spark_cluster.errors import UsageError
from spark_cluster.importers import commandline
from spark_cluster.importers.files import read_file
from spark_cluster.issues import lint_target
from spark_cluster.models.hub import is_repository
from spark_cluster.plan.planner import (
    Placed,
    PlannedLoad,
    Planner,
    Subject,
    of_a_command,
    of_a_recipe,
    plan_together,
)
from spark_cluster.plan.proposal import Purpose, advise
from spark_cluster.plan.room import NodeMemory, assumed

NAME_ONE = "name a recipe (spark-cluster recipes list), or `serve: {recipe: NAME}` in the inventory"


@click.command(cls=DeclaredCommand)
def plan(
    app: App,
    *,
    recipe_name: Annotated[str | None, {"metavar": "[RECIPE|MODEL|FILE]"}],
    text: str | None,
    tp: Annotated[int, click.IntRange(1, 64)] | None,
    offline: bool,
    available: Annotated[float, Finite(1, 4096)] | None,
    purpose: Purpose | None,
    users: Annotated[int, click.IntRange(1, 10**6)] = 1,
    context: Annotated[int, click.IntRange(0, 10**9)] = 1024,
    prompt: Annotated[int, click.IntRange(1, 10**9)] = 2048,
    changes: Overriding,
    port: EndpointPort,
    allow: Allowing,
) -> int:
    """Plan a recipe (by default the inventory's), a model of the hub (ORG/NAME) as vLLM serves it
    without options, or a file or folder of another tool: what it takes, and how fast it will be.

    Several recipes of the inventory (`serve: [CHAT, EMBEDDING]`) are planned next to each other.

    Memory on each node and the right --gpu-memory-utilization, KV cache and concurrency, tokens/s
    with their range, known issues; whether it can work, and if not, the nearest configuration that
    would.

    Exit status 4 when it cannot work.

    Args:
        text (--command LINE): A `docker run` or `vllm serve` line, instead of a recipe.
        tp (N): Number of nodes to split each layer over.
        offline: Connect to no node, assume idle Sparks, and do not ask the hub for the model.
        available (GIB): With --offline: memory that each node has available (default 118).
        purpose (--for): Compare one Spark, TP=2 and replicas.
        users: Concurrent requests (default 1).
        context: Tokens in each request's cache (default 1024).
        prompt: Tokens of each prompt (default 2048).
    """

    app.cluster.port = port
    if available is not None and not offline:
        raise UsageError(
            "--available needs --offline; otherwise the nodes are asked", hint="add --offline"
        )
    if recipe_name and text is None and _is_model(recipe_name):
        recipe_name, text = None, f"vllm serve {recipe_name}"
    planner = Planner(app.project, hub(offline=offline), partial(own_evidence, app.project))
    question = PlannedLoad(context, prompt, users)
    if recipe_name is None and text is None and serves_several(app.cluster):
        must_be_for_all({"--tp": tp not in (None, 1), "--for": purpose, OVERRIDE: changes})
        models = models_to_serve(app.cluster, allow)
        placed = _assumed(models, available) if offline else _on_nodes(app, planner, models)
        found = plan_together(planner, placed, question)
        app.show(found, lambda app, plan: show_together(app.console, plan))
        return 0 if found.feasible else 4
    known = not (offline or app.cluster.inventory_is_missing)
    if text is not None:
        if recipe_name is not None:
            raise UsageError("a recipe and --command contradict each other", hint="leave one out")
        recipe = None
        subject = of_a_command(changed_launch(commandline.parse(text), changes), tp)
    elif recipe_name and (path := lint_target.other_file(recipe_name, app.project)):
        recipe = None
        subject = of_a_command(changed_launch(read_file(path).launch, changes), tp)
        subject = replace(subject, title=path.name)
    else:
        recipe = _recipe(app, recipe_name, changes, app.cluster.allowances(allow))
        subject = _of_recipe(app, recipe, tp, known=known)
    least = max(2 if purpose else 1, subject.launch.nodes)
    rooms, facts = assumed(max(least, 2), available), list[Facts]()
    if known:
        rooms, facts, told = _rooms(app, planner, subject, least, recipe)
        subject = replace(subject, remarks=(*subject.remarks, *told))
    if purpose is not None:
        return _advise(app, planner, subject, rooms, question, purpose)
    plan = planner.plan(subject, rooms, question, facts)
    app.show(plan, lambda app, plan: show(app.console, plan))
    return 0 if plan.feasible else 4


def _is_model(name: str) -> bool:
    """Whether it is the name of a model on the hub, and no path below a folder that is there."""
    return is_repository(name) and not Path(name).parent.exists()


def _of_recipe(app: App, recipe: Recipe, tp: int | None, *, known: bool) -> Subject:
    """Return a recipe at the size that is asked for, else over all nodes that it can use.

    Args:
        known: the inventory says how many nodes there are.
    """
    sizes = recipe.tensor_parallel
    size = recipe.size_for(len(app.nodes)) if known else sizes.default or sizes.min
    subject = of_a_recipe(recipe, of_recipe(recipe, tp or max(size, sizes.min)))
    inventory = None if app.cluster.inventory_is_missing else app.inventory
    firewalled = firewall.remarks(inventory, recipe, subject.launch.nodes)
    needed = (  # what `up` needs the user's consent for
        f"the recipe asks for {variable} of this machine: `up` needs --allow-env {variable}"
        for _, variable in missing_variables(recipe)
    )
    built = image_build.remarks(recipe.image.build, recipe.allowances)
    return replace(subject, remarks=(*firewalled, *needed, *built))


def _recipe(app: App, name: str | None, changes: Changes, allow: Allowances) -> Recipe:
    """The recipe that is named, or the inventory's, with the changes of the command line."""
    missing = "found neither a recipe nor --command"
    given = must_be_given(name or app.own_recipe, missing, NAME_ONE)
    recipe = changed(load_recipe(given, app.project, allow), changes)
    files_must_be_allowed(recipe)
    mounts_must_be_allowed(recipe)
    return recipe


def _rooms(
    app: App,
    planner: Planner,
    subject: Subject,
    least: int,
    recipe: Recipe | None,
) -> tuple[list[NodeMemory], list[Facts], list[str]]:
    """The nodes, the head first, and their facts; where there are too few, Sparks are assumed.
    And of a recipe whether its next launch finds what it compiled.
    """

    with app.cluster.play("plan", app.nodes, change=False) as run:
        play = run.open()
        there = {}
        if recipe is not None:
            there = stored_models(play, recipe, play.nodes).gib_present(recipe.model.name)
        rooms, facts = survey(play, subject.node_path, there, subject.launch.venv)
        told = launches.of_recipe(play, recipe, subject.launch.tp) if recipe is not None else None
        first = min(play.nodes, key=lambda node: not node.is_head)
        planner.look_up(subject, NodeDocuments(play.session(first)))
    missing = least - len(rooms)
    if missing > 0:
        rooms += [
            room for room in assumed(least + missing) if room.name not in {r.name for r in rooms}
        ][:missing]
    return rooms, facts, [str(told)] if told is not None else []


def _advise(
    app: App,
    planner: Planner,
    subject: Subject,
    rooms: Sequence[NodeMemory],
    question: PlannedLoad,
    purpose: Purpose,
) -> int:
    advice = advise(planner, subject, rooms, question, purpose)
    is_recipe = subject.launch.origin == "recipe"
    app.show(
        {"recipe": subject.title, **advice.to_dict()},
        lambda app, _: show_advice(app, subject.title, advice, is_recipe=is_recipe),
    )
    return 0 if advice.best is not None or advice.undecided else 4


def _assumed(models: Sequence[ServedModel], available: float | None) -> list[Placed]:
    """Place models on idle Sparks."""
    spark = assumed(1, available)[0]
    return [
        Placed(model.subject, replace(spark, name=model.node), on_request=model.on_request)
        for model in models
    ]


def _on_nodes(app: App, planner: Planner, models: Sequence[ServedModel]) -> list[Placed]:
    """Place models on their nodes, which are asked."""
    with app.cluster.play("plan", app.nodes, change=False) as run:
        play = run.open()
        stored = [stored_models(play, model.recipe, play.nodes) for model in models]
        there = [s.gib_present(m.recipe.model.name) for s, m in zip(stored, models, strict=True)]
        found = placed_on_nodes(play, models, there)
        for one in found:
            planner.look_up(one.subject, NodeDocuments(play.session(play.head)))
    return found
