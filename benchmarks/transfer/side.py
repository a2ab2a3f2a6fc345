"""`python -m benchmarks.transfer.side send|receive`: one side of our copy, in its namespace."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from spark_cluster.node.store import wire
from spark_cluster.node.store.blob_client import BlobClient
from spark_cluster.node.store.blob_server import BlobServer
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest

PORT = 7345


def send(given: dict[str, Any], manifest: Manifest) -> None:
    """Serve until standard input ends; `ready` is printed when it listens."""
    tls = wire.sender_tls(given["certificate"], given["key"]) if given["key"] else None
    server = BlobServer(HubCache(Path(given["root"])), manifest, given["token"], tls)
    thread = threading.Thread(
        target=server.run, args=([(address, PORT) for address in given["addresses"]],)
    )
    thread.start()
    server.ready.wait(10)
    print("ready", flush=True)
    sys.stdin.read()
    server.ended.set()
    thread.join()


def receive(given: dict[str, Any], manifest: Manifest) -> None:
    """Fetch all; what was moved is printed."""
    client = BlobClient(
        HubCache(Path(given["root"])),
        manifest,
        given["token"],
        [(address, PORT) for address in given["addresses"]],
        kept_free=0,
        revision="main",
    )
    if given["key"]:
        client.tls = wire.receiver_tls(Path(given["certificate"]).read_text(encoding="ascii"))
    print(json.dumps(vars(client.run())))


def main() -> None:
    """Read the settings, one JSON line, from standard input."""
    given = json.loads(sys.stdin.readline())
    manifest = Manifest.from_document(json.loads(Path(given["manifest"]).read_text()))
    (send if sys.argv[1] == "send" else receive)(given, manifest)


if __name__ == "__main__":
    main()
