"""A port of this machine's loopback that leads to one of a node which is a set of namespaces."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import Unreachable
from spark_cluster.runner import namespace_relay, namespaces

ENDS_WITHIN_S = 5.0
"""Seconds that the relay has to end before it is killed."""


@contextlib.contextmanager
def forward_into(node: str, namespaces_of: Path, port: int) -> Iterator[int]:
    """Lead a free port of the loopback to one of the node's loopback, during the block.

    Args:
        node: its name, for errors.
        namespaces_of: file with the number of the process whose network namespace is the node's.

    Yields:
        The port of this machine.

    Raises:
        Unreachable: the node is not running, or its namespace cannot be entered.
    """
    target = namespaces.leader(node, namespaces_of)
    enter = [] if os.geteuid() == 0 else ["sudo", "-n", "--"]
    relay = [sys.executable, "-I", namespace_relay.__file__, str(port)]
    argv = [*enter, "nsenter", "--net", f"--target={target}", "--", *relay]
    with socket.create_server((LOOPBACK, 0)) as listener:
        try:
            process = subprocess.Popen(
                argv,
                stdin=listener.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise Unreachable(
                f"{argv[0]} cannot be started: {error.strerror}", where=node
            ) from None
        found: int = listener.getsockname()[1]
    try:
        yield found
    finally:
        if process.stdout is not None:
            process.stdout.close()  # which ends it
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
