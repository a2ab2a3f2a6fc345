"""`spark-cluster lab`: simulated Sparks on this machine, or a node for each of its GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import painted
from spark_cluster.cli.display import tell
from spark_cluster.cli.options import DeclaredGroup
from spark_cluster.cli.terminal import Console
from spark_cluster.errors import UsageError
from spark_cluster_lab import Lab, documents
from spark_cluster_lab.documents import GpuLabStatus
from spark_cluster_lab.gpu import GpuLab
from spark_cluster_lab.gpu.layout import MAX_NODES as GPU_NODES
from spark_cluster_lab.layout import DEFAULT_NODES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

INVENTORIES = {1: "lab-gpu", 2: "lab-gpus"}
"""Those that ship, by the number of nodes."""


@click.group(cls=DeclaredGroup)
def command() -> None:
    """Run simulated Sparks on this machine, or a node for each of its GPUs (Linux, root)."""


@command.command()
def up(
    app: App | None,
    *,
    nodes: Annotated[int, click.IntRange(1, GPU_NODES)] | None,
    fresh: bool,
    gpus: bool,
    shares: tuple[Annotated[Path, click.Path(exists=True, path_type=Path)], ...],
    share_gpu: bool,
) -> None:
    """Boot the nodes; the first time, build what they need.

    Args:
        nodes (NUMBER): How many nodes to boot. Simulated Sparks: 1 to 4, by default 2; two have a
            cable between them, three and four a switch; their inventories are lab, lab3 and lab4.
            With --gpus: by default one for each GPU; the inventory of one is lab-gpu, that of two
            lab-gpus.
        fresh: Boot the nodes as fresh ones, with new disks.
        gpus: Make a node of each NVIDIA GPU of this machine, instead of simulated Sparks.
        shares (--share PATH): With --gpus: a file or folder of this machine that nodes see too,
            read-only, although it is in /tmp, /run or another place of which they have their own.
            May be repeated.
        share_gpu: With --gpus: allow more nodes than GPUs; they share a GPU and its memory.
    """
    if app and app.cluster.limit != "all":  # `--fresh` would empty the others, too
        raise UsageError("--limit: all nodes of the lab are booted", hint="--nodes says how many")
    clock = Clock()
    if gpus:
        _gpus_up(nodes, shares, clock, share_gpu=share_gpu, fresh=fresh)
        return
    if shares or share_gpu:
        raise UsageError("--share and --share-gpu are for nodes with a GPU", hint="add --gpus")
    lab = Lab.default()
    changed = lab.up(nodes or DEFAULT_NODES, fresh=fresh, progress=clock)
    text = "\n".join(f"{node.name}  {node.address}  answers ssh" for node in lab.nodes)
    if changed:
        clock("the lab is up")
    else:
        text = f"the lab is up already: {', '.join(node.name for node in lab.nodes)}"
    say(lab.status(), text, changed=changed)


@command.command()
def down(*, wipe: bool, gpus: bool) -> None:
    """Switch all nodes off, simulated ones and those with a GPU, and remove their networks.

    Args:
        wipe: Also delete the nodes' disks.
        gpus: Only the nodes of `lab up --gpus`.
    """
    clock = Clock()
    changed = _gpus_down(clock, wipe=wipe)
    if not gpus:
        changed = Lab.default().down(wipe=wipe, progress=clock) or changed
    text = "the lab is down" if changed else "the lab was down already"
    say(documents.Ended("down", changed), text)


@command.command()
def status(*, as_json: bool) -> None:
    """Show what is up.

    Args:
        as_json (--json): Print one JSON document.
    """
    found = replace(Lab.default().status(), gpus=GpuLab.default().status())
    lines = [f"lab: {found.state}  ({found.directory})"]
    lines += [f"  {node.name}  {node.address}  {node.state}" for node in found.nodes]
    missing = [name for name, ready in found.prepared.items() if not ready]
    if missing:
        lines.append(f"  not prepared yet: {', '.join(missing)}")
    if found.not_possible:
        lines.append(f"  not possible here: {found.not_possible}")
    if found.gpus and found.gpus.state != "down":
        lines += _gpu_lines(found.gpus)
    say(found, "\n".join(lines), as_json=as_json)


@command.command()
def prepare() -> None:
    """Build the base system, the image, vLLM and the model; `up` does it by itself."""
    lab = Lab.default()
    made = lab.prepare(Clock())
    found = documents.PreparedFiles(image=str(made.image_tar), model=str(lab.model_path))
    say(found, f"image  {found.image}\nmodel  {found.model}")


@command.command()
def tools(*, tests: bool, listed: bool) -> None:
    """Install the programs that the lab calls on this machine; `up` does it by itself.

    Args:
        tests: Include what the project's own tests call.
        listed (--list): Print all packages; install nothing.
    """
    from spark_cluster_lab import machine

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
def reset(*, node: str, new_host_keys: bool) -> None:
    """Make NODE a fresh Spark again.

    Args:
        new_host_keys: Give the node new SSH host keys, as a reinstallation does.
    """
    lab = Lab.default()
    lab.node(node).reset(new_host_keys=new_host_keys)
    say(documents.ResetNode(node, changed=True), f"{node} is fresh")


@command.command("break")
def break_(*, name: str | None, node: str | None, listed: bool) -> None:
    """Break a node in the way called NAME, so that `doctor` has something to find.

    Without NODE, the usual node for NAME is broken. `lab repair` undoes it.

    Args:
        listed (--list): Show all names, and what is broken now.
    """
    from spark_cluster_lab import breakage

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
def repair(*, name: str | None) -> None:
    """Undo what `lab break NAME` did; without NAME, all of it."""
    from spark_cluster_lab import breakage

    repaired = breakage.repair(Lab.default(), name)
    say(documents.Repaired(repaired), "\n".join(repaired) or "nothing was broken")


def _show_breakages(lab: Lab) -> None:
    from spark_cluster_lab import breakage

    now = breakage.in_force(lab)
    known = breakage.BREAKAGES.values()
    if wants_json():
        rows = [
            documents.KnownBreakage(b.name, b.what, [*b.checks], now.get(b.name, [])) for b in known
        ]
        say(documents.Breakages(rows), "")
        return
    width = max(len(b.name) for b in known)
    for one in known:
        state = f"  (broken: {', '.join(now[one.name])})" if one.name in now else ""
        line = f"{one.name:<{width}}  {one.what}  [{', '.join(one.checks)}]{state}"
        Console().print(painted(line))


@command.command(context_settings={"ignore_unknown_options": True})
def ssh(*, node: str, words: Annotated[tuple[str, ...], click.UNPROCESSED]) -> None:
    """Log in to NODE, or run a command there."""
    argv = Lab.default().node(node).ssh_command(" ".join(words) if words else ())
    sys.exit(subprocess.run(argv, check=False).returncode)  # the user's terminal goes along


def _gpus_up(
    nodes: int | None, shares: Sequence[Path], clock: Clock, *, share_gpu: bool, fresh: bool
) -> None:
    """Carry `lab up --gpus` out, and print what is up."""
    lab = GpuLab.default()
    changed = lab.up(nodes, shares=shares, share_gpu=share_gpu, fresh=fresh, progress=clock)
    found = lab.status()
    if changed:
        clock("the lab of GPUs is up")
        text = "\n".join(_gpu_lines(found)[1:])
    else:
        text = f"the lab of GPUs is up already: {', '.join(node.name for node in found.nodes)}"
    say(found, text, changed=changed)


def _gpus_down(clock: Clock, *, wipe: bool) -> bool:
    """Switch the nodes with a GPU off; returns whether anything was there."""
    return GpuLab.default().down(wipe_disks=wipe, progress=clock)


def _gpu_lines(found: GpuLabStatus) -> list[str]:
    """Return the lines of a status: the lab, its nodes, and how to use them."""
    shown = [f"lab of GPUs: {found.state}  ({found.directory})"]
    shown += [f"  {node.name}  {node.address}  {node.state}  {node.gpu}" for node in found.nodes]
    name = INVENTORIES.get(len(found.nodes), found.inventory)
    return [*shown, f"  spark-cluster -i {name} facts"] if found.nodes else shown


class Clock:
    """Progress lines with the seconds since the start, on standard error."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, text: str) -> None:
        tell(f"[{time.monotonic() - self.started:6.1f} s] {text}")


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
