"""What `setup` serves: proposals for what the user wants, by the arithmetic of `plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from spark_cluster.cli.console import styled
from spark_cluster.cli.setup_flow import Flow, Step
from spark_cluster.cli.setup_nodes import own_answers, write
from spark_cluster.errors import Refused, SparkClusterError
from spark_cluster.planning.proposal import USERS

if TYPE_CHECKING:
    from spark_cluster.planning.proposal import Proposal, Speed, Want

WANTS = {
    "chat": "answers in conversations",
    "coding": "tool calls and a long context, for coding agents",
    "vision": "pictures, too",
    "embedding": "vectors for search",
}
SPEEDS = {"latency": "fast for one user", "throughput": "fast for many at once"}

SHOWN = 5
"""Proposals that are shown."""


@dataclass(frozen=True)
class Model:
    """What is served: a recipe, and the option of `up` that says on which nodes."""

    recipe: str
    option: str


def model(
    flow: Flow, step: Step, recipe: str | None, want: str | None, speed: str | None
) -> Model | None:
    """Choose what to serve; None leaves it to the inventory as it is.

    Raises:
        Refused: nothing that is known fits.
        UsageError: there is no such recipe.
    """
    if recipe is not None:
        flow.app.project.find("recipes", recipe)
        return _taken(flow, step, Model(recipe, ""))
    # In check mode the inventory may not be there yet.
    have = "" if flow.app.inventory_is_missing else flow.app.inventory.serve.recipe
    if have and want is None and flow.ask.silent and _was_there(flow):
        flow.nothing_to_do(step, f"the inventory names the recipe {have}")
        return Model(have, "")
    want = want or _one_of(flow, "What is it for?", WANTS)
    if speed is None:
        speed = "latency" if want == "embedding" else _one_of(flow, "How fast?", SPEEDS)
    count = flow.count
    found = proposals(flow, cast("Want", want), cast("Speed", speed), count)
    if not found:
        raise Refused(
            f"no recipe for {want} fits {count} idle Spark{'s' if count > 1 else ''}",
            hint=f"{flow.line('recipes', 'list')} shows all; then: {flow.line('setup')} "
            "--recipe NAME",
        )
    _show(flow, found)
    picked = found[flow.ask.choice("Which one", len(found[:SHOWN]))]
    return _taken(flow, step, Model(picked.recipe, picked.option))


def _was_there(flow: Flow) -> bool:
    """Return whether the inventory is older than this run."""
    return flow.steps[0].state == "nothing to do"


def _one_of(flow: Flow, question: str, options: dict[str, str]) -> str:
    names = list(options)
    if not flow.ask.silent:
        flow.say(question)
        width = max(map(len, names))
        for number, name in enumerate(names, 1):
            flow.say(styled("  {}  [bold]{}[/]  {}", number, name.ljust(width), options[name]))
    return names[flow.ask.choice("Number", len(names))]


def proposals(flow: Flow, want: Want, speed: Speed, nodes: int) -> list[Proposal]:
    """Return what fits, the best first; recipes that cannot be read are not among them."""
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.loader.recipes import load_recipe
    from spark_cluster.planning.planner import Planner
    from spark_cluster.planning.proposal import propose

    project, recipes = flow.app.project, []
    for name in project.list("recipes"):
        try:
            recipes.append(load_recipe(name, project, Allowances()))
        except SparkClusterError as error:
            flow.note("warn", f"recipe {name} is left out: {error.message}")
    return propose(Planner(project), recipes, want, speed, nodes)


def _show(flow: Flow, found: list[Proposal]) -> None:
    many = found[0].total_tok_s > found[0].tok_s
    users = f"{USERS['throughput']} users together" if many else "one user"
    flow.text(f"By the arithmetic of `plan`, for {users} on idle Sparks, with the range:")
    width = max(len(one.recipe) for one in found[:SHOWN])
    for number, one in enumerate(found[:SHOWN], 1):
        speed = ""
        if one.tok_s:
            count = one.total_tok_s / one.tok_s
            low, high = one.low * count, one.high * count
            speed = f"{one.total_tok_s:4.0f} tok/s ({low:.0f} to {high:.0f})"
        name = one.recipe.ljust(width)
        flow.say(styled("  {}  [bold]{}[/]  {}  {}", number, name, one.option, speed))
        flow.text(one.description, indent=5)


def _taken(flow: Flow, step: Step, chosen: Model) -> Model:
    """Write the choice into the inventory where that is ours; otherwise it goes to `up`."""
    answers = own_answers(flow)
    if answers is not None:
        write(flow, step, replace(answers, recipe=chosen.recipe))
    flow.note("ok", f"recipe {chosen.recipe}  {chosen.option}".rstrip())
    return chosen
