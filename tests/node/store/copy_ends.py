"""Both ends of a copy on this machine: a real sender, and receivers of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from free_ports import free_port
from waiting import until

from spark_cluster.node.processes import Processes
from spark_cluster.node.store import copy_channel, copy_sending
from spark_cluster.node.store.copy_channel import Channel
from spark_cluster.node.store.copy_receiving import Receiver
from spark_cluster.node.store.copy_sending import Sender
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.values import ResourceError


class Serving:
    """A sender that runs, and receivers of it."""

    def __init__(self, folder: Path, source: tuple[HubCache, Manifest], **given: Any) -> None:
        self.folder, self.manifest = folder, source[1]
        self.encrypted = given.pop("encrypted", True)
        self.addresses = given.pop("addresses", ("127.0.0.1",))
        self.port = free_port()
        self.place = folder / f"sender-{self.port}"
        self.place.mkdir(mode=0o700)
        self.secrets = copy_channel.make_secrets(self.place, Processes())
        places = [[host, self.port] for host in self.addresses]
        wanted = {"addresses": places, "spare": [], "encrypted": self.encrypted, **given}
        self._made = copy_sending.of_files(self.place, wanted, *source, Processes())
        self.sender: Sender
        self.error: ResourceError | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.sender.run()
        except ResourceError as error:
            self.error = error

    @contextmanager
    def running(self) -> Iterator[Serving]:
        with self._made as self.sender:
            self.thread.start()
            try:
                until(self.listens, what="the sender listens")
                yield self
            finally:
                self.sender.end()
                self.thread.join()

    def listens(self) -> bool:
        if not self.thread.is_alive():
            return True
        for address in self.addresses:
            with suppress(OSError), socket.create_connection((address, self.port), timeout=5):
                continue
            return False
        return True

    def receiver(self, target: HubCache, addresses: Any = None, **given: Any) -> Receiver:
        secrets = {**self.secrets, **given.pop("secrets", {})}
        place, port = self.folder / "receiver", given.pop("port", self.port)
        channel = Channel.of(place, secrets, port, encrypted=self.encrypted)
        given = {"sender": "spark1", "kept_free": 0, "streams": 2, **given}
        return Receiver(target, self.manifest, channel, addresses or self.addresses, **given)


def copied(
    folder: Path, source: HubCache, target: HubCache, manifest: Manifest, revision: str = ""
) -> int:
    """Copy once, without encryption; return the bytes that moved."""
    folder.mkdir(exist_ok=True)
    with Serving(folder, (source, manifest), encrypted=False).running() as made:
        return int(str(made.receiver(target, revision=revision).run()["moved"]))
