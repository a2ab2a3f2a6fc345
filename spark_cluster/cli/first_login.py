"""The first login to nodes that are trusted: which key is installed, does one do already, does sudo
ask, who is at the cable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from spark_cluster.config import discovery
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.secret import SecretReference
from spark_cluster.errors import SparkClusterError, UsageError
from spark_cluster.runner.dialer import Dialer
from spark_cluster.runner.parallel import in_parallel

_COMMANDS: dict[str, Any] = {
    **discovery.COMMANDS,
    "sudo": ("sh", "-c", '[ "$(id -u)" = 0 ] || exec sudo -n true'),
}

USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
"""Private keys of ~/.ssh that are looked for, the best one first."""


@dataclass(frozen=True, slots=True)
class FirstLogin:
    """What the login user of a node is told there.

    Attributes:
        sudo_asks: sudo wants a password.
        peers: machines at the other ends of its cables.
    """

    sudo_asks: bool
    peers: tuple[discovery.Peer, ...]


def log_in(
    dialer: Dialer, nodes: Iterable[InventoryNode], password: SecretReference | None = None
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
    return FirstLogin(sudo is None or sudo["status"] != 0, tuple(discovery.peers(answer)))


def with_keys(
    nodes: Sequence[InventoryNode], password: SecretReference | None
) -> tuple[Sequence[InventoryNode], dict[str, str]]:
    """Return the nodes as they are logged in to, and by name the public keys to install there.

    Args:
        password: of a first contact, where no key is accepted yet; the user's own is installed.

    Raises:
        UsageError: it is a first contact, and the user has no key.
    """
    first_contact = password is not None
    keys = {node.name: public_key(node, search=first_contact) for node in nodes}
    if first_contact:
        if not all(keys.values()):
            raise UsageError(
                "you have no SSH key that could be installed",
                hint="ssh-keygen -t ed25519 makes one; or name one with `identity_file`",
            )
        nodes = [replace(node, login_password=password) for node in nodes]
    return nodes, {name: key for name, key in keys.items() if key}


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
