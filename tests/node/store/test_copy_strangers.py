"""Who connects to a copy's sender without its key: gets nothing, and keeps no receiver out."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from copy_ends import Serving
from models import content, model
from waiting import FAR_S, HANG_S, until

from spark_cluster.node.processes import Processes
from spark_cluster.node.store import copy_channel
from spark_cluster.node.store.copy_channel import Channel
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.verify import verify

MODEL = {"config.json": b"{}", "model.safetensors": content(100_000, 1)}
ELSEWHERE = "127.0.0.2"
"""Another address than the receiver's."""


@pytest.fixture(params=[True, False], ids=["ssh", "plain"])
def sender(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serving]:
    source = HubCache(tmp_path / "source", tmp_path / "ours")
    made = Serving(tmp_path, (source, model(source.root, MODEL)), encrypted=request.param)
    with made.running():
        yield made


def is_received(sender: Serving) -> bool:
    """Return whether a receiver gets the whole model."""
    target = HubCache(sender.folder / "target", sender.folder / "ours-target")
    moved = sender.receiver(target).run()["moved"]
    return verify(target, sender.manifest).sound and moved == sender.manifest.size


def test_without_the_key_no_byte_of_the_model_is_sent(sender, tmp_path):
    """With the keys of another copy, which a stranger can make at will."""
    (tmp_path / "stranger").mkdir()
    (tmp_path / "got").mkdir()
    keys = copy_channel.make_secrets(tmp_path / "stranger", Processes())
    channel = Channel.of(
        tmp_path / "stranger", {**keys, "host": sender.secrets["host"]}, sender.port,
        encrypted=sender.encrypted,
    )  # fmt: skip
    for module, path in (("files", ""), ("files", sender.manifest.files[-1].blob), ("done", "")):
        argv = channel.rsync("127.0.0.1", module, path, "-r", str(tmp_path / "got"))
        done = Processes().run(argv, env=copy_channel.ENVIRONMENT, timeout=HANG_S)
        assert done.status != 0
        assert "Permission denied" in done.stderr or "auth failed" in done.stderr
    assert not list((tmp_path / "got").iterdir())
    assert sender.thread.is_alive(), "a stranger cannot say that the copy is done"
    assert is_received(sender)


def test_who_listens_to_a_receiver_does_not_get_the_secret(sender, tmp_path):
    """Nor can it be sent again: rsync's answer is to a challenge, ssh's is of this connection."""
    heard = list[bytes]()
    with socket.create_server((ELSEWHERE, sender.port)) as mute:
        receiver = sender.receiver(
            HubCache(tmp_path / "t", tmp_path / "o"), (ELSEWHERE,), silent_s=1.0, streams=1
        )
        with contextlib.suppress(Exception):
            receiver.run()
        mute.settimeout(HANG_S)
        near, _ = mute.accept()
        near.settimeout(1.0)
        with near, contextlib.suppress(OSError):
            heard.append(near.recv(1 << 16))
    assert heard
    assert sender.secrets["token"].encode() not in b"".join(heard)


@contextlib.contextmanager
def holding(sender: Serving, count: int, host: str) -> Iterator[None]:
    """Strangers who connect, say nothing, and connect again whenever they are cut."""
    stop, held = threading.Event(), set()

    def hold(number: int) -> None:
        while not stop.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(
                    ("127.0.0.1", sender.port), timeout=HANG_S, source_address=(host, 0)
                ) as connection,
            ):
                held.add(number)
                connection.settimeout(0.5)
                while not stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        if not connection.recv(1 << 16):
                            break

    threads = [threading.Thread(target=hold, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(held) == count, what="all strangers are connected")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(HANG_S)


@pytest.mark.parametrize("host", [ELSEWHERE, "127.0.0.1"], ids=["elsewhere", "same address"])
def test_strangers_who_say_nothing_keep_no_receiver_out(sender, host):
    with holding(sender, 130, host):
        assert is_received(sender)


def test_who_drips_has_no_more_time_than_who_is_silent(sender):
    with socket.create_connection(("127.0.0.1", sender.port), timeout=0.2) as connection:
        for byte in b"SSH-2.0-" + b"x" * 200 if sender.encrypted else b"@RSYNCD: 32." + b"0" * 200:
            try:
                connection.sendall(bytes([byte]))
                if connection.recv(1 << 16) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("it was never cut")


def test_a_sender_without_receivers_ends_although_strangers_connect(sender):
    sender.sender.idle_s = 0.5
    with holding(sender, 8, ELSEWHERE):
        until(lambda: not sender.thread.is_alive(), 30, "the sender has ended")


def test_a_receiver_keeps_its_sender_however_long_it_takes(sender, tmp_path):
    """Once it has proved the key: it need not say anything more."""
    receiver = sender.receiver(HubCache(tmp_path / "t", tmp_path / "o"))
    words = ["--files-from=-", str(tmp_path)]  # of names that do not come
    argv = receiver.channel.rsync("127.0.0.1", "files", "", *words)
    ended = threading.Event()
    environment: dict[str, Any] = {"env": copy_channel.ENVIRONMENT, "timeout": HANG_S}
    with Processes().start(
        ["sh", "-c", 'sleep 600 | exec "$@"', "sh", *argv], **environment
    ) as one:
        until(sender.sender._proved, what="the receiver has proved the key")
        sender.sender.idle_s = 0.0
        for _ in range(3):  # it goes round and round, and does not end
            with socket.create_connection(("127.0.0.1", sender.port), timeout=HANG_S) as other:
                other.recv(1)
        assert sender.thread.is_alive()
        ended.set()
        one.end()
    until(lambda: not sender.thread.is_alive(), what="the sender has ended")


@contextlib.contextmanager
def looking_like_one(sender: Serving) -> Iterator[int]:
    """A program of a container or a user, with the words of a process that serves a receiver."""
    words = [f"--config={sender.place}/rsyncd.conf", f"{sender.place}/command"]
    script = f"cd /tmp; echo $$ > {sender.folder}/pid; sleep {FAR_S}; :"
    subprocess.run(["setsid", "--fork", "sh", "-c", script, "sh", *words], check=True)
    pid = int(until(lambda: (sender.folder / "pid").exists() and _text(sender), what="it runs"))
    try:
        yield pid
    finally:
        os.killpg(pid, signal.SIGKILL)


def _text(sender: Serving) -> str:
    return (sender.folder / "pid").read_text().strip()


def test_a_program_that_looks_like_a_receivers_keeps_no_sender(sender):
    """Whoever can start a program chooses its words, and the secrets would stay with the sender."""
    sender.sender.idle_s = 0.5
    with looking_like_one(sender) as pid:
        until(lambda: not sender.thread.is_alive(), 30, "the sender has ended")
        assert Path(f"/proc/{pid}").exists(), "it is not the sender's to end"
