"""A node's part in a copy, as a process of its own: it receives a model, sends it on, or both.

A transient unit runs it (agent/model_copy.py). Secrets come by standard input; the argument list
names the model and the neighbours, so that a later run finds the same work.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spark_cluster.node import own_program
from spark_cluster.node.store import wire
from spark_cluster.node.store.blob_client import STREAMS, BlobClient
from spark_cluster.node.store.blob_server import BlobServer
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.plain_folder import PlainFolder
from spark_cluster.node.values import ResourceError

TMPFS = "/run"
"""The key of the certificate is here for the moment in which the ssl module reads it."""
BIND_S = 10.0
WARNING = "warning: "
"""Begin of a line of output that the user is to see as a warning."""

Given = Mapping[str, Any]


def argv(label: str) -> list[str]:
    """Return the command that does it with this very code.

    Args:
        label: the model, and the nodes before and after this one.
    """
    return own_program.argv(__name__, label)


def main(_label: str) -> None:
    """Do it; the last line of output is JSON: its result, or `error` and `hint`."""
    own_program.print_answer(lambda: work(json.load(sys.stdin)))


def work(given: Given) -> dict[str, Any]:
    """Receive and send as asked for; return the bytes moved, kept and sent, and the seconds.

    Args:
        given: `hub` or `folder` (a plain one), and `ours`, our notes on it; `manifest`; `receive`
            (sender, addresses, spare, token, certificate, streams, revision) and `serve`
            (addresses, spare, token, certificate, key, follow, state), each or null.

    Raises:
        ResourceError: what either of them raises, or a file has no hash.
    """
    manifest = Manifest.from_document(given["manifest"])
    unknown = [file.path for file in manifest.files if not file.algorithm]
    if unknown:
        raise ResourceError(
            f"{manifest.repository}: {unknown[0]} has no hash, so that its copy cannot be checked",
            f"`spark-cluster models pull {manifest.repository}` on each node",
        )
    cache = cache_of(given, manifest)
    result: dict[str, Any] = {"moved": 0, "kept": 0, "sent": 0, "seconds": 0.0}
    with contextlib.ExitStack() as stack:
        sending = None
        if given.get("serve"):
            sending = stack.enter_context(_serving(cache, manifest, given["serve"]))
        if given.get("receive"):
            received = _receive(cache, manifest, given["receive"])
            result |= vars(received)
        if sending is not None:
            sending.wait()
            result["sent"] = sending.server.sent
    return result


def cache_of(given: Given, manifest: Manifest, *, read: bool = True) -> HubCache:
    """Return where the files are: a hub cache, or a plain folder.

    Args:
        read: see PlainFolder.
    """
    if not given.get("folder"):
        return HubCache(Path(given["hub"]), Path(given["ours"]))
    plain = PlainFolder(Path(given["folder"]), Path(given["ours"]), read=read)
    plain.adopt(manifest)
    return plain


def _receive(cache: HubCache, manifest: Manifest, given: Given) -> Any:
    client = BlobClient(
        cache,
        manifest,
        str(given["token"]),
        _addresses(given, "addresses"),
        spare=_addresses(given, "spare"),
        sender=str(given["sender"]),
        streams=int(given.get("streams") or STREAMS),
        revision=str(given.get("revision", "")),
    )
    if given.get("certificate"):
        client.tls = wire.receiver_tls(str(given["certificate"]))
    client.progress = Progress(str(given["sender"])).show
    client.warn = lambda text: print(WARNING + text, flush=True)
    try:
        return client.run()
    finally:
        client.leave()


def _addresses(given: Given, name: str) -> list[tuple[str, int]]:
    return [(str(host), int(port)) for host, port in given.get(name, ())]


class _Sending:
    """A sender in a thread; what it raises is raised by `wait`."""

    def __init__(self, server: BlobServer, given: Given) -> None:
        self.server = server
        self.error: ResourceError | None = None
        self._given = given
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.server.run(_addresses(self._given, "addresses"), _addresses(self._given, "spare"))
        except ResourceError as error:
            self.error = error
        finally:
            self.server.ready.set()

    def start(self) -> None:
        """Begin to listen.

        Raises:
            ResourceError: it cannot.
        """
        self._thread.start()
        self.server.ready.wait(BIND_S)
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Wait until the receiver has left, or none has come for a while."""
        self._thread.join(self.server.limit_s)
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def _serving(cache: HubCache, manifest: Manifest, given: Given) -> Iterator[_Sending]:
    tls = None
    if given.get("key"):
        tls = _sender_tls(str(given["certificate"]), str(given["key"]))
    server = BlobServer(cache, manifest, str(given["token"]), tls, bool(given.get("follow")))
    server.limit_s = float(given.get("limit_s", server.limit_s))
    sending = _Sending(server, given)
    try:
        sending.start()
        yield sending
    finally:
        server.ended.set()
        if given.get("state"):  # the next copy gets secrets of its own
            Path(given["state"]).unlink(missing_ok=True)


def _sender_tls(certificate: str, key: str) -> ssl.SSLContext:
    place = TMPFS if os.access(TMPFS, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="spark-cluster-copy-") as folder:
        paths = []
        for name, text in (("pem", certificate), ("key", key)):
            path = Path(folder) / name
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as out:
                out.write(text)
            paths.append(str(path))
        return wire.sender_tls(*paths)


class Progress:
    """Lines about a copy: bytes, speed, time left. The receiver calls it about once a second."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._first: tuple[float, int] | None = None

    def show(self, done: int, total: int) -> None:
        """Print how far it is."""
        now = time.monotonic()
        begun, before = self._first = self._first or (now, done)
        print(self.line(done, total, done - before, now - begun), flush=True)

    def line(self, done: int, total: int, moved: int, seconds: float) -> str:
        """Return what is there, the mean speed since the begin, and the time left."""
        text = f"{done / 1e9:.1f} of {total / 1e9:.1f} GB from {self._sender}"
        if not moved or seconds <= 0:
            return text
        speed = moved / seconds
        return f"{text}, {speed / 1e6:.0f} MB/s, {(total - done) / speed:.0f} s left"
