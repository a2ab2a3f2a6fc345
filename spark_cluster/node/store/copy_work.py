"""A node's part in a copy, as a process of its own: it receives a model, sends it on, or both; or
it receives or sends an image.

A transient unit runs it (agent/copies.py). Secrets come by standard input; the argument list names
the copy and the neighbours, so that a later run finds the same work.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import IO, Any

from spark_cluster.node import own_program
from spark_cluster.node.output import Kept
from spark_cluster.node.processes import Processes
from spark_cluster.node.store import copy_sending
from spark_cluster.node.store.copy_channel import Channel
from spark_cluster.node.store.copy_receiving import RECONNECT_S, SILENT_S, STREAMS, Receiver
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.plain_folder import PlainFolder
from spark_cluster.node.store.progress import Progress, line
from spark_cluster.node.values import ResourceError

LOOK_S = 0.2
"""Seconds between two looks whether this part of the copy is still wanted."""
PIECE = 1 << 20
QUIET_S = 900.0
"""Seconds without a byte of an image after which its copy has failed: some Dockers write all of an
image to the disk before the first byte."""
NOT_CONNECTED = 255
"""Status of ssh(1) where there is no connection."""
REMOVE_S = 60.0
TOLD = 4000
"""Bytes that are kept of what a program says."""
NAMED = 1 << 18
"""Bytes that are kept of the names of images that Docker has loaded."""
WARNING = "warning: "
"""Begin of a line of output that the user is to see as a warning."""

Given = Mapping[str, Any]


def argv(label: str) -> list[str]:
    """Return the command that does it with this very code.

    Args:
        label: the copy, and the nodes before and after this one.
    """
    return own_program.argv(__name__, label)


def main(_label: str) -> None:
    """Do it; the last line of output is JSON: its result, or `error` and `hint`.

    Of what it is `given`, `place` is the folder of this copy: once it is gone, this ends.
    """
    given, processes, done = json.load(sys.stdin), Processes(), threading.Event()
    place = Path(given["place"])
    threading.Thread(target=_end_with, args=(place, processes, done), daemon=True).start()
    own_program.print_answer(lambda: work(given, processes))
    done.set()
    shutil.rmtree(place, ignore_errors=True)  # the next copy gets secrets of its own


def _end_with(place: Path, processes: Processes, done: threading.Event) -> None:
    """End this process with a folder; a half-received model is what the next copy goes on with."""
    while place.exists():
        if done.wait(LOOK_S):
            return
    processes.kill()
    error = "the copy was ended, because another node's part in it has failed"
    print(json.dumps({"error": error, "hint": ""}), flush=True)
    os._exit(0)


def work(given: Given, processes: Processes) -> dict[str, Any]:
    """Receive and send as asked for; return the bytes `moved` and `kept`, and the `seconds`.

    Args:
        given: `hub` or `folder` (a plain one), `ours`, our notes on it, and `manifest`; or
            `image`, the name of one, and its `size`; `receive` (sender, addresses, spare, secrets,
            streams, revision, follow) and `serve` (addresses, spare, follow), each or null;
            `encrypted`.

    Raises:
        ResourceError: what either of them raises, or a file has no hash.
    """
    result: dict[str, Any] = {"moved": 0, "kept": 0, "seconds": 0.0}
    if given.get("image"):
        if given["serve"]:
            serve = {**given["serve"], "encrypted": True}
            copy_sending.of_image(Path(given["place"]), serve, given["image"], processes).run()
            return result
        return result | _receive_image(given)
    manifest = Manifest.from_document(given["manifest"])
    unknown = [file.path for file in manifest.files if not file.algorithm]
    if unknown:
        raise ResourceError(
            f"{manifest.repository}: {unknown[0]} has no hash, so that its copy cannot be checked",
            f"`spark-cluster models pull {manifest.repository}` on each node",
        )
    cache = cache_of(given, manifest)
    serves = bool(given["serve"])
    with _sending(given, cache, manifest, processes) if serves else contextlib.nullcontext():
        if given["receive"]:
            result |= _receive(given, cache, manifest, processes)
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


@contextlib.contextmanager
def _sending(
    given: Given, cache: HubCache, manifest: Manifest, processes: Processes
) -> Iterator[None]:
    """Send meanwhile; at the end wait until the receiver has all of it. Raises ResourceError."""
    serve = {**given["serve"], "encrypted": given["encrypted"]}
    sending = copy_sending.of_files(Path(given["place"]), serve, cache, manifest, processes)
    with sending as sender, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(sender.run)
        try:
            yield
        except BaseException:
            sender.end()
            raise
        sent.result()


def _receive(
    given: Given, cache: HubCache, manifest: Manifest, processes: Processes
) -> dict[str, Any]:
    asked = given["receive"]
    receiver = Receiver(
        cache,
        manifest,
        _channel(given),
        [str(host) for host, _ in asked["addresses"]],
        sender=str(asked["sender"]),
        spare=[str(host) for host, _ in asked["spare"]],
        streams=int(asked.get("streams") or STREAMS),
        revision=str(asked.get("revision", "")),
        follow=bool(asked.get("follow")),
        processes=processes,
        progress=CopyProgress(str(asked["sender"])).show,
        warn=lambda text: print(WARNING + text, flush=True),
    )
    try:
        return receiver.run()
    finally:
        receiver.leave()


def _channel(given: Given) -> Channel:
    asked = given["receive"]
    folder, port = Path(given["place"]) / "from", int(asked["addresses"][0][1])
    return Channel.of(folder, asked["secrets"], port, encrypted=bool(given["encrypted"]))


def _receive_image(given: Given) -> dict[str, Any]:
    """Give Docker the image that the sender's Docker writes.

    Raises:
        ResourceError: either of them fails, with its own words, or other images came.
    """
    begun, progress = time.monotonic(), Progress(int(given["size"]))
    argv = ["docker", "load"]
    with _coming(given) as (source, first, said):
        with subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, stderr=STDOUT) as loading:
            assert loading.stdin is not None  # noqa: S101  (it is a pipe)
            printed, piece = _kept(loading.stdout, NAMED), first
            with contextlib.suppress(BrokenPipeError), loading.stdin:  # Docker says why itself
                while piece:
                    loading.stdin.write(piece)
                    progress.add(len(piece))
                    piece = _next(source, given)
        if loading.returncode:
            last = printed().strip().rpartition("\n")[2] or f"status {loading.returncode}"
            why = f"docker load: {last}"
            raise ResourceError(f"{why} ({said().strip()[-300:]})" if said().strip() else why)
    _must_be_alone(printed(), given)
    seconds = time.monotonic() - begun
    return {"moved": progress.read, "kept": 0, "seconds": seconds, "switched": False}


def _must_be_alone(printed: str, given: Given) -> None:
    """Take their names from other images that came: this node may have had its own by these.

    Raises:
        ResourceError: there are some.
    """
    loaded = set(re.findall(r"^Loaded image: (\S+)$", printed, re.MULTILINE))
    if others := sorted(loaded - {shown(given["image"])}):
        names = ("docker", "image", "rm", "--", *others)
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(names, capture_output=True, timeout=REMOVE_S, check=False)
        raise ResourceError(
            f"{given['receive']['sender']} sent other images than {given['image']}: "
            f"{', '.join(others)[:300]}",
            "these names were taken away; `up` fetches what had them here",
        )


def shown(ref: str) -> str:
    """Return the name of an image as Docker prints it."""
    for default in ("index.docker.io/", "docker.io/"):
        if ref.startswith(default):
            ref = ref.removeprefix(default).removeprefix("library/")
    return ref if ":" in ref.rpartition("/")[2] else f"{ref}:latest"


@contextlib.contextmanager
def _coming(given: Given) -> Iterator[tuple[IO[bytes], bytes, Callable[[], str]]]:
    """Yield the image's archive as it comes, its first bytes, and what ssh and the sender say.

    Raises:
        ResourceError: nothing comes, or nothing more.
    """
    asked, channel = given["receive"], _channel(given)
    until = time.monotonic() + SILENT_S
    for address, _port in itertools.cycle([*asked["addresses"], *asked["spare"]]):
        argv = channel.ssh(address)
        with (
            subprocess.Popen(argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE) as coming,
            subprocess.Popen(
                ["zstd", "-q", "-d"], stdin=coming.stdout, stdout=PIPE, stderr=DEVNULL, bufsize=0
            ) as unpacking,
            _killed_on_error(coming, unpacking),
        ):
            assert coming.stdout is not None  # noqa: S101  (both are pipes)
            assert unpacking.stdout is not None  # noqa: S101
            coming.stdout.close()  # it is zstd's now
            said = _kept(coming.stderr)
            if first := _next(unpacking.stdout, given):
                yield unpacking.stdout, first, said
                return
        why = said().strip()[-300:]
        if coming.returncode != NOT_CONNECTED:
            raise ResourceError(f"{asked['sender']} gives no image: {why or 'it says nothing'}")
        if time.monotonic() > until:
            raise ResourceError(
                f"{asked['sender']} sends nothing for {SILENT_S:.0f} s ({address}: {why})",
                "check that it is up and the link between the nodes",
            )
        time.sleep(RECONNECT_S)


def _next(source: IO[bytes], given: Given) -> bytes:
    """Return the next bytes of an image; none at its end.

    Raises:
        ResourceError: none come, although the connection lives.
    """
    if not select.select([source], [], [], QUIET_S)[0]:
        raise ResourceError(
            f"{given['receive']['sender']} sends nothing for {QUIET_S:.0f} s of {given['image']}",
            "`systemctl status docker` there says whether its Docker works",
        )
    return source.read(PIECE)


@contextlib.contextmanager
def _killed_on_error(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill processes on an error in the block: they may never end by themselves."""
    try:
        yield
    except BaseException:
        for one in processes:
            one.kill()
        raise


def _kept(pipe: IO[bytes] | None, limit: int = TOLD) -> Callable[[], str]:
    """Read a pipe to its end; return what gives the begin and the end of what came, so far."""
    kept = Kept(limit)

    def read() -> None:
        with contextlib.suppress(ValueError):  # it is closed with its process
            while pipe is not None and (data := pipe.read(1)):
                kept.add(data)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()

    def text() -> str:
        thread.join(1.0)
        return kept.text()

    return text


class CopyProgress:
    """Lines about a copy: bytes, speed, time left. The receiver calls it about once a second."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._first: tuple[float, int] | None = None

    def show(self, done: int, total: int) -> None:
        """Print how far it is."""
        now = time.monotonic()
        begun, before = self._first = self._first or (now, done)
        text = line(f"from {self._sender}", done, total, done - before, now - begun)
        print(text, flush=True)
