"""`spark-cluster lab`: two simulated Sparks on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import click

from spark_cluster.lab import Lab


class Clock:
    """Progress lines with the seconds since the start, on standard error."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, text: str) -> None:
        click.echo(f"[{time.monotonic() - self.started:6.1f} s] {text}", err=True)


@click.group()
def command() -> None:
    """Two simulated Sparks on this machine (Linux, root)."""


@command.command()
@click.option("--nodes", type=click.IntRange(1, 2), default=2, show_default=True)
@click.option("--fresh", is_flag=True, help="Boot them as fresh Sparks: forget what they became.")
def up(nodes: int, fresh: bool) -> None:
    """Boot the nodes; builds what they need the first time."""
    lab, clock = Lab.default(), Clock()
    if not lab.up(nodes, fresh=fresh, progress=clock):
        click.echo(f"the lab is up already: {', '.join(node.name for node in lab.nodes)}")
        return
    for node in lab.nodes:
        click.echo(f"{node.name}  {node.address}  answers ssh")
    clock("the lab is up")


@command.command()
@click.option("--wipe", is_flag=True, help="Throw the nodes' disks away too.")
def down(wipe: bool) -> None:
    """Switch the nodes off and take the lab's networks away."""
    clock = Clock()
    there = Lab.default().down(wipe=wipe, progress=clock)
    click.echo("the lab is down" if there else "the lab was down already")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status(as_json: bool) -> None:
    """Say what is up."""
    found = Lab.default().status()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"lab: {found['state']}  ({found['directory']})")
    for node in found["nodes"]:
        click.echo(f"  {node['name']}  {node['address']}  {node['state']}")
    missing = [name for name, ready in found["prepared"].items() if not ready]
    if missing:
        click.echo(f"  not prepared yet: {', '.join(missing)}")


@command.command()
def prepare() -> None:
    """Build the base system, the image, vLLM and the model; `up` does it by itself."""
    made = Lab.default().prepare(Clock())
    click.echo(f"image {made.image_tar}\nmodel {made.model}")


@command.command()
@click.argument("node")
@click.option("--new-host-keys", is_flag=True, help="As after a reinstallation.")
def reset(node: str, new_host_keys: bool) -> None:
    """Make NODE a fresh Spark again."""
    lab, clock = Lab.default(), Clock()
    lab.node(node).reset(new_host_keys=new_host_keys)
    clock(f"{node} is fresh")


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("node")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def ssh(node: str, words: tuple[str, ...]) -> None:
    """Log in to NODE, or run a command there."""
    argv = Lab.default().node(node).ssh_command(" ".join(words) if words else ())
    sys.exit(subprocess.run(argv, check=False).returncode)  # the user's terminal goes along
