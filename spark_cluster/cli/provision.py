"""`provision`: from a fresh or drifted Spark to one that is ready to serve."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App, changing, leave_with
from spark_cluster.cli.node_error import NodeError
from spark_cluster.errors import SparkClusterError, UsageError

if TYPE_CHECKING:
    from spark_cluster.cli.run import Run
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.runner.options import Options


@dataclass(frozen=True)
class ProvisionedNode:
    """A node after a run: its resources by verdict, and the result.

    Attributes:
        unreachable: it was not reached, or was lost in the run.
        notes: what its user should know.
        firmware: device to version; null where fwupd is not installed.
    """

    ok: int
    change: int
    unknown: int
    failed: int
    skipped: int
    unreachable: bool
    error: NodeError | None
    notes: list[str]
    firmware: dict[str, str] | None


@dataclass(frozen=True)
class MeasuredBandwidth:
    """The bandwidth of one twin in one direction, Gb/s, and its verdict: good, low, degraded."""

    hop: str
    gbits: float
    verdict: str


@click.command()
@click.option("--allow-reboot", is_flag=True, help="Reboot a node when a change requires it.")
@click.option(
    "--allow-restart",
    is_flag=True,
    help="Restart Docker for new settings even if that stops the serving engine.",
)
@click.option("--firmware", is_flag=True, help="Update firmware with fwupd (not the ConnectX-7's).")
@click.option("--bandwidth", is_flag=True, help="Measure the link with ib_write_bw.")
@click.option(
    "--ask-password",
    is_flag=True,
    help="First contact: log in with a password where no key is accepted, and install yours.",
)
@click.option(
    "--password-env",
    metavar="NAME",
    help="First contact: environment variable with the login password.",
)
@changing
@click.pass_obj
def command(
    app: App,
    allow_reboot: bool,
    allow_restart: bool,
    firmware: bool,
    bandwidth: bool,
    ask_password: bool,
    password_env: str | None,
    exit_code: bool,
    options: Options,
) -> None:
    """Make the nodes ready: keys and names, drivers, the link, SSH between the nodes, memory,
    clocks, Docker, caches. Running it again changes nothing.

    Drivers are installed only where the inventory pins versions. A node that fails does not stop
    the others; the exit status shows it at the end.
    """
    first_contact = ask_password or password_env is not None
    if not first_contact:
        app.connect_early()
    from spark_cluster.runner.laptop import public_key

    nodes = _with_password(app.nodes, password_env) if first_contact else app.nodes
    keys = {node.name: public_key(node, search=first_contact) for node in nodes}
    if first_contact and not all(keys.values()):
        raise UsageError(
            "you have no SSH key that could be installed",
            hint="ssh-keygen -t ed25519 makes one; or name one with `identity_file`",
        )
    with app.play("provision", nodes, options) as run:
        playbook = app.project.load_playbook("provision")  # while connections are being made
        play = run.open(fail_fast=False)
        done = playbook.function(
            play,
            allow_reboot=allow_reboot,
            allow_restart=allow_restart,
            firmware=firmware,
            bandwidth=bandwidth,
            laptop_keys={name: key for name, key in keys.items() if key},
        )
        failed = _failed(play.out, done.failures)
        run.finish(str(next(iter(failed.values()), "")))
        if app.as_json:
            app.print_json(_document(run, done, failed))
        else:
            run.show_recap()
    if failed:
        sys.exit(max(error.exit_code for error in failed.values()))
    leave_with(run, exit_code=exit_code)


def _with_password(nodes: list[InventoryNode], variable: str | None) -> list[InventoryNode]:
    from spark_cluster.config.secret import Secret

    secret = Secret(env=variable) if variable is not None else Secret(prompt=True)
    return [replace(node, login_password=secret) for node in nodes]


def _failed(
    out: dict[str, SparkClusterError], failures: dict[str, list[SparkClusterError]]
) -> dict[str, SparkClusterError]:
    """Node to the error that it ends with."""
    return {**{name: errors[0] for name, errors in failures.items()}, **out}


def _document(run: Run, done: Any, failed: dict[str, SparkClusterError]) -> dict[str, Any]:
    nodes = {}
    for name, tally in run.recap.nodes.items():
        error = failed.get(name)
        nodes[name] = asdict(
            ProvisionedNode(
                *(tally.ok, tally.change, tally.unknown, tally.failed, tally.skipped),
                unreachable=tally.unreachable,
                error=None if error is None else NodeError.of(error),
                notes=done.notes.get(name, []),
                firmware=done.firmware.get(name),
            )
        )
    bandwidth = [asdict(MeasuredBandwidth(str(b.hop), b.gbits, b.verdict)) for b in done.bandwidth]
    return run.to_dict(ok=not failed, nodes=nodes, bandwidth=bandwidth)
