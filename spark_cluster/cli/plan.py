"""`plan`: what fits, how fast it will be and what is known to go wrong, before any download."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import click

from spark_cluster.cli.app import App, allowing
from spark_cluster.cli.finite import Finite
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_cluster.config.allowances import Allowances
    from spark_cluster.facts.model import Facts
    from spark_cluster.planning.planner import Planner, Question, Subject
    from spark_cluster.planning.purpose import Purpose
    from spark_cluster.planning.room import NodeMemory

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
    "--tp", type=click.IntRange(1, 64), metavar="N", help="Number of nodes to split the model over."
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
    allow: Allowances,
) -> None:
    """Plan a recipe (by default the inventory's): what it takes, and how fast it will be.

    Memory on each node and the right --gpu-memory-utilization, KV cache and concurrency, tokens/s
    with their range, known issues; go or no-go, and the nearest configuration that would work.

    Exit status 4 when it cannot work.
    """
    from functools import partial

    from spark_cluster.bench.own_speeds import own_evidence
    from spark_cluster.cli.hub_option import hub
    from spark_cluster.planning.planner import Planner, Question

    app: App = ctx.obj
    if available is not None and not offline:
        raise UsageError(
            "--available needs --offline; otherwise the nodes are asked", hint="add --offline"
        )
    planner = Planner(app.project, hub(offline=offline), partial(own_evidence, app.project))
    subject = _subject(app, recipe_name, text, tp, app.allowances(allow), offline=offline)
    least = 2 if purpose else 1
    rooms, facts = _rooms(app, subject, max(least, tp or 1), available, offline=offline)
    question = Question(context, prompt, users)
    if purpose is not None:
        _advise(ctx, planner, subject, rooms, question, cast("Purpose", purpose))
        return
    plan = planner.plan(subject, rooms, question, facts)
    if app.as_json:
        app.print_json(plan.to_dict())
    else:
        from spark_cluster.cli.plan_picture import show

        show(app.console, plan)
    ctx.exit(0 if plan.feasible else 4)


def _subject(
    app: App,
    name: str | None,
    text: str | None,
    tp: int | None,
    allow: Allowances,
    *,
    offline: bool,
) -> Subject:
    """Return what is planned, and at which size: as asked, else over all nodes that it can use."""
    from spark_cluster.planning import planner

    if text is not None:
        from spark_cluster.importers import commandline

        if name is not None:
            raise UsageError("a recipe and --command contradict each other", hint="leave one out")
        return planner.of_a_command(commandline.parse(text), tp)
    from spark_cluster.config.allowance_checks import (
        files_must_be_allowed,
        missing_variables,
        mounts_must_be_allowed,
    )
    from spark_cluster.config.launch import of_recipe
    from spark_cluster.loader.recipes import load_recipe
    from spark_cluster.serving import firewall

    if name is None and app.inventory_is_missing:
        raise UsageError("found neither a recipe nor --command", hint=NAME_ONE)
    name = name or app.inventory.serve.recipe
    if name is None:
        raise UsageError("found neither a recipe nor --command", hint=NAME_ONE)
    recipe = load_recipe(name, app.project, allow)
    files_must_be_allowed(recipe)
    mounts_must_be_allowed(recipe)
    sizes = recipe.tensor_parallel
    size = sizes.min if offline else min(max(len(app.nodes), sizes.min), sizes.max)
    subject = planner.of_a_recipe(recipe, of_recipe(recipe, tp or size))
    inventory = None if app.inventory_is_missing else app.inventory
    told = firewall.remarks(inventory, recipe, subject.launch.tp)
    asked = [
        f"the recipe asks for {variable} of this machine: `up` needs --allow-env {variable}"
        for _, variable in missing_variables(recipe)
    ]
    return replace(subject, remarks=(*told, *asked))


def _rooms(
    app: App, subject: Subject, least: int, available: float | None, *, offline: bool
) -> tuple[list[NodeMemory], list[Facts]]:
    """The nodes, the head first, and their facts; where they are unknown, Sparks are assumed."""
    from spark_cluster.planning.room import assumed

    if offline:
        return assumed(max(least, subject.launch.tp, 2), available), []
    from spark_cluster.runner.options import Options
    from spark_cluster.serving.survey import survey

    with app.play("plan", app.nodes, Options(), change=False) as run:
        play = run.open()
        rooms, facts = survey(play, subject.node_path)
        run.finish()
    missing = least - len(rooms)
    if missing > 0:
        rooms += [
            room for room in assumed(least + missing) if room.name not in {r.name for r in rooms}
        ][:missing]
    return rooms, facts


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

        show_advice(app.console, subject.title, advice)
    ctx.exit(0 if advice.best is not None or advice.undecided else 4)
