"""The endpoint's address as seen from the head, asked over SSH alone: no agent, no root."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.engine.proxy import DESCRIPTION, Access, described
from spark_cluster.errors import Unreachable

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.config.inventory_schema import ServeEntry
    from spark_cluster.runner.transport import SshConnection

READS_WITHIN_S = 10.0
"""Seconds for reading a small file of the node."""

LARGEST = 16 * 1024
"""Bytes of it that are read."""


def ask_head(connection: SshConnection) -> Access | None:
    """Return what the proxy's own file on the head says; None where there is no proxy.

    Raises:
        Unreachable: the connection was lost, or nothing came in time.
    """
    channel = connection.channel(["cat", DESCRIPTION])
    found, until = b"", time.monotonic() + READS_WITHIN_S
    try:
        while data := channel.receive(max(0.1, until - time.monotonic())):
            found += data
            if len(found) > LARGEST or time.monotonic() > until:
                break
    except (OSError, EOFError) as error:
        why = str(error) or "nothing came in time"
        raise Unreachable(
            f"{DESCRIPTION} could not be read: {why}", where=connection.target.name
        ) from None
    finally:
        channel.close()
    return described(found.decode(errors="replace"))


def url_on_head(access: Access | None, serve: ServeEntry, head: InventoryNode) -> str:
    """Return the endpoint's base URL, for a connection that the head makes.

    Args:
        access: what the proxy says is in force; None where the inventory says it.
    """
    if access is not None and _has_port(access.url):
        return access.url
    host = LOOPBACK
    if not serve.on_loopback:
        host = head.address if serve.bind == "management" else serve.bind
    scheme = "http" if serve.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{serve.port}/v1"


def _has_port(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.port)
    except ValueError:
        return False
