"""From fresh or drifted nodes to ones that are ready to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.cluster.node_error import NodeError
from spark_cluster.cluster.result import NodeErrors, RunSummary
from spark_cluster.errors import SparkClusterError, UsageError

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.cluster.run import Run
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.config.secret import Secret
    from spark_cluster.runner.options import Options

USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
"""Private keys of ~/.ssh that are looked for, the best one first."""


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


@dataclass(frozen=True)
class ProvisionResult(NodeErrors):
    """The result of `provision`. A node that fails does not stop the others.

    Attributes:
        run: how the run went; not ok when a node failed.
        nodes: by name.
        bandwidth: each twin that was measured.
        errors: the error that a node ends with, by name, of those that failed.
    """

    run: RunSummary
    nodes: Mapping[str, ProvisionedNode]
    bandwidth: tuple[MeasuredBandwidth, ...]
    errors: Mapping[str, SparkClusterError]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `provision --json` prints it."""
        nodes = {name: asdict(node) for name, node in self.nodes.items()}
        return self.run.to_dict(nodes=nodes, bandwidth=[asdict(one) for one in self.bandwidth])


def provision(
    opened: Opened,
    *,
    allow_reboot: bool,
    allow_restart: bool,
    firmware: bool,
    bandwidth: bool,
    login_password: Secret | None,
    options: Options,
) -> ProvisionResult:
    """Make the nodes ready; see `Cluster.provision`.

    Args:
        login_password: of a first contact, where no key is accepted yet; yours is installed.
    """
    first_contact = login_password is not None
    nodes = opened.nodes
    if first_contact:
        nodes = [replace(node, login_password=login_password) for node in nodes]
    keys = {node.name: public_key(node, search=first_contact) for node in nodes}
    if first_contact and not all(keys.values()):
        raise UsageError(
            "you have no SSH key that could be installed",
            hint="ssh-keygen -t ed25519 makes one; or name one with `identity_file`",
        )
    with opened.play("provision", nodes, options) as run:
        playbook = opened.project.load_playbook("provision")  # while connections are being made
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
        return _result(run, done, failed)


def public_key(node: InventoryNode, *, search: bool, home: Path | None = None) -> str | None:
    """Return the line of the public key for logging in to a node; None if there is none.

    Args:
        search: without an `identity_file` in the inventory, take the usual keys of ~/.ssh;
            otherwise the node is left with the keys that it has.
    """
    private = [node.identity_file] if node.identity_file is not None else []
    if not private and search:
        private = [(home or Path.home()) / ".ssh" / name for name in USUAL_KEYS]
    for path in private:
        public = path.with_name(f"{path.name}.pub")
        if public.is_file():
            return public.read_text().strip()
    return None


def _failed(
    out: Mapping[str, SparkClusterError], failures: Mapping[str, list[SparkClusterError]]
) -> dict[str, SparkClusterError]:
    """Node to the error that it ends with."""
    return {**{name: errors[0] for name, errors in failures.items()}, **out}


def _result(run: Run, done: Any, failed: dict[str, SparkClusterError]) -> ProvisionResult:
    nodes = {}
    for name, tally in run.recap.nodes.items():
        error = failed.get(name)
        nodes[name] = ProvisionedNode(
            *(tally.ok, tally.change, tally.unknown, tally.failed, tally.skipped),
            unreachable=tally.unreachable,
            error=None if error is None else NodeError.of(error),
            notes=done.notes.get(name, []),
            firmware=done.firmware.get(name),
        )
    measured = tuple(MeasuredBandwidth(str(b.hop), b.gbits, b.verdict) for b in done.bandwidth)
    return ProvisionResult(RunSummary.of(run, ok=not failed), nodes, measured, failed)
