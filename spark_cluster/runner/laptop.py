"""The laptop's credentials for a node: the public half of the key that it logs in with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode

USUAL = ("id_ed25519", "id_ecdsa", "id_rsa")


def public_key(node: InventoryNode, *, search: bool, home: Path | None = None) -> str | None:
    """The line of the public key for a node; None when there is none to be had.

    Args:
        search: without an `identity_file` in the inventory, take the usual keys of ~/.ssh;
            otherwise the node is left with the keys that it has.
    """
    private = [node.identity_file] if node.identity_file is not None else []
    if not private and search:
        private = [(home or Path.home()) / ".ssh" / name for name in USUAL]
    for path in private:
        public = path.with_name(f"{path.name}.pub")
        if public.is_file():
            return public.read_text().strip()
    return None
