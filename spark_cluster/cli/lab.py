"""`spark-cluster lab`: two to four simulated Sparks on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.groups import Group
from spark_cluster.lab import Lab, documents
from spark_cluster.lab.layout import DEFAULT_NODES, MAX_NODES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Clock:
    """Progress lines with the seconds since the start, on standard error."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, text: str) -> None:
        click.echo(f"[{time.monotonic() - self.started:6.1f} s] {text}", err=True)


def wants_json(here: bool = False) -> bool:
    """Return whether --json was given, to the command or to the program."""
    app = click.get_current_context().find_object(App)
    return here or (app is not None and app.as_json)


def say(document: DataclassInstance, text: str, *, as_json: bool = False, **more: bool) -> None:
    """Print one result, for people or as a JSON document.

    Args:
        more: keys of the JSON document next to those of `document`.
    """
    found = {**asdict(document), **more}
    click.echo(json.dumps(found, indent=2) if wants_json(as_json) else text)


@click.group(cls=Group)
def command() -> None:
    """Run simulated Sparks on this machine: two, or up to four (Linux, root)."""


@command.command()
@click.option(
    "--nodes",
    type=click.IntRange(1, MAX_NODES),
    default=DEFAULT_NODES,
    show_default=True,
    help="How many nodes to boot: two have a cable between them, three and four a switch. Their "
    "inventories are lab, lab3 and lab4.",
)
@click.option("--fresh", is_flag=True, help="Boot the nodes as fresh Sparks, with new disks.")
def up(nodes: int, fresh: bool) -> None:
    """Boot the nodes; the first time, build what they need."""
    lab, clock = Lab.default(), Clock()
    changed = lab.up(nodes, fresh=fresh, progress=clock)
    text = "\n".join(f"{node.name}  {node.address}  answers ssh" for node in lab.nodes)
    if changed:
        clock("the lab is up")
    else:
        text = f"the lab is up already: {', '.join(node.name for node in lab.nodes)}"
    say(lab.status(), text, changed=changed)


@command.command()
@click.option("--wipe", is_flag=True, help="Also delete the nodes' disks.")
def down(wipe: bool) -> None:
    """Switch the nodes off and remove the lab's networks."""
    changed = Lab.default().down(wipe=wipe, progress=Clock())
    text = "the lab is down" if changed else "the lab was down already"
    say(documents.Ended("down", changed), text)


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(as_json: bool) -> None:
    """Show what is up."""
    found = Lab.default().status()
    lines = [f"lab: {found.state}  ({found.directory})"]
    lines += [f"  {node.name}  {node.address}  {node.state}" for node in found.nodes]
    missing = [name for name, ready in found.prepared.items() if not ready]
    if missing:
        lines.append(f"  not prepared yet: {', '.join(missing)}")
    say(found, "\n".join(lines), as_json=as_json)


@command.command()
def prepare() -> None:
    """Build the base system, the image, vLLM and the model; `up` does it by itself."""
    lab = Lab.default()
    made = lab.prepare(Clock())
    found = documents.PreparedFiles(image=str(made.image_tar), model=str(lab.model_path))
    say(found, f"image  {found.image}\nmodel  {found.model}")


@command.command()
@click.option("--tests", is_flag=True, help="Include what the project's own tests call.")
@click.option("--list", "listed", is_flag=True, help="Print all packages; install nothing.")
def tools(tests: bool, listed: bool) -> None:
    """Install the programs that the lab calls on this machine; `up` does it by itself."""
    from spark_cluster.lab import machine

    wanted = machine.TOOLS | (machine.TEST_TOOLS if tests else {})
    packages = sorted(set(wanted.values()))
    if listed:
        say(documents.Packages(packages), "\n".join(packages))
        return
    machine.require_root_on_linux()
    missing = machine.missing_packages(tests=tests)
    machine.install_missing_tools(Clock(), tests=tests)
    text = f"installed: {' '.join(missing)}" if missing else "everything is installed"
    say(documents.InstalledPackages(packages, missing), text)


@command.command()
@click.argument("node")
@click.option(
    "--new-host-keys",
    is_flag=True,
    help="Give the node new SSH host keys, as a reinstallation does.",
)
def reset(node: str, new_host_keys: bool) -> None:
    """Make NODE a fresh Spark again."""
    lab = Lab.default()
    lab.node(node).reset(new_host_keys=new_host_keys)
    say(documents.ResetNode(node, changed=True), f"{node} is fresh")


@command.command("break")
@click.argument("name", required=False)
@click.argument("node", required=False)
@click.option("--list", "listed", is_flag=True, help="Show all names, and what is broken now.")
def break_(name: str | None, node: str | None, listed: bool) -> None:
    """Break a node in the way called NAME, so that `doctor` has something to find.

    Without NODE, the usual node for NAME is broken. `lab repair` undoes it.
    """
    from spark_cluster.lab import breakage

    lab = Lab.default()
    if listed or name is None:
        _show_breakages(lab)
        return
    broken = breakage.break_(lab, name, node)
    found = breakage.find(name)
    probe = "" if found.finds else " --probe"
    text = f"{broken.name}: {found.what}\nspark-cluster -i lab doctor{probe} finds it"
    say(documents.Broken(name, broken.name, list(found.checks)), text)


@command.command()
@click.argument("name", required=False)
def repair(name: str | None) -> None:
    """Undo what `lab break NAME` did; without NAME, all of it."""
    from spark_cluster.lab import breakage

    repaired = breakage.repair(Lab.default(), name)
    say(documents.Repaired(repaired), "\n".join(repaired) or "nothing was broken")


def _show_breakages(lab: Lab) -> None:
    from spark_cluster.lab import breakage

    now = breakage.in_force(lab)
    known = breakage.BREAKAGES.values()
    width = max(len(b.name) for b in known)
    lines = []
    for one in known:
        state = f"  (broken: {', '.join(now[one.name])})" if one.name in now else ""
        lines.append(f"{one.name:<{width}}  {one.what}  [{', '.join(one.checks)}]{state}")
    rows = [
        documents.KnownBreakage(b.name, b.what, [*b.finds, *b.probed], now.get(b.name, []))
        for b in known
    ]
    say(documents.Breakages(rows), "\n".join(lines))


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("node")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def ssh(node: str, words: tuple[str, ...]) -> None:
    """Log in to NODE, or run a command there."""
    argv = Lab.default().node(node).ssh_command(" ".join(words) if words else ())
    sys.exit(subprocess.run(argv, check=False).returncode)  # the user's terminal goes along
