"""`python -m benchmarks.transfer.side send|receive|hub`: one side of our copy, or a hub, in its
namespace."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from spark_cluster.lab import hub as lab_hub
from spark_cluster.node.store import wire
from spark_cluster.node.store.blob_client import BlobClient
from spark_cluster.node.store.blob_server import BlobServer
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest

PORT = 7345
HUB_PORT = 7347


def send(given: dict[str, Any], manifest: Manifest) -> None:
    """Serve until standard input ends; `ready` is printed when it listens."""
    tls = wire.sender_tls(given["certificate"], given["key"]) if given["key"] else None
    server = BlobServer(_cache(given), manifest, given["token"], tls)
    server.follow = bool(given.get("follow"))
    thread = threading.Thread(
        target=server.run, args=([(address, PORT) for address in given["addresses"]],)
    )
    thread.start()
    server.ready.wait(10)
    print("ready", flush=True)
    sys.stdin.read()
    server.ended.set()
    thread.join()


def _cache(given: dict[str, Any]) -> HubCache:
    root = Path(given["root"])
    return HubCache(root, root.with_name(f"{root.name}-ours"))


def receive(given: dict[str, Any], manifest: Manifest) -> None:
    """Fetch all; what was moved is printed."""
    client = BlobClient(
        _cache(given),
        manifest,
        given["token"],
        [(address, PORT) for address in given["addresses"]],
        kept_free=0,
        revision="main",
    )
    if given["key"]:
        client.tls = wire.receiver_tls(Path(given["certificate"]).read_text(encoding="ascii"))
    print(json.dumps(vars(client.run())))


def hub(given: dict[str, Any]) -> None:
    """Serve models at a limited rate until standard input ends; `ready` is printed."""
    with lab_hub.serve(Path(given["root"]), port=HUB_PORT) as served:
        for folder in Path(given["root"]).glob("*/*"):
            name = str(folder.relative_to(given["root"]))
            served.conduct[name] = lab_hub.Conduct(bytes_per_s=int(given["rate"]))
        print("ready", flush=True)
        sys.stdin.read()


def main() -> None:
    """Read the settings, one JSON line, from standard input."""
    given = json.loads(sys.stdin.readline())
    if sys.argv[1] == "hub":
        hub(given)
        return
    manifest = Manifest.from_document(json.loads(Path(given["manifest"]).read_text()))
    (send if sys.argv[1] == "send" else receive)(given, manifest)


if __name__ == "__main__":
    main()
