"""The first login to nodes that are trusted: does a key do, does sudo ask, who is at the cable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.secret import Secret
from spark_cluster.discovery import cable
from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.parallel import in_parallel

_COMMANDS: dict[str, Any] = {
    **cable.COMMANDS,
    "sudo": ("sh", "-c", '[ "$(id -u)" = 0 ] || exec sudo -n true'),
}


@dataclass(frozen=True, slots=True)
class FirstLogin:
    """What the login user of a node is told there.

    Attributes:
        sudo_asks: sudo wants a password.
        peers: machines at the other ends of its cables.
    """

    sudo_asks: bool
    peers: tuple[cable.Peer, ...]


def log_in(
    dialer: Dialer, nodes: Iterable[InventoryNode], password: Secret | None = None
) -> dict[str, FirstLogin | SparkClusterError]:
    """Log in to every node, without sudo, and ask.

    Args:
        password: offered where no key is accepted.
    """
    wanted = [replace(node, login_password=password) for node in nodes]
    return in_parallel({node.name: partial(_ask, dialer, node) for node in wanted})


def _ask(dialer: Dialer, node: InventoryNode) -> FirstLogin:
    """Raises:
    Unreachable: it does not let us in; a KeysRefused where a password may.
    """
    with dialer.session(node, "setup", become=False) as session:
        answer = session.request("gather", commands=_COMMANDS)
    sudo = answer["commands"].get("sudo")
    return FirstLogin(sudo is None or sudo["status"] != 0, tuple(cable.peers(answer)))
