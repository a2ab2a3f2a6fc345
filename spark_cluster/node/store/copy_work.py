"""A node's part in a copy, as a process of its own: it receives a model, sends it on, or both; or
it receives or sends an image.

A transient unit runs it (agent/model_store.py). Secrets come by standard input; the argument list
names the copy and the neighbours, so that a later run finds the same work.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO, Any

from spark_cluster.node import dockerd, own_program
from spark_cluster.node.beneath import write_all
from spark_cluster.node.store import copy_channel, copy_receiving
from spark_cluster.node.store.copy_channel import Broken, CopyChannel, Stream
from spark_cluster.node.store.copy_receiving import Receiver
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import KEPT_FREE, Manifest
from spark_cluster.node.store.verify import ByteProgress, PlainFolder
from spark_cluster.node.values import ResourceError, looks

LOOK_S = 0.2
"""Seconds between two looks whether this part of the copy is still wanted."""
QUIET_S = 900.0
"""Seconds without a byte of an image after which its copy has failed: some Dockers write all of an
image to the disk before the first byte."""
REMOVE_S = 60.0

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
    given, done = json.load(sys.stdin), threading.Event()
    place = Path(given["place"])
    threading.Thread(target=_end_with, args=(place, done), daemon=True).start()
    own_program.print_answer(lambda: work(given))
    done.set()
    shutil.rmtree(place, ignore_errors=True)  # the next copy gets secrets of its own


def _end_with(place: Path, done: threading.Event) -> None:
    """End this process with a folder; a half-received model is what the next copy goes on with."""
    while place.exists():
        if done.wait(LOOK_S):
            return
    error = "the copy was ended, because another node's part in it has failed"
    print(json.dumps({"error": error, "hint": ""}), flush=True)
    os._exit(0)


def work(given: Given) -> dict[str, Any]:
    """Receive and send as asked for; return the bytes `moved` and `kept`, and the `seconds`.

    Args:
        given: `hub` or `folder` (a plain one), `ours`, our notes on it, and `manifest`; or
            `image`, the name of one, and its `size`; `receive` (sender, addresses, spare, secrets,
            streams, revision) and `serve` (addresses, spare, secrets), each or null;
            `encrypted`.

    Raises:
        ResourceError: what either of them raises, or a file has no hash.
    """
    nothing = {"moved": 0, "kept": 0, "seconds": 0.0}
    if given.get("image"):
        with _sending(given, partial(send_image, given["image"])):
            return _receive_image(given) if given["receive"] else nothing
    manifest = Manifest.from_document(given["manifest"])
    unknown = [file.path for file in manifest.files if not file.algorithm]
    if unknown:
        raise ResourceError(
            f"{manifest.repository}: {unknown[0]} has no hash, so that its copy cannot be checked",
            f"`spark-cluster models pull {manifest.repository}` on each node",
        )
    cache = cache_of(given, manifest)
    with _sending(given, copy_channel.StoredFiles(cache, manifest)):
        return _receive(given, cache, manifest) if given["receive"] else nothing


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
def _sending(given: Given, give: copy_channel.Give) -> Iterator[None]:
    """Send meanwhile, if this node is to, and afterwards until a receiver has everything.

    Raises:
        ResourceError: this node cannot listen.
    """
    serve = given["serve"]
    if serve is None:
        yield
        return
    sender = copy_channel.Sender(_channel(given, "serve"), serve["addresses"], serve["spare"], give)
    thread = threading.Thread(target=sender.run, daemon=True)  # an error ends the process
    thread.start()
    yield
    thread.join()


def _channel(given: Given, part: str) -> CopyChannel:
    """Return the end of a copy that this node is by its part, `serve` or `receive`."""
    sends, encrypted = part == "serve", bool(given["encrypted"])
    return CopyChannel.of(given[part]["secrets"], sender=sends, encrypted=encrypted)


def _receive(given: Given, cache: HubCache, manifest: Manifest) -> dict[str, Any]:
    asked = given["receive"]
    receiver = Receiver(
        cache,
        manifest,
        _channel(given, "receive"),
        asked["addresses"],
        sender=str(asked["sender"]),
        spare=asked["spare"],
        streams=int(asked.get("streams") or copy_receiving.STREAMS),
        revision=str(asked.get("revision", "")),
    )
    try:
        return receiver.run()
    finally:
        receiver.leave()


def send_image(ref: str, stream: Stream, _number: int, _begin: int) -> None:
    """Answer with an image of Docker's, as an archive that zstd has packed."""
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(["docker", "save", ref], stdout=PIPE, stderr=said) as saving,
        subprocess.Popen(
            ["zstd", "-q", "-1", "-T0"], stdin=saving.stdout, stdout=PIPE, bufsize=0
        ) as packing,
        _killed_on_error(saving, packing),
    ):
        assert saving.stdout is not None  # noqa: S101  (both are pipes)
        assert packing.stdout is not None  # noqa: S101
        saving.stdout.close()  # it is zstd's now
        while piece := packing.stdout.read(copy_channel.PIECE):
            stream.answer(copy_channel.DATA, piece)
        if saving.wait():
            stream.answer(copy_channel.FAILED, _text(said).strip().encode())
        else:
            stream.answer(copy_channel.DATA)


def _receive_image(given: Given) -> dict[str, Any]:
    """Give Docker the image that the sender's Docker writes.

    Raises:
        ResourceError: either of them fails, with its own words, or other images came.
    """
    begun, progress = time.monotonic(), ByteProgress(int(given["size"]))
    ref, sender = given["image"], given["receive"]["sender"]
    try:
        with contextlib.closing(_connected(given)) as stream:
            stream.wait(QUIET_S)
            stream.request(0, 0)
            others = _load(stream, str(ref), progress.add)
            stream.leave()
    except copy_channel.CopyRefused as error:
        raise ResourceError(f"{sender} gives no image: {error}") from None
    except Broken as error:
        raise ResourceError(
            f"{sender} sends nothing more of {ref}: {error}",
            "`systemctl status docker` there says whether its Docker works",
        ) from None
    if others:
        names = ", ".join(others)[:300]
        raise ResourceError(f"{sender} sent other images than {ref}, which were left out: {names}")
    seconds = time.monotonic() - begun
    return {"moved": progress.read, "kept": 0, "seconds": seconds, "switched": False}


def _connected(given: Given) -> Stream:
    """Return a stream to the sender, over the first of its addresses that answers.

    Raises:
        ResourceError: none does, or another program answers.
    """
    asked, channel = given["receive"], _channel(given, "receive")
    limit_s = copy_receiving.SILENT_S
    sender, addresses = str(asked["sender"]), [*asked["addresses"], *asked["spare"]]
    every_look = looks(limit_s, copy_receiving.RECONNECT_S)
    for address, _ in zip(itertools.cycle(addresses), every_look, strict=False):
        try:
            return channel.connect(address, sender)
        except Broken as error:
            why = f"{address}: {error}"
    raise copy_receiving.silent(sender, limit_s, why)


def _load(stream: Stream, ref: str, on_bytes: Callable[[int], None]) -> list[str]:
    """Give Docker the packed archive that comes; return the names of other images in it.

    Raises:
        ResourceError: Docker refuses it.
        Broken, Refused: it does not come.
    """
    with (
        tempfile.TemporaryFile() as said,
        dockerd.keeping_names(
            lambda argv: own_program.printed(argv, REMOVE_S), ref, lambda: _text(said)
        ) as others,
        subprocess.Popen(
            ["zstd", "-q", "-d"], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, bufsize=0
        ) as unpacking,
        subprocess.Popen(["docker", "load"], stdin=PIPE, stdout=said, stderr=said) as loading,
        _killed_on_error(unpacking, loading),
    ):
        assert unpacking.stdin is not None  # noqa: S101  (it is a pipe)
        passing, full = (unpacking.stdout, loading.stdin, on_bytes), threading.Event()
        threading.Thread(target=_pass_on, args=passing, daemon=True).start()
        threading.Thread(target=_keep_room, args=(stream, loading, full), daemon=True).start()
        with contextlib.suppress(BrokenPipeError), unpacking.stdin:  # Docker says why itself
            try:
                for data in stream.answered(memoryview(bytearray(copy_channel.PIECE))):
                    write_all(unpacking.stdin.fileno(), data)
            except Broken:
                if not full.is_set():
                    raise
        status, printed = loading.wait(), _text(said)
        if full.is_set():
            raise ResourceError(
                f"the disk of Docker's store has less than {KEPT_FREE >> 30} GiB left, and less "
                "than half of what was free",
                "`spark-cluster images prune` shows what can be removed",
            )
        if status:
            raise ResourceError(f"docker load: {printed.strip().rpartition(chr(10))[2] or status}")
    return others


def _keep_room(stream: Stream, loading: subprocess.Popen[bytes], full: threading.Event) -> None:
    """End a load that fills the disk: a sender can send without end, or what unpacks to that.

    Of a disk that has little room half of it may be taken, as a small image fits.
    """
    where = own_program.printed(("docker", "info", "--format", "{{.DockerRootDir}}"), REMOVE_S)
    with contextlib.suppress(OSError):  # Docker does not say where
        folder = (where or "").strip()
        kept = min(KEPT_FREE, shutil.disk_usage(folder).free // 2)
        while loading.poll() is None:
            if shutil.disk_usage(folder).free < kept:
                full.set()
                loading.kill()
                stream.cut()
            time.sleep(LOOK_S)


def _pass_on(source: IO[bytes], target: IO[bytes], on_bytes: Callable[[int], None]) -> None:
    """Write all that comes from a pipe into another one, unless that is closed."""
    with contextlib.suppress(BrokenPipeError), source, target:
        while piece := source.read(copy_channel.PIECE):
            write_all(target.fileno(), piece)
            on_bytes(len(piece))


@contextlib.contextmanager
def _killed_on_error(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill processes on an error in the block: they may never end by themselves."""
    try:
        yield
    except BaseException:
        for one in processes:
            one.kill()
        raise


def _text(said: IO[bytes]) -> str:
    """Return the first dockerd.MOST_SAID bytes of what a program has said."""
    said.seek(0)
    return said.read(dockerd.MOST_SAID).decode(
        "ascii", errors="replace"
    )  # a character for each byte
