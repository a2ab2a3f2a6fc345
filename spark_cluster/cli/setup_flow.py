"""The steps of `setup`: commands as a user could type them, in this process; and what is asked."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import click

from spark_cluster.cli.app import App, exit_status
from spark_cluster.cli.console import mark, styled, visible
from spark_cluster.cli.display import show_failure, tell
from spark_cluster.cli.terminal import Console
from spark_cluster.cli.up import next_commands
from spark_cluster.config import discovery
from spark_cluster.config.discovery import (
    DEFAULT_RECIPE,
    Answers,
    Candidate,
    Discovered,
    answers_in,
)
from spark_cluster.config.extension import Allowances
from spark_cluster.config.project import INVENTORY
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import Interrupted, Refused, SparkClusterError, UsageError
from spark_cluster.plan.planner import Planner
from spark_cluster.plan.proposal import USERS, Preference, Proposal, Want, propose

State = Literal["done", "nothing to do", "declined", "failed", "would run"]

STEPS = ("nodes", "trust", "login", "provision", "model", "up")

T = TypeVar("T")


@dataclass
class SetupStep:
    """A step of `setup`.

    Attributes:
        state: how it ended.
        commands: what it ran, or would run, as a user could type it.
    """

    name: str
    state: State = "done"
    commands: list[str] = field(default_factory=list)


class StepFailed(Exception):
    """A step did not succeed, so that those after it are not begun.

    Args:
        again: the command that goes on with it.
    """

    def __init__(self, status: int, again: str) -> None:
        super().__init__(again)
        self.status = status
        self.again = again


@dataclass
class Flow:
    """A run of `setup`.

    Args:
        root: the program's commands.
        app: the global options.
        typed: the options of `setup` itself, as they were typed.

    Attributes:
        count: nodes that there are.
        planned: in check mode, what the inventory would be written from.
    """

    root: click.Command
    app: App
    ask: Asker
    typed: Sequence[str] = ()
    steps: list[SetupStep] = field(default_factory=list)
    count: int = 1
    planned: Answers | None = None

    @property
    def was_there(self) -> bool:
        """True if the inventory is older than this run."""
        return self.steps[0].state == "nothing to do"

    @contextlib.contextmanager
    def step(self, name: str, title: str) -> Iterator[SetupStep]:
        """Run one step under its title; what fails in it stops the run.

        Raises:
            StepFailed: it failed, or was interrupted.
        """
        now = SetupStep(name)
        self.steps.append(now)
        place = f"{STEPS.index(name) + 1}/{len(STEPS)}"
        self.say("\n[bold]{}  {}[/]", place, title)
        try:
            yield now
        except StepFailed:
            now.state = "failed"
            raise
        except (KeyboardInterrupt, click.Abort):
            now.state = "failed"
            click.echo("", err=True)  # the question's line has no end
            raise StepFailed(Interrupted.exit_code, self.again) from None
        except SparkClusterError as error:
            now.state = "failed"
            show_failure(error)
            raise StepFailed(error.exit_code, self.again) from None

    def say(self, template: str, *values: object) -> None:
        """Print for people: with --json on standard error."""
        Console(stderr=self.app.as_json).say(template, *values)

    def text(self, text: str, *, indent: int = 0) -> None:
        """Print further words."""
        self.say("[dim]{}[/]", " " * indent + text)

    def note(self, verdict: str, text: str) -> None:
        """Print a line with a sign."""
        self.say("{} {}", mark(verdict), text)

    @property
    def again(self) -> str:
        """The command that goes on after what is done: this one."""
        return self.line("setup", *self.typed)

    def line(self, *words: str) -> str:
        """Return a command as a user types it."""
        return shlex.join(["spark-cluster", *self.app.given, *words])

    def run(self, step: SetupStep, *words: str, quiet: bool = False) -> None:
        """Run a command in this process, in its own display.

        Args:
            quiet: leave out what it prints on standard output, such as what to do next.

        Raises:
            StepFailed: it did not succeed.
        """
        line = self.line(*words)
        step.commands.append(line)
        self.say("[bold cyan]$ {}[/]", line)
        if self.ask.check:
            step.state = "would run"
            return
        out = io.StringIO() if quiet else sys.stderr if self.app.as_json else sys.stdout
        try:
            with contextlib.redirect_stdout(out):
                status = exit_status(lambda: self._main(*words))
        except (click.Abort, KeyboardInterrupt):
            status = Interrupted.exit_code
        if status:
            raise StepFailed(status, line)

    def _main(self, *words: str) -> Any:
        """Run a command with the global options and the answers that this run has been given."""
        args = [*self.app.given, *words]
        return self.root.main(args, "spark-cluster", standalone_mode=False, obj=self.app)

    def document(self, *words: str) -> dict[str, Any] | None:
        """Return what a command that changes nothing prints with --json; None when it fails."""
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                if self._main(*words, "--json"):
                    return None
            found = json.loads(out.getvalue())
        except (SparkClusterError, click.ClickException, SystemExit, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def offer(self, step: SetupStep, question: str, *words: str) -> None:
        """Run a command where the user wants it now.

        Raises:
            StepFailed: it did not succeed.
        """
        if self.ask.consent(question):
            self.run(step, *words)
            return
        step.state = "declined"
        line = self.line(*words)
        step.commands.append(line)
        self.say("[dim]not now; later:[/] {}", line)

    def nothing_to_do(self, step: SetupStep, text: str) -> None:
        """Note that a step was done before."""
        step.state = "nothing to do"
        self.note("ok", text)

    def show_end(self) -> None:
        """Print what is left to do, when no step has failed."""
        if self.ask.check:
            return
        left = [step for step in self.steps if step.state == "declined"]
        if left:
            names = ", ".join(step.name for step in left)
            self.say("\n{} not done: {}. Go on with:", mark("warn"), names)
            self.say("  [bold]{}[/]", self.again)
            return
        self.say("\n{} it serves", mark("ok"))
        if self.steps[-1].state == "nothing to do":  # `up` has said it by itself
            self.say("{}", next_commands(self.app))

    def show_way_on(self, stopped: StepFailed) -> None:
        """Print which command goes on from here."""
        name = self.steps[-1].name
        self.say("\n{} step {} is not done. Go on with:", mark("warn"), name)
        self.say("  [bold]{}[/]", stopped.again)
        if stopped.again != self.again:
            self.say("  [bold]{}[/]  [dim]goes on after what is done[/]", self.again)


@dataclass(frozen=True)
class Asker:
    """Asks; with --yes every consent is given, and every choice the first one.

    Args:
        yes: ask nothing.
        check: ask nothing either: nothing is done.
    """

    yes: bool
    check: bool = False

    @property
    def silent(self) -> bool:
        """True when nothing is asked."""
        return self.yes or self.check

    def must_be_able(self, would_ask: Sequence[str]) -> None:
        """Refuse to begin where questions would come that no one can answer.

        Raises:
            UsageError: there is no terminal, and no --yes; with what would be asked.
        """
        if self.silent or (sys.stdin.isatty() and sys.stderr.isatty()):
            return
        raise UsageError(
            "setup asks questions, and there is no terminal to ask on:\n  "
            + "\n  ".join(would_ask),
            hint="give the answers as options, and --yes for the consent to every step",
        )

    def consent(self, question: str, *, default: bool = True) -> bool:
        """Ask for a yes or no."""
        return self.silent or click.confirm(visible(question), default=default, err=True)

    def offer(self, question: str) -> bool:
        """Ask whether to do what only a person may decide: no unless someone says yes."""
        return not self.silent and click.confirm(visible(question), default=True, err=True)

    def text(self, question: str, default: str | None = None) -> str:
        """Ask for a word."""
        found: str = click.prompt(visible(question), default=default, err=True)
        return found.strip()

    def until_valid(self, question: str, default: str | None, read: Callable[[str], T]) -> T:
        """Ask until the answer can be used; `read` raises UsageError with what was expected."""
        while True:
            try:
                return read(self.text(question, default))
            except UsageError as error:
                tell(f"  {error.message}")

    def choice(self, question: str, count: int, default: int = 1) -> int:
        """Ask for one of a numbered list; 0 is the first."""
        if self.silent:
            return default - 1
        found: int = click.prompt(
            visible(question), default=default, type=click.IntRange(1, count), err=True
        )
        return found - 1


WANTS = {
    "chat": "answers in conversations",
    "coding": "tool calls and a long context, for coding agents",
    "vision": "pictures, too",
    "embedding": "vectors for search",
}
SPEEDS = {"latency": "fast for one user", "throughput": "fast for many at once"}

SHOWN = 5
"""Proposals that are shown."""


def nodes(flow: Flow, step: SetupStep, asked: Answers, interface: str | None) -> None:
    """Have an inventory: the one that is there, or one of the machines that are named or found.

    Args:
        asked: what the options say.
        interface: address of this machine's one interface on which to look for Sparks.

    Raises:
        UsageError: no node is named, and none could be asked for.
    """
    app = flow.app
    if not app.cluster.inventory_is_missing:
        _known(flow, step, asked.addresses)
        return
    answers = _answers(flow, asked, interface)
    flow.count = len(answers.addresses)
    write(flow, step, answers, new=True)


def _known(flow: Flow, step: SetupStep, named: tuple[str, ...]) -> None:
    inventory = flow.app.inventory
    known = [node.address for node in inventory.nodes.values()]
    if named and list(named) != known:
        raise UsageError(
            f"the inventory has other nodes ({', '.join(known)})",
            hint=f"edit {inventory_path(flow)}, or write it again: "
            f"{flow.line('init', *_nodes(named), '--force')}",
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


def write(flow: Flow, step: SetupStep, answers: Answers, *, new: bool = False) -> None:
    """Write the inventory, or write it again with other answers, where that changes anything."""
    if not new and own_answers(flow) == answers:
        return
    words = ["init", *_nodes(answers.addresses)]
    usual = {"recipe": DEFAULT_RECIPE} if new else {}
    for name in ("user", "identity_file", "port", "recipe", "sudo_password"):
        value = getattr(answers, name)
        if value not in (None, usual.get(name)):
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--passwordless-sudo"] if answers.passwordless_sudo else []
    flow.run(step, *words, "--yes", *([] if new else ["--force"]), quiet=True)
    if not flow.ask.check:
        flow.note("ok", f"wrote {inventory_path(flow)}")
    flow.planned = answers if flow.ask.check else None
    flow.app.cluster.read_again()


def _answers(flow: Flow, asked: Answers, interface: str | None) -> Answers:
    port, addresses = asked.port, asked.addresses
    if not addresses:
        chosen = _choose(flow, interface)
        addresses = tuple(one.address for one in chosen)
        ports = {one.port for one in chosen} - {22}
        port = port or (ports.pop() if ports else None)
    user = asked.user
    if user is None and not flow.ask.silent:
        user = flow.ask.text("User on the Sparks", default="nvidia") or None
    return replace(asked, addresses=addresses, user=user, port=port)


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


def find(flow: Flow, interface: str | None) -> Discovered:
    """Look for Sparks on the local network, and print what was found."""
    flow.text(f"listening on the local network for {discovery.LISTEN_S:.0f} s (mDNS) ...")
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
        flow.say("  {}  {}  [dim]{}[/]", number, place, one.why)
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
        flow.text(f"{count} SSH under a name that is not a Spark's", indent=2)
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


# -- what is served --------------------------------------------------------------------------------


def model(
    flow: Flow, step: SetupStep, recipe: str | None, want: str | None, speed: str | None
) -> list[str]:
    """Choose what to serve; return the options of `up` for it.

    Raises:
        Refused: nothing that is known fits.
        UsageError: there is no such recipe.
    """
    if recipe is not None:
        flow.app.project.find("recipes", recipe)
        return _taken(flow, step, recipe)
    # In check mode the inventory may not be there yet.
    have = flow.app.own_recipe
    if have and want is None and flow.ask.silent and flow.was_there:
        flow.nothing_to_do(step, f"the inventory names the recipe {have}")
        return []
    want = want or _one_of(flow, "What is it for?", WANTS)
    if speed is None:
        speed = "latency" if want == "embedding" else _one_of(flow, "How fast?", SPEEDS)
    count = flow.count
    found = proposals(flow, cast(Want, want), cast(Preference, speed), count)
    if not found:
        raise Refused(
            f"no recipe for {want} fits {count} idle Spark{'s' if count > 1 else ''}",
            hint=f"{flow.line('recipes', 'list')} shows all; then: {flow.again} --recipe NAME",
        )
    _show_proposals(flow, found)
    picked = found[flow.ask.choice("Which one", len(found[:SHOWN]))]
    return _taken(flow, step, picked.recipe, picked.option)


def _one_of(flow: Flow, question: str, options: dict[str, str]) -> str:
    names = list(options)
    if not flow.ask.silent:
        flow.say("{}", question)
        width = max(map(len, names))
        for number, name in enumerate(names, 1):
            flow.say("  {}  [bold]{}[/]  {}", number, name.ljust(width), options[name])
    return names[flow.ask.choice("Number", len(names))]


def proposals(flow: Flow, want: Want, speed: Preference, nodes: int) -> list[Proposal]:
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
        flow.say("  {}  [bold]{}[/]  {}  {}", number, name, one.option, speed)
        flow.text(one.description, indent=5)


def _taken(flow: Flow, step: SetupStep, recipe: str, option: str = "") -> list[str]:
    """Write the choice into the inventory where that is ours; otherwise it goes to `up`.

    Args:
        option: of `up`, which says on which nodes.
    """
    answers, app = own_answers(flow), flow.app
    if answers is not None:
        write(flow, step, replace(answers, recipe=recipe))
    flow.note("ok", f"recipe {recipe}  {option}".rstrip())
    is_named = app.cluster.inventory_is_missing or recipe == app.own_recipe
    if is_named:
        return option.split()
    flow.note("info", f"your inventory stays as it is; `serve: {{recipe: {recipe}}}` there makes a "
              "plain `up` serve this one")  # fmt: skip
    return [*option.split(), "--recipe", recipe]
