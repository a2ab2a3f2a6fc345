"""The nodes themselves: `ping`, `facts`, `exec`, `provision` and `playbook`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import painted, plain_table, styled
from spark_cluster.cli.display import show_error, tell
from spark_cluster.cli.options import Changing, DeclaredCommand
from spark_cluster.errors import SparkClusterError, worst
from spark_cluster.node.output import OUTPUT_LIMIT

if TYPE_CHECKING:
    from spark_cluster.cli.results import FactsResult, PingResult
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.config.topology import Node
    from spark_cluster.runner.session import Output

SHELL_SIGNS = frozenset(";|&<>*$`")
"""Characters that mean something to a shell only."""

SHELLS = frozenset(("sh", "bash", "dash", "zsh", "fish"))

FACT_WIDTH = 30
"""Columns that the facts of one node want; further nodes are shown below."""


@click.command(cls=DeclaredCommand)
def ping(app: App) -> int:
    """Connect to every node, start an agent there without sudo, and measure one round trip.

    Exit status 3 when a node cannot be reached.
    """
    found = app.cluster.ping()
    app.show(found, _show_ping)
    return worst(found.errors.values())


def _show_ping(app: App, found: PingResult) -> None:
    from spark_cluster.cli.results import Reached

    width = max(len(name) for name in found.nodes)
    for name, outcome in found.nodes.items():
        whose = name.ljust(width)
        if isinstance(outcome, Reached):
            took = f"connected in {outcome.connect_ms:.0f} ms, Python {outcome.python}"
            line = styled("[bold]{}[/]  [green]reachable[/]  ", whose)
            app.console.print(line + styled("{:.1f} ms  [dim]{}[/]", outcome.rtt_ms, took))
        else:
            app.console.say("[bold]{}[/]  [red]unreachable[/]  {}", whose, outcome.message)
            if outcome.hint:
                app.console.say("{}  [cyan]{}[/]", " " * width, app.to_paste(outcome.hint))


@click.command(cls=DeclaredCommand)
def facts(app: App) -> None:
    """Show the facts of each node: system, memory, GPU, ConnectX-7 links, Docker."""
    app.show(app.cluster.facts(), _show_facts)


def _show_facts(app: App, found: FactsResult) -> None:
    nodes = found.nodes
    together = max(1, app.console.width // FACT_WIDTH)
    for first in range(0, len(nodes), together):
        some = nodes[first : first + together]
        table = plain_table("", *(node.name for node in some))
        columns = [_fact_rows(node) for node in some]
        for name in columns[0]:
            table.add_row(painted(name, "dim"), *(column[name] for column in columns))
        if first:
            app.console.print()
        app.console.print(table)


def _fact_rows(node: Node) -> dict[str, str]:
    facts, gib = node.facts, 2**20
    gpu = facts.gpu
    own = f", {gpu.memory.total_kib / gib:.1f} GiB of its own" if gpu and gpu.memory else ""
    gids = {h.name: h.gid_index for h in facts.hcas if h.gid_index is not None}
    links = [
        f"{k.interface} {k.address}" + (f" {k.hca} GID {gids.get(k.hca, '-')}" if k.hca else "")
        for k in node.links
    ]
    return {
        "hostname": facts.hostname,
        "system": f"{facts.os}, kernel {facts.kernel}, {facts.arch}",
        "DGX OS": facts.dgx_version or "-",
        "Python": facts.python,
        "CPUs": str(facts.cpus),
        "memory": f"{facts.memory.available_kib / gib:.1f} of "
        f"{facts.memory.total_kib / gib:.1f} GiB available",
        "disk": f"{facts.disk_free_bytes / 2**30:.0f} of "
        f"{facts.disk_total_bytes / 2**30:.0f} GiB free",
        "GPU": f"{gpu.name}{own}, driver {gpu.driver}" if gpu else facts.nvml_error or "none",
        "fabric": "\n".join(links) or "no ConnectX-7 link is up",
        "Docker": facts.docker or "not running",
    }


@click.command(context_settings={"allow_interspersed_args": False}, cls=DeclaredCommand)
def exec_(
    app: App,
    *,
    become: bool,
    timeout: float = 600.0,
    argv: Annotated[tuple[str, ...], {"metavar": "COMMAND [ARG]...", "required": True}],
) -> int:
    """Run one command on every node in parallel, and show what each printed.

    The arguments reach the command unchanged, without a shell (to use one: exec sh -c '...').
    What it prints is passed on as it is, control sequences too, as ssh does; pipe the output
    through `cat -v` where you do not trust it.

    Exit status 1 when it fails on any node.

    Args:
        become (-b, --become): Run as root, through sudo.
        timeout: Time limit, seconds. [default]
    """
    from spark_cluster.runner.parallel import in_parallel

    jobs = {
        node.name: partial(_run_on, app, node, list(argv), become, timeout) for node in app.nodes
    }
    outcomes = in_parallel(jobs)
    if app.as_json:
        app.print_json({"nodes": [_document(name, o) for name, o in outcomes.items()]})
    else:
        for name, outcome in outcomes.items():
            _show_output(app, name, outcome)
    codes = [
        o.exit_code if isinstance(o, SparkClusterError) else int(o.status != 0)
        for o in outcomes.values()
    ]
    without = SHELLS.isdisjoint(word.rpartition("/")[2] for word in argv)
    if any(codes) and without and any(SHELL_SIGNS & set(word) for word in argv) and not app.as_json:
        tell(f"the words go to no shell; to one: {app.command('exec -- sh -c ...')}")
    return max(codes)


def _run_on(app: App, node: InventoryNode, argv: list[str], become: bool, timeout: float) -> Output:
    with app.cluster.dialer.session(node, "exec", become=become) as session:
        return session.run(argv, timeout=timeout)


def _document(name: str, outcome: Output | SparkClusterError) -> dict[str, object]:
    if isinstance(outcome, SparkClusterError):
        return {"name": name, "status": None, "error": outcome.message, "hint": outcome.hint}
    return {
        "name": name,
        "status": outcome.status,
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "left_out_bytes": outcome.left_out,
    }


def _show_output(app: App, name: str, outcome: Output | SparkClusterError) -> None:
    if isinstance(outcome, SparkClusterError):
        show_error(outcome.message, app.to_paste(outcome.hint), node=name)
        return
    _pass_on(name, outcome.stdout)
    _pass_on(name, outcome.stderr, err=True)
    if outcome.left_out:
        tell(
            f"{name}: {outcome.left_out} bytes were left out of the middle: up to "
            f"{OUTPUT_LIMIT >> 20} MiB of an output are sent; to have all of it, write it to a "
            "file there: exec -- sh -c 'COMMAND > /tmp/FILE'"
        )
    if outcome.status != 0:
        tell(f"{name}: status {outcome.status}")


def _pass_on(name: str, text: str, *, err: bool = False) -> None:
    """Each line with the node's name, otherwise untouched."""
    for line in text.removesuffix("\n").split("\n") if text else ():
        click.echo(f"{name}: {line}", err=err, color=True)  # True: click takes nothing out


class Provisioning(TypedDict):
    """What is handed on to `Cluster.provision`."""

    allow_reboot: bool
    allow_restart: bool
    firmware: bool
    bandwidth: bool
    ask_password: bool
    password_env: str | None
    options: Changing


@click.command(cls=DeclaredCommand)
def provision(app: App, **given: Unpack[Provisioning]) -> int:
    """Make the nodes ready: keys and names, drivers, the link, SSH between the nodes, memory,
    clocks, Docker, caches. Running it again changes nothing.

    Drivers are installed only where the inventory pins versions. A node that fails does not stop
    the others; the exit status shows it at the end.

    Args:
        allow_reboot: Reboot a node when a change requires it.
        allow_restart: Restart Docker for new settings even if that stops the serving engine.
        firmware: Update firmware with fwupd (not the ConnectX-7's).
        bandwidth: Measure the link with ib_write_bw.
        ask_password: First contact: log in with a password where no key is accepted, and install
            yours.
        password_env (NAME): First contact: environment variable with the login password.
    """
    found = app.cluster.provision(**given)
    app.show(found, lambda app, _found: app.show_recap())
    return worst(found.errors.values())


@click.command(cls=DeclaredCommand)
def playbook(app: App, *, file: str, options: Changing) -> int:
    """Run a playbook: a Python file with a function main(play), or the name of one in playbooks/.

    What main returns is in the JSON document as `result`.
    """
    found = app.cluster.playbook(file, options=options)
    app.show(found, lambda app, _found: app.show_recap())
    return next((error.exit_code for error in found.errors.values()), 0)
