"""`python -m benchmarks.transfer.side send|receive|raw-send|raw-receive`: one side of a copy, or of
bare TCP streams, in its namespace."""

from __future__ import annotations

import json
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from spark_cluster.node.processes import Processes
from spark_cluster.node.store import copy_channel
from spark_cluster.node.store.copy_channel import CopyChannel, Sender, StoredFiles
from spark_cluster.node.store.copy_receiving import STREAMS, Receiver
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest

PORT = 7345


def send(given: dict[str, Any], manifest: Manifest) -> None:
    """Serve until the receiver has all; what it needs to know is printed when this listens."""
    place = Path(given["keys"]) / "copy"
    place.mkdir(mode=0o700)
    secrets = {**copy_channel.make_secrets(place, Processes()), "port": PORT}
    channel = CopyChannel.of(secrets, sender=True, encrypted=given["encrypted"])
    files = StoredFiles(_cache(given), manifest)
    sender = Sender(channel, given["addresses"], (), files)
    print(json.dumps(secrets), flush=True)
    sender.run()


def receive(given: dict[str, Any], manifest: Manifest) -> None:
    """Fetch all."""
    channel = CopyChannel.of(given["secrets"], sender=False, encrypted=given["encrypted"])
    receiver = Receiver(
        _cache(given), manifest, channel, given["addresses"], kept_free=0, revision="main"
    )
    receiver.run()
    receiver.leave()


def _cache(given: dict[str, Any]) -> HubCache:
    root = Path(given["root"])
    return HubCache(root, root.with_name(f"{root.name}-ours"))


def raw_send(given: dict[str, Any], manifest: Manifest) -> None:
    """Send the blob that each connection names; end with standard input."""
    cache = _cache(given)

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("r") as asked:
            for name in asked:
                path = cache.blob(manifest.repository, name.strip())
                with path.open("rb") as opened:
                    connection.sendfile(opened)

    def accept(listening: socket.socket) -> None:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    for address in given["addresses"]:
        listening = socket.create_server((address, PORT))
        threading.Thread(target=accept, args=(listening,), daemon=True).start()
    print("{}", flush=True)
    sys.stdin.read()


def raw_receive(given: dict[str, Any], manifest: Manifest) -> None:
    """Fetch each blob over one of the streams, without looking at it."""
    folder = Path(given["root"])
    blobs = list(manifest.blobs.values())
    streams = STREAMS * len(given["addresses"])

    def fetch(number: int) -> None:
        address = given["addresses"][number % len(given["addresses"])]
        with socket.create_connection((address, PORT)) as connection:
            for file in blobs[number::streams]:
                connection.sendall(f"{file.blob}\n".encode())
                left, memory = file.size, memoryview(bytearray(1 << 20))
                with (folder / file.blob).open("wb", buffering=0) as out:
                    while left and (taken := connection.recv_into(memory[: min(left, 1 << 20)])):
                        out.write(memory[:taken])
                        left -= taken

    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(fetch, range(streams)))


SIDES = {"send": send, "receive": receive, "raw-send": raw_send, "raw-receive": raw_receive}


def main() -> None:
    """Read the settings, one JSON line, from standard input."""
    given = json.loads(sys.stdin.readline())
    manifest = Manifest.from_document(json.loads(Path(given["manifest"]).read_text()))
    SIDES[sys.argv[1]](given, manifest)


if __name__ == "__main__":
    main()
