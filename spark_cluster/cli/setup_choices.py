"""What `setup` asks: which machines, and what they serve; and the inventory that says both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from spark_cluster import discovery
from spark_cluster.cli.console import painted, styled
from spark_cluster.cli.setup_flow import Flow, Step
from spark_cluster.config.allowances import Allowances
from spark_cluster.discovery import Candidate, Found
from spark_cluster.errors import Refused, SparkClusterError, UsageError
from spark_cluster.loader.new_inventory import DEFAULT_RECIPE, Answers, answers_in
from spark_cluster.loader.project import INVENTORY
from spark_cluster.loader.recipes import load_recipe
from spark_cluster.planning.planner import Planner
from spark_cluster.planning.proposal import USERS, Proposal, Speed, Want, propose

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
class Asked:
    """The nodes as the options name them."""

    addresses: tuple[str, ...]
    user: str | None
    identity_file: str | None
    port: int | None
    interface: str | None
    recipe: str | None = None


def nodes(flow: Flow, step: Step, asked: Asked) -> None:
    """Have an inventory: the one that is there, or one of the machines that are named or found.

    Raises:
        UsageError: no node is named, and none could be asked for.
    """
    app = flow.app
    if not app.inventory_is_missing:
        _known(flow, step, asked)
        return
    answers = _answers(flow, asked)
    flow.count = len(answers.addresses)
    write(flow, step, answers, new=True)


def _known(flow: Flow, step: Step, asked: Asked) -> None:
    inventory = flow.app.inventory
    known = [node.address for node in inventory.nodes.values()]
    if asked.addresses and list(asked.addresses) != known:
        raise UsageError(
            f"the inventory has other nodes ({', '.join(known)})",
            hint=f"edit {inventory_path(flow)}, or write it again: "
            f"{flow.line('init', *_nodes(asked.addresses), '--force')}",
        )
    names = ", ".join(f"{node.name} ({node.address})" for node in inventory.nodes.values())
    flow.count = len(flow.app.nodes)
    flow.nothing_to_do(step, f"the inventory names {names}")


def _nodes(addresses: tuple[str, ...]) -> list[str]:
    return [word for address in addresses for word in ("--node", address)]


def inventory_path(flow: Flow) -> Path:
    """Return where the inventory of the project is, or will be."""
    return flow.app.project.folder / INVENTORY


def own_answers(flow: Flow) -> Answers | None:
    """Return what the project's inventory was written from; None when it is not ours to write."""
    path = inventory_path(flow)
    if flow.app.cluster.named is not None or not path.exists():
        return flow.planned
    return answers_in(path)


def write(flow: Flow, step: Step, answers: Answers, *, new: bool = False) -> None:
    """Write the inventory, or write it again with other answers, where that changes anything."""
    if not new and own_answers(flow) == answers:
        return
    words = ["init", *_nodes(answers.addresses)]
    recipe = None if new and answers.recipe == DEFAULT_RECIPE else answers.recipe
    for option, value in (
        ("--user", answers.user),
        ("--identity-file", answers.identity_file),
        ("--port", answers.port),
        ("--recipe", recipe),
        ("--sudo-password", answers.sudo_password),
    ):
        words += [option, str(value)] if value is not None else []
    words += ["--passwordless-sudo"] if answers.passwordless_sudo else []
    flow.run(step, *words, "--yes", *([] if new else ["--force"]), quiet=True)
    if not flow.check:
        flow.note("ok", f"wrote {inventory_path(flow)}")
    flow.planned = answers if flow.check else None
    flow.app.cluster.read_again()


def _answers(flow: Flow, asked: Asked) -> Answers:
    port, addresses = asked.port, asked.addresses
    if not addresses:
        chosen = _choose(flow, asked.interface)
        addresses = tuple(one.address for one in chosen)
        ports = {one.port for one in chosen} - {22}
        port = port or (ports.pop() if ports else None)
    user = asked.user
    if user is None and not flow.ask.silent:
        user = flow.ask.text("User on the Sparks", default="nvidia") or None
    recipe = asked.recipe or DEFAULT_RECIPE
    return Answers(addresses, user, asked.identity_file, recipe, port)


def _choose(flow: Flow, interface: str | None) -> list[Candidate]:
    """Show what was found, and ask which of it.

    Raises:
        UsageError: --yes leaves no one to look at what was found.
    """
    found = find(flow, interface)
    if flow.ask.silent:
        named = ",".join(one.address for one in found.obvious) or "ADDRESS[,ADDRESS]"
        raise UsageError(
            "no node is named: anyone on the local network can announce a name, so that what was "
            "found there is for a person to choose from",
            hint=f"--nodes {named}",
        )
    default = ",".join(str(n) for n in range(1, len(found.obvious) + 1)) or None
    question = (
        "Which of them, the head first (numbers or addresses, with commas)"
        if found.candidates
        else "Their addresses, the head first (with commas)"
    )
    return flow.ask.until_valid(question, default, lambda text: chosen(text, found.candidates))


def find(flow: Flow, interface: str | None) -> Found:
    """Look for Sparks on the local network, and print what was found."""
    flow.say(
        painted(f"listening on the local network for {discovery.LISTEN_S:.0f} s (mDNS) ...", "dim")
    )
    try:
        announced = discovery.browse(discovery.LISTEN_S, interface)
    except UsageError as error:
        flow.note("warn", f"{error.message}")
        announced = []
    found = discovery.candidates(announced, discovery.of_this_machine(), discovery.networks())
    wide = max((len(one.address) for one in found.candidates), default=0)
    also = max((len(one.also) for one in found.candidates), default=0)
    for number, one in enumerate(found.candidates, 1):
        place = styled("[bold]{}[/]  {}", one.address.ljust(wide), one.also.ljust(also))
        flow.say(styled("  {}  {}  [dim]{}[/]", number, place, one.why))
    if not found.candidates:
        flow.note("warn", "no Spark announces itself here")
        flow.text(
            "Its name (spark-xxxx.local) is in its quick start guide; your router lists its "
            "address, and its own screen shows it. It has to be on the same network as this "
            "machine.",
            indent=2,
        )
    if found.others:
        count = (
            "1 other machine announces" if found.others == 1 else f"{found.others} others announce"
        )
        flow.text(f"{count} SSH under a name that is no Spark's", indent=2)
    return found


def chosen(text: str, found: Sequence[Candidate]) -> list[Candidate]:
    """Read an answer: numbers of the list, or addresses.

    Raises:
        UsageError: it is none of them, or one twice.
    """
    picked = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        if not word.isdigit():
            picked.append(Candidate(word, "", "named"))
        elif 1 <= int(word) <= len(found):
            picked.append(found[int(word) - 1])
        else:
            raise UsageError(f"found {word}, expected a number from 1 to {len(found)}")
    addresses = [one.address for one in picked]
    if not picked or len(set(addresses)) < len(addresses):
        raise UsageError("expected one or more different machines, such as 1,2")
    return picked


# -- what is served -------------------------------------------------------------------------------


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
    found = proposals(flow, cast(Want, want), cast(Speed, speed), count)
    if not found:
        raise Refused(
            f"no recipe for {want} fits {count} idle Spark{'s' if count > 1 else ''}",
            hint=f"{flow.line('recipes', 'list')} shows all; then: {flow.line('setup')} "
            "--recipe NAME",
        )
    _show_proposals(flow, found)
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
    project, recipes = flow.app.project, []
    for name in project.list("recipes"):
        try:
            recipes.append(load_recipe(name, project, Allowances()))
        except SparkClusterError as error:
            flow.note("warn", f"recipe {name} is left out: {error.message}")
    return propose(Planner(project), recipes, want, speed, nodes)


def _show_proposals(flow: Flow, found: list[Proposal]) -> None:
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
