"""Several models of the inventory, as `plan` and `up` take them from the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_cluster.cli.serving_options import recipe_to_serve
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_cluster.cli.app import App
    from spark_cluster.cli.console import Console
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.planning.planner import Planner, Question
    from spark_cluster.planning.together import NodeTogether, Placed, PlanTogether
    from spark_cluster.serving.models import ServedModel


OVERRIDE = "an override such as -o, -e or --max-model-len"


def serves_several(app: App) -> bool:
    """Return whether the inventory names several models."""
    return not app.inventory_is_missing and bool(app.inventory.serve.recipes)


def must_be_for_all(given: Mapping[str, object]) -> None:
    """Refuse options that are for one recipe.

    Args:
        given: option to whether it was given.

    Raises:
        UsageError: with the first of them.
    """
    for option, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{option} is for one recipe, and the inventory serves several",
                hint="name the recipe to plan or serve it alone, or change the recipes: "
                "`spark-cluster recipes save` makes one with other values",
            )


def models_to_serve(app: App, allow: Allowances) -> tuple[ServedModel, ...]:
    """Return the inventory's models; what cannot be is refused before any node is asked.

    Raises:
        SparkClusterError: a recipe is wrong, or they cannot be served next to each other.
    """
    from spark_cluster.serving.models import ServedModel, must_go_together

    head = app.inventory.head.name
    found = tuple(
        ServedModel(
            recipe_to_serve(app, entry.recipe, (), allow),
            entry.node or head,
            tuple(entry.aliases),
        )
        for entry in app.inventory.serve.recipes
    )
    must_go_together(found)
    return found


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
        placed = [Placed(model.subject, replace(spark, name=model.node)) for model in models]
    else:
        placed = _asked(app, planner, models)
    return plan_together(planner, placed, question)


def _asked(app: App, planner: Planner, models: Sequence[ServedModel]) -> list[Placed]:
    from spark_cluster.runner.options import Options
    from spark_cluster.serving.hub_on_node import NodeDocuments
    from spark_cluster.serving.models import placed
    from spark_cluster.transfer.stored import stored_models

    with app.play("plan", app.nodes, Options(), change=False) as run:
        play = run.open()
        stored = [stored_models(play, model.recipe, play.nodes) for model in models]
        there = [s.there(m.recipe.model.name) for s, m in zip(stored, models, strict=True)]
        found = placed(play, models, there)
        for one in found:
            planner.look_up(one.subject, NodeDocuments(play.session(play.head)))
        run.finish()
    return found


def show_plan(console: Console, plan: PlanTogether) -> None:
    """Show the sum of each node, then each model's own plan."""
    from spark_cluster.cli.console import mark, painted, styled
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
    for one in plan.plans:
        console.print(painted("\n" + "─" * 78, "dim"))
        show(console, one)


def _show_node(console: Console, node: NodeTogether) -> None:
    from rich.table import Table

    from spark_cluster.cli.console import painted
    from spark_cluster.models.memory import OUTSIDE_GIB, RESERVE_GIB

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(node.room.name, overflow="fold")
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_row("available", f"{node.room.available_gib:.1f}")
    for one in node.models:
        table.add_row(one.title, f"-{one.reserved_gib:.1f}")
    in_addition = f"taken by {len(node.models)} servers in addition, {OUTSIDE_GIB:g} each"
    table.add_row(in_addition, f"-{OUTSIDE_GIB * len(node.models):.1f}")
    style = "green" if not node.reason else "red"
    table.add_row(
        painted(f"left (the system keeps {RESERVE_GIB:g})", style),
        painted(f"{node.left_gib:.1f}", style),
    )
    console.print(table)
