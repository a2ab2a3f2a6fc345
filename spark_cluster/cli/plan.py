"""`plan`: what fits, how fast it will be and what is known to go wrong, before any download."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import click

from spark_cluster.cli.app import App, allowing
from spark_cluster.cli.console import mark, painted, plain_table, styled
from spark_cluster.cli.finite import Finite
from spark_cluster.cli.override_options import overriding, with_port
from spark_cluster.cli.recipes_to_serve import (
    OVERRIDE,
    Changes,
    changed,
    changed_launch,
    models_to_serve,
    must_be_for_all,
    serves_several,
)
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_cluster.cli.app import App
    from spark_cluster.cli.terminal import Console
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.engine.models import ServedModel
    from spark_cluster.facts.model import Facts
    from spark_cluster.planning.plan import Plan
    from spark_cluster.planning.planner import Planner, Question
    from spark_cluster.planning.purpose import Purpose
    from spark_cluster.planning.room import NodeMemory
    from spark_cluster.planning.subject import Subject
    from spark_cluster.planning.together import NodeTogether, Placed, PlanTogether

NAME_ONE = "name a recipe (spark-cluster recipes list), or `serve: {recipe: NAME}` in the inventory"
PURPOSES = ("latency", "throughput", "capacity")


@click.command()
@click.argument("recipe_name", metavar="[RECIPE]", required=False)
@click.option(
    "--command",
    "text",
    metavar="LINE",
    help="A `docker run` or `vllm serve` line, instead of a recipe.",
)
@click.option(
    "--tp",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Number of nodes to split each layer over.",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Connect to no node, assume idle Sparks, and do not ask the hub for the model.",
)
@click.option(
    "--available",
    type=Finite(1, 4096),
    metavar="GIB",
    help="With --offline: memory that each node has available (default 118).",
)
@click.option(
    "--for", "purpose", type=click.Choice(PURPOSES), help="Compare one Spark, TP=2 and replicas."
)
@click.option(
    "--users", type=click.IntRange(1, 10**6), default=1, help="Concurrent requests (default 1)."
)
@click.option(
    "--context",
    type=click.IntRange(0, 10**9),
    default=1024,
    help="Tokens in each request's cache (default 1024).",
)
@click.option(
    "--prompt",
    type=click.IntRange(1, 10**9),
    default=2048,
    help="Tokens of each prompt (default 2048).",
)
@overriding
@with_port
@allowing
@click.pass_context
def command(
    ctx: click.Context,
    recipe_name: str | None,
    text: str | None,
    tp: int | None,
    offline: bool,
    available: float | None,
    purpose: str | None,
    users: int,
    context: int,
    prompt: int,
    changes: Changes,
    allow: Allowances,
) -> None:
    """Plan a recipe (by default the inventory's): what it takes, and how fast it will be.

    Several recipes of the inventory (`serve: [CHAT, EMBEDDING]`) are planned next to each other.

    Memory on each node and the right --gpu-memory-utilization, KV cache and concurrency, tokens/s
    with their range, known issues; go or no-go, and the nearest configuration that would work.

    Exit status 4 when it cannot work.
    """
    from functools import partial

    from spark_cluster.bench.planned_speed import own_evidence
    from spark_cluster.cli.hub_option import hub
    from spark_cluster.planning.planner import Planner, Question
    from spark_cluster.planning.room import assumed

    app: App = ctx.obj
    if available is not None and not offline:
        raise UsageError(
            "--available needs --offline; otherwise the nodes are asked", hint="add --offline"
        )
    several = recipe_name is None and text is None and serves_several(app.cluster)
    if several:
        must_be_for_all({"--tp": tp not in (None, 1), "--for": purpose, OVERRIDE: changes})
    planner = Planner(app.project, hub(offline=offline), partial(own_evidence, app.project))
    question = Question(context, prompt, users)
    if several:
        models = models_to_serve(app.cluster, allow)
        _several(
            ctx, plan_models(app, planner, models, question, offline=offline, available=available)
        )
        return
    asked = Asked(recipe_name, text, tp, changes, offline=offline)
    subject, recipe = _subject(app, asked, app.allowances(allow))
    least = 2 if purpose else 1
    least = max(least, subject.launch.nodes)
    rooms, facts = assumed(max(least, 2), available), list["Facts"]()
    if not (offline or app.inventory_is_missing):
        rooms, facts, told = _rooms(app, planner, subject, least, recipe)
        subject = replace(subject, remarks=(*subject.remarks, *told))
    if purpose is not None:
        _advise(ctx, planner, subject, rooms, question, cast("Purpose", purpose))
        return
    plan = planner.plan(subject, rooms, question, facts)
    app.show(plan, _show)
    ctx.exit(0 if plan.feasible else 4)


def _several(ctx: click.Context, plan: PlanTogether) -> None:
    app: App = ctx.obj
    app.show(plan, lambda app, plan: show_plan(app.console, plan))
    ctx.exit(0 if plan.feasible else 4)


def _show(app: App, plan: Plan) -> None:
    from spark_cluster.cli.plan_picture import show

    show(app.console, plan)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says is to be planned."""

    name: str | None
    text: str | None
    tp: int | None
    changes: Changes
    offline: bool


def _subject(app: App, asked: Asked, allow: Allowances) -> tuple[Subject, Recipe | None]:
    """Return what is planned, and at which size: as asked, else over all nodes that it can use;
    and the recipe that it is made of, if it is.
    """
    from spark_cluster.planning.subject import of_a_command, of_a_recipe

    if asked.text is not None:
        from spark_cluster.importers import commandline

        if asked.name is not None:
            raise UsageError("a recipe and --command contradict each other", hint="leave one out")
        launch = changed_launch(commandline.parse(asked.text), asked.changes)
        return of_a_command(launch, asked.tp), None
    from spark_cluster.config.launch import of_recipe
    from spark_cluster.engine import firewall

    recipe = _recipe(app, asked, allow)
    sizes = recipe.tensor_parallel
    known = not (asked.offline or app.inventory_is_missing)
    size = recipe.size_for(len(app.nodes)) if known else sizes.default or sizes.min
    tp = asked.tp or max(size, sizes.min)
    subject = of_a_recipe(recipe, of_recipe(recipe, tp))
    inventory = None if app.inventory_is_missing else app.inventory
    firewalled = firewall.remarks(inventory, recipe, subject.launch.nodes)
    return replace(subject, remarks=(*firewalled, *_asked_for(recipe))), recipe


def _recipe(app: App, asked: Asked, allow: Allowances) -> Recipe:
    """The recipe that is named, or the inventory's, with the changes of the command line."""
    from spark_cluster.config.allowance_checks import files_must_be_allowed, mounts_must_be_allowed
    from spark_cluster.loader.recipes import load_recipe

    if asked.name is None and app.inventory_is_missing:
        raise UsageError("found neither a recipe nor --command", hint=NAME_ONE)
    name = asked.name or app.inventory.serve.recipe
    if name is None:
        raise UsageError("found neither a recipe nor --command", hint=NAME_ONE)
    recipe = changed(load_recipe(name, app.project, allow), asked.changes)
    files_must_be_allowed(recipe)
    mounts_must_be_allowed(recipe)
    return recipe


def _asked_for(recipe: Recipe) -> list[str]:
    """What `up` needs the user's consent for."""
    from spark_cluster.config import image_build
    from spark_cluster.config.allowance_checks import missing_variables

    return [
        *(
            f"the recipe asks for {variable} of this machine: `up` needs --allow-env {variable}"
            for _, variable in missing_variables(recipe)
        ),
        *image_build.remarks(recipe.image.build, recipe.allowances),
    ]


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
    from spark_cluster.engine import launches
    from spark_cluster.engine.copies.state import stored_models
    from spark_cluster.engine.hub_on_node import NodeDocuments
    from spark_cluster.engine.survey import survey
    from spark_cluster.planning.room import assumed

    with app.play("plan", app.nodes, change=False) as run:
        play = run.open()
        there = {}
        if recipe is not None:
            there = stored_models(play, recipe, play.nodes).there(recipe.model.name)
        rooms, facts = survey(play, subject.node_path, there)
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
    ctx: click.Context,
    planner: Planner,
    subject: Subject,
    rooms: Sequence[NodeMemory],
    question: Question,
    purpose: Purpose,
) -> None:
    app: App = ctx.obj
    advice = planner.advise(subject, rooms, question, purpose)
    if app.as_json:
        app.print_json({"recipe": subject.title, **advice.to_dict()})
    else:
        from spark_cluster.cli.plan_picture import show_advice

        is_recipe = subject.launch.origin == "recipe"
        show_advice(app.console, subject.title, advice, is_recipe=is_recipe)
    ctx.exit(0 if advice.best is not None or advice.undecided else 4)


def plan_models(
    app: App,
    planner: Planner,
    models: Sequence[ServedModel],
    question: Question,
    *,
    offline: bool,
    available: float | None,
) -> PlanTogether:
    """Plan them next to each other, on nodes that are asked, or assumed with `offline`."""
    from spark_cluster.planning.room import assumed
    from spark_cluster.planning.together import Placed, plan_together

    if offline:
        spark = assumed(1, available)[0]
        placed = [
            Placed(model.subject, replace(spark, name=model.node), on_request=model.on_request)
            for model in models
        ]
    else:
        placed = _asked(app, planner, models)
    return plan_together(planner, placed, question)


def _asked(app: App, planner: Planner, models: Sequence[ServedModel]) -> list[Placed]:
    from spark_cluster.engine.copies.state import stored_models
    from spark_cluster.engine.hub_on_node import NodeDocuments
    from spark_cluster.engine.models import placed

    with app.play("plan", app.nodes, change=False) as run:
        play = run.open()
        stored = [stored_models(play, model.recipe, play.nodes) for model in models]
        there = [s.there(m.recipe.model.name) for s, m in zip(stored, models, strict=True)]
        found = placed(play, models, there)
        for one in found:
            planner.look_up(one.subject, NodeDocuments(play.session(play.head)))
    return found


def show_plan(console: Console, plan: PlanTogether) -> None:
    """Show the sum of each node, then each model's own plan."""
    from spark_cluster.cli.plan_picture import show

    verdict = styled("{} [bold green]go[/]", mark("ok"))
    if not plan.feasible:
        verdict = styled("{} [bold red]no-go[/]", mark("fail"))
    names = ", ".join(one.title for one in plan.plans)
    console.print(
        verdict + styled("  [bold]{} models next to each other[/]: {}", len(plan.plans), names)
    )
    for reason in (*plan.reasons, *plan.obstacles):
        console.print(styled("  {}", reason), soft_wrap=True)
    for node in plan.nodes:
        console.print()
        _show_node(console, node)
    if plan.on_request:
        each = ", ".join(f"{one.title} {one.reserved_gib:.1f} GiB" for one in plan.on_request)
        largest = "; the largest of them is above" if len(plan.on_request) > 1 else ""
        console.print(f"loaded on request: {each}{largest}", soft_wrap=True)
    for one in plan.plans:
        console.print(painted("\n" + "─" * 78, "dim"))
        show(console, one)


def _show_node(console: Console, node: NodeTogether) -> None:
    name, gib = (node.room.name,), ("GiB",)
    table = plain_table(*name, *gib, fold=name, right=gib, whole=gib, wide=True)
    table.add_row("available", f"{node.room.available_gib:.1f}")
    for one in node.models:
        table.add_row(one.title, f"-{one.reserved_gib:.1f}")
    kept, count = node.margins, len(node.models)
    in_addition = f"taken by {count} servers in addition, {kept.outside_gib:g} each"
    table.add_row(in_addition, f"-{kept.outside_gib * count:.1f}")
    style = "green" if not node.reason else "red"
    table.add_row(
        painted(f"left (the system keeps {kept.reserve_gib:g})", style),
        painted(f"{node.left_gib:.1f}", style),
    )
    console.print(table)
