"""The first steps with Sparks: `init` writes an inventory, `trust` accepts the host keys.

And `completion` for the shell that all commands are typed in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, cast

import click
from click.shell_completion import ShellComplete, get_completion_class

from spark_cluster.cli.app import App
from spark_cluster.cli.console import visible
from spark_cluster.cli.options import DeclaredCommand, Port
from spark_cluster.config.discovery import DEFAULT_RECIPE, Answers
from spark_cluster.config.discovery import write as write_inventory
from spark_cluster.config.schema import env_name
from spark_cluster.errors import Failed, SparkClusterError, Unreachable, UsageError, worst
from spark_cluster.runner.known_hosts import HostKey, file_of, write
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.ssh import REVOKED_HINT, Connection
from spark_cluster.runner.ssh_route import SshHop, route

PROGRAM = "spark-cluster"
VARIABLE = "_SPARK_CLUSTER_COMPLETE"
"""The variable in which click looks for a shell's request, derived from the program's name."""


@dataclass(frozen=True)
class Written:
    """The document of `init`.

    Attributes:
        file: path of the inventory that was written.
        nodes: names of its nodes.
        next: commands to run next.
    """

    ok: bool
    file: str
    nodes: list[str]
    next: list[str]


@click.command("init", cls=DeclaredCommand, output=Written)
def init(
    app: App,
    *,
    addresses: tuple[str, ...],
    user: str | None,
    identity_file: str | None,
    port: Port | None,
    recipe: str | None,
    sudo_password: str | None,
    passwordless_sudo: bool,
    force: bool,
    yes: bool,
) -> None:
    """Write a commented inventory.yaml for one or more Sparks into the project folder.

    Args:
        addresses (--node ADDRESS): Management address of a Spark, the head first; repeatable.
        user (NAME): User to log in as (default: as ~/.ssh/config says).
        identity_file (FILE): Private key (default: agent and ~/.ssh).
        port: Port of the nodes' sshd.
        recipe (NAME): What to serve.
        sudo_password (SOURCE): Where sudo's password comes from: `prompt`, or the name of an
            environment variable.
        passwordless_sudo: Have `provision` let the user use sudo without a password.
        force: Replace an existing inventory.yaml.
        yes: Ask nothing.
    """
    project = app.project
    path = project.folder / "inventory.yaml"
    # Before the questions: no one likes to answer them for nothing.
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="edit it, or replace it with --force")
    if not addresses and yes:
        raise _no_node()
    if not addresses:
        try:
            addresses = _ask_addresses()
            user = user or click.prompt("User on the Sparks", default="nvidia", err=True)
        except click.Abort:
            # Ctrl-C at a terminal stays what it is; without one there was no one to ask.
            if sys.stdin.isatty():
                raise click.Abort from None
            click.echo("", err=True)  # the question's line has no end
            raise _no_node() from None
    answers = Answers(
        addresses,
        user,
        identity_file,
        recipe or DEFAULT_RECIPE,
        port,
        _source(sudo_password),
        passwordless_sudo,
    )
    inventory = write_inventory(path, answers, project)
    _print(app, path, list(inventory.nodes))


def _source(text: str | None) -> str | None:
    """Raises:
    UsageError: it is neither `prompt` nor the name of a variable; it could be the password.
    """
    if text in (None, "prompt"):
        return text
    try:
        return env_name(str(text))
    except ValueError:
        raise UsageError(
            "--sudo-password: expected `prompt` or the name of an environment variable",
            hint="the password itself never stands on a command line",
        ) from None


def _no_node() -> UsageError:
    return UsageError("no node given", hint="name each Spark with --node ADDRESS")


def _ask_addresses() -> tuple[str, ...]:
    addresses = [click.prompt("Address of the first Spark (the head)", err=True)]
    while True:
        more = click.prompt(
            "Address of the next Spark (empty: no more)", default="", show_default=False, err=True
        )
        if not more:
            return tuple(addresses)
        addresses.append(more)


def _print(app: App, path: Path, nodes: list[str]) -> None:
    steps = {
        "spark-cluster trust": "accept the nodes' host keys",
        "spark-cluster ping": "check that they answer",
        f"spark-cluster up --tp {min(len(nodes), 2)}": "serve",
    }
    told = (f"  {step:<24}  {meaning}" for step, meaning in steps.items())
    text = "\n".join((f"Wrote {path} ({', '.join(nodes)}). Next:", *told))
    app.show(Written(True, str(path), nodes, list(steps)), text)


# -- `trust`: look at the host keys of the nodes and their jump hosts, and accept them -------------


@dataclass(frozen=True)
class ShownKey:
    """A host key that a node or jump host has shown.

    Attributes:
        host: as known_hosts names it.
        was: new, trusted, changed or revoked, compared with known_hosts before.
        trusted: it is accepted now.
    """

    host: str
    type: str
    fingerprint: str
    was: str
    trusted: bool


@dataclass(frozen=True)
class NodeKey(ShownKey):
    """The host key of a node."""

    name: str


@dataclass(frozen=True)
class JumpHostKey(ShownKey):
    """The host key of a jump host, and the nodes that are reached through it."""

    nodes: list[str]


@dataclass(frozen=True)
class UnreadKey:
    """A node of which no host key was seen, and why."""

    name: str
    error: str
    hint: str


@click.command(cls=DeclaredCommand)
def trust(app: App, *, replace: bool, yes: bool) -> int:
    """Show the SSH host key of every node and save those that you accept in known_hosts.

    Compare the fingerprints with the nodes' own: on a node,
    ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub prints it. A changed key is replaced only with
    --replace; a revoked key is never accepted. Jump hosts come first, then the nodes through them.

    Args:
        replace: Also accept a key that differs from the known one.
        yes (-y, --yes): Accept new keys without asking.
    """
    targets = {
        node.name: app.cluster.dialer.target(node) for node in app.nodes if not node.is_local
    }
    asking = _Asking(app, replace=replace, yes=yes)
    routes: dict[str, tuple[SshHop, ...]] = {}
    for name, outcome in in_parallel({n: partial(route, t) for n, t in targets.items()}).items():
        if isinstance(outcome, SparkClusterError):
            asking.fail(name, outcome)
        else:
            routes[name] = outcome
    for count in range(1, max(map(len, routes.values()), default=0) + 1):
        asking.look(routes, count)
    if app.as_json:
        rows = [asking.rows[name] for name in targets]
        app.print_json({"nodes": rows, "jump_hosts": asking.jump_rows})
    return worst(asking.errors)


@dataclass
class _Host:
    """A host whose key is asked for: a node, or a jump host of some."""

    nodes: list[str]
    hops: tuple[SshHop, ...]

    @property
    def label(self) -> str:
        names = ", ".join(self.nodes)
        return names if self.hops[-1].is_node else f"jump host of {names}"


@dataclass
class _Asking:
    """The keys shown and the decisions made so far."""

    app: App
    replace: bool
    yes: bool
    rows: dict[str, NodeKey | UnreadKey] = field(default_factory=dict)
    jump_rows: list[JumpHostKey] = field(default_factory=list)
    errors: list[SparkClusterError] = field(default_factory=list)

    def look(self, routes: Mapping[str, tuple[SshHop, ...]], count: int) -> None:
        """Ask the hosts that are `count` connections away, and write down what is accepted."""
        hosts: dict[object, _Host] = {}
        for name, hops in routes.items():
            if name not in self.rows and len(hops) >= count:
                way = (tuple(h.place for h in hops[:count]), hops[0].target.node.known_hosts)
                key = name if len(hops) == count else way
                hosts.setdefault(key, _Host([], hops[:count])).nodes.append(name)
        jobs = {
            host.label: Connection(host.hops, shared=False).shown_key for host in hosts.values()
        }
        outcomes = in_parallel(jobs) if jobs else {}
        for host in hosts.values():
            self._settle(host, outcomes[host.label])

    def fail(self, name: str, error: SparkClusterError) -> None:
        """Note a node whose key cannot be read."""
        self.errors.append(error)
        self.rows[name] = UnreadKey(name, error.message, error.hint)
        place = f"{error.where}: " if error.where not in ("", name) else ""
        what = "unreachable" if isinstance(error, Unreachable) else "failed"
        say = self.app.console.say
        say("{}: [red]{}[/]: {}{}", name, what, place, error.message)
        if error.hint:
            say("  {}", self.app.to_paste(error.hint))

    def _settle(self, host: _Host, outcome: HostKey | SparkClusterError) -> None:
        if isinstance(outcome, SparkClusterError):
            for name in host.nodes:
                self.fail(name, outcome)
            return
        written, refusal = _decide(self.app, host, outcome, replace=self.replace, yes=self.yes)
        if written:
            try:
                write(file_of(host.hops[-1]), outcome)
            except SparkClusterError as error:
                self._settle(host, error)
                return
        trusted = written or outcome.verdict == "trusted"
        row = (outcome.host, outcome.kind, outcome.fingerprint, outcome.verdict, trusted)
        if host.hops[-1].is_node:
            self.rows[host.nodes[0]] = NodeKey(*row, host.nodes[0])
            self.errors.extend([refusal] if refusal is not None else [])
            return
        self.jump_rows.append(JumpHostKey(*row, host.nodes))
        if refusal is not None:
            for name in host.nodes:
                self.fail(name, refusal)


def _decide(
    app: App, host: _Host, shown: HostKey, *, replace: bool, yes: bool
) -> tuple[bool, SparkClusterError | None]:
    """Return whether to write the key, and the error when it is refused."""
    key = f"{host.label}: {shown.host} shows {shown.kind} {shown.fingerprint}"
    known, say = shown.line, app.console.say
    if known is None:
        say("{}  [yellow]new[/]", key)
    elif shown.verdict == "trusted":
        say("{}  [green]trusted already[/]", key)
        return False, None
    elif shown.verdict == "revoked":
        say("{}  [red]REVOKED[/] by {}", key, known.place)
        say("  {}", REVOKED_HINT)
        return False, _refusal(host, shown, f"was revoked by {known.place}", REVOKED_HINT)
    else:
        say("{}  [red]CHANGED[/], known is {} ({})", key, known.fingerprint, known.place)
        if not replace:
            say("  a reinstalled node has a new key; when you know why: --replace")
            return False, _refusal(host, shown, "has changed", "trust --replace accepts it")
    if yes:
        return True, None
    if not sys.stdin.isatty():
        say("  there is no terminal to ask on; --yes accepts it")
    elif click.confirm("  accept it?", err=True):
        return True, None
    return False, _refusal(host, shown, "was not accepted", "trust --yes accepts it")


def _refusal(host: _Host, shown: HostKey, what: str, hint: str) -> Failed:
    is_node = host.hops[-1].is_node
    whose = "its host key" if is_node else f"the host key of its jump host {shown.host}"
    return Failed(f"{whose} {what}", where=host.nodes[0], hint=hint)


# -- `completion` ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompletionScript:
    """The completion script of one shell."""

    shell: str
    script: str


@click.command(cls=DeclaredCommand, output=CompletionScript)
def completion(ctx: click.Context, app: App, *, shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the completion script for SHELL, to be loaded by its start-up file.

    \b
    echo 'eval "$(spark-cluster completion bash)"' >> ~/.bashrc
    echo 'eval "$(spark-cluster completion zsh)"' >> ~/.zshrc
    spark-cluster completion fish > ~/.config/fish/completions/spark-cluster.fish

    bash must be 4.4 or newer.
    """
    complete = cast("type[ShellComplete]", get_completion_class(shell))  # click has these three
    script = complete(ctx.find_root().command, {}, PROGRAM, VARIABLE).source()
    app.show(CompletionScript(shell, script), lambda *_: click.echo(visible(script)))
