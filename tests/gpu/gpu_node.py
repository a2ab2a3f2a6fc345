"""The node whose GPU is tested: this machine, or one of the lab where it runs no systemd."""

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.dialer import join
from spark_cluster_lab import namespaces
from spark_cluster_lab.gpu import requirements
from spark_cluster_lab.gpu.layout import GpuLayout, GpuNodeLayout

CLONE_NEWNET = 0x40000000
PORT = 8000
"""Of the endpoint, on the node's loopback."""


def machine_is_booted() -> bool:
    """Return whether systemd runs this machine, so that it can be a node itself."""
    return Path("/run/systemd/system").is_dir()


def why_no_lab() -> str:
    """Return why this machine cannot have nodes of its GPUs; empty when it can."""
    try:
        requirements.require()
    except SparkClusterError as error:
        return f"systemd does not run this machine, and {error.message} ({error.hint})"
    return ""


@dataclass(frozen=True)
class GpuNode:
    """The node.

    Attributes:
        lab: it is the first node of `lab up --gpus`; otherwise it is this machine.
    """

    lab: bool

    @property
    def layout(self) -> GpuNodeLayout:
        return GpuLayout.default().nodes(1)[0]

    def argv(self, words: Sequence[str]) -> list[str]:
        """Return what runs a program there, without any of our agents."""
        if not self.lab:
            return list(words)
        return [*namespaces.enter(namespaces.leader("gpu1", self.layout.leader)), *words]

    def entry(self) -> str:
        """Return its entry in an inventory."""
        if not self.lab:
            return "gpu1: {address: 127.0.0.1, connection: local, roles: [head]}"
        place = f"connection: local, namespaces_of: {self.layout.leader}"
        return f"gpu1: {{address: {self.layout.address}, {place}, roles: [head]}}"

    @contextlib.contextmanager
    def endpoint(self) -> Iterator[None]:
        """Have the node's endpoint on this machine's loopback, too."""
        if not self.lab:
            yield
            return
        with socket.create_server(("127.0.0.1", PORT)) as listener:
            threading.Thread(target=_accept, args=(listener, self.layout.name), daemon=True).start()
            yield
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, name: str) -> None:
    with contextlib.suppress(OSError):  # closed at the end
        while True:
            client = listener.accept()[0]
            threading.Thread(target=_join, args=(client, name), daemon=True).start()


def _join(client: socket.socket, name: str) -> None:
    """Join a connection to the endpoint: this thread alone is in the node's network."""
    with client, contextlib.suppress(OSError):
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", name).open() as network:
            if libc.setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        with socket.create_connection(("127.0.0.1", PORT)) as server:
            join(client, server)
