"""Both ends of a copy on this machine: a real sender, and receivers of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from free_ports import free_port

from spark_cluster.node.processes import Processes
from spark_cluster.node.store import copy_channel
from spark_cluster.node.store.copy_channel import CopyChannel, Sender, StoredFiles
from spark_cluster.node.store.copy_receiving import Receiver
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest


class Serving:
    """A sender that runs, and receivers of it."""

    def __init__(self, folder: Path, source: tuple[HubCache, Manifest], **given: Any) -> None:
        self.folder, self.manifest = folder, source[1]
        self.encrypted = given.pop("encrypted", True)
        self.addresses = given.pop("addresses", ("127.0.0.1",))
        self.port = free_port()
        self.place = folder / f"sender-{self.port}"
        self.place.mkdir(mode=0o700)
        self.secrets = {**copy_channel.make_secrets(self.place, Processes()), "port": self.port}
        channel = CopyChannel.of(self.secrets, sender=True, encrypted=self.encrypted)
        files = StoredFiles(*source)
        self.sender = Sender(channel, self.addresses, given.pop("spare", ()), files)
        self.thread = threading.Thread(target=self.sender.run)

    @contextmanager
    def running(self) -> Iterator[Serving]:
        self.thread.start()
        try:
            yield self
        finally:
            self.sender.end()
            self.thread.join()

    def channel(self, **secrets: Any) -> CopyChannel:
        known = {**self.secrets, **secrets}
        return CopyChannel.of(known, sender=False, encrypted=self.encrypted)

    def receiver(self, target: HubCache, addresses: Any = None, **given: Any) -> Receiver:
        secrets = {**given.pop("secrets", {}), "port": given.pop("port", self.port)}
        given = {"sender": "spark1", "kept_free": 0, "streams": 2, **given}
        channel = self.channel(**secrets)
        return Receiver(target, self.manifest, channel, addresses or self.addresses, **given)


def copied(
    folder: Path, source: HubCache, target: HubCache, manifest: Manifest, revision: str = ""
) -> int:
    """Copy once, without encryption; return the bytes that moved."""
    folder.mkdir(exist_ok=True)
    with Serving(folder, (source, manifest), encrypted=False).running() as made:
        return int(str(made.receiver(target, revision=revision).run()["moved"]))
