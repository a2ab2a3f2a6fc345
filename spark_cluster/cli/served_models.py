"""`plan` of several models: the sum of each node, then each model's own plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_cluster.cli.console import mark, painted, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_cluster.cli.app import App
    from spark_cluster.cli.terminal import Console
    from spark_cluster.engine.models import ServedModel
    from spark_cluster.planning.planner import Planner, Question
    from spark_cluster.planning.together import NodeTogether, Placed, PlanTogether


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
    from spark_cluster.engine.copies.stored import stored_models
    from spark_cluster.engine.hub_on_node import NodeDocuments
    from spark_cluster.engine.models import placed
    from spark_cluster.runner.options import Options

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
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(node.room.name, overflow="fold")
    table.add_column("GiB", justify="right", no_wrap=True)
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
