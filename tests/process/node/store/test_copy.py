"""A model from one cache to another by a real sender and receivers, also when it goes wrong."""

import os
import socket
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from copy_ends import Serving
from model_content import COMMIT, REPOSITORY, content, model
from relay import Relay
from waiting import until

from spark_cluster.node.processes import Processes
from spark_cluster.node.store import copy_channel, copy_receiving
from spark_cluster.node.store.copy_channel import DATA, Broken, CopyChannel, Sender, Stream
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.verify import verify
from spark_cluster.node.values import ResourceError

BIG = 1 << 20
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "empty.txt": b"",
    "one.txt": b"1",
    "model-1.safetensors": content(3 * BIG + 12345, 1),
    "model-2.safetensors": content(2 * BIG, 2),
    "sub/tokenizer.json": content(70_000, 3),
}
WAYS = pytest.mark.parametrize("encrypted", [True, False], ids=["TLS", "plain"])


@pytest.fixture
def source(tmp_path: Path) -> tuple[HubCache, Manifest]:
    root = tmp_path / "source"
    return HubCache(root, tmp_path / "ours-source"), model(root, MODEL)


@pytest.fixture
def target(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "target", tmp_path / "ours-target")


@pytest.fixture
def serving(source, tmp_path: Path) -> Any:
    return lambda **given: Serving(tmp_path, source, **given).running()


def assert_whole(target: HubCache, manifest: Manifest) -> None:
    assert verify(target, manifest).sound
    snapshot = target.snapshot(REPOSITORY, COMMIT)
    assert {path: (snapshot / path).read_bytes() for path in MODEL} == MODEL
    left = list((target.folder(REPOSITORY) / "blobs").glob("*.incomplete"))
    assert not left


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith(copy_receiving.WARNING)]


@WAYS
def test_all_of_it_arrives_over_two_addresses(source, target, serving, encrypted):
    _, manifest = source
    with serving(encrypted=encrypted, addresses=("127.0.0.1", "127.0.0.2")) as made:
        receiver = made.receiver(target, revision="main")
        received = receiver.run()
        receiver.leave()
        until(lambda: not made.thread.is_alive(), what="the sender has ended")
    assert_whole(target, manifest)
    assert target.commit_of(REPOSITORY, "main") == COMMIT
    assert (received["moved"], received["kept"]) == (manifest.size, 0)


def test_nothing_is_moved_twice(target, serving):
    with serving() as made:
        made.receiver(target).run()
        assert made.receiver(target).run()["moved"] == 0
    refused = made.receiver(target, port=1).run()
    assert refused["moved"] == 0, "a sender is not even asked"


@WAYS
def test_a_cut_in_the_middle_is_gone_on_with(source, target, serving, encrypted, capsys):
    _, manifest = source
    with serving(encrypted=encrypted) as made:
        cut = Relay(made.port, manifest.size // 2)
        receiver = made.receiver(target, port=cut.port, silent_s=1.5, switch_s=0.5, streams=1)
        with pytest.raises(ResourceError, match="spark1 sends nothing"):
            receiver.run()
        (warning,) = warnings(capsys)
        assert "nothing comes from spark1 any more " in warning
        assert target.missing(manifest).begun > 0
        whole = Relay(made.port)
        received = made.receiver(target, port=whole.port, streams=1).run()
        whole.close()
    assert received["kept"] > manifest.size // 10
    assert whole.carried < 1.02 * (manifest.size - received["kept"]) + 300_000
    assert_whole(target, manifest)


def test_a_fabric_that_never_answers_is_left_for_the_management_network(
    source, target, serving, capsys
):
    _, manifest = source
    with serving() as made, socket.create_server(("127.0.0.9", made.port)):
        receiver = made.receiver(target, ("127.0.0.9",), spare=made.addresses)
        receiver.switch_s = 1.0
        received = receiver.run()
    assert received["switched"]
    assert received["moved"] == manifest.size
    warning = warnings(capsys)[0]
    assert "nothing comes from spark1 over the fabric" in warning
    assert "go over 127.0.0.1, on 1 Gbit/s about" in warning
    assert_whole(target, manifest)


def test_one_of_two_links_that_does_not_answer_leaves_all_to_the_other(source, target, serving):
    _, manifest = source
    with serving() as made, socket.create_server(("127.0.0.9", made.port)):
        receiver = made.receiver(target, ("127.0.0.9", *made.addresses), spare=("192.0.2.1",))
        received = receiver.run()
    assert (received["moved"], received["switched"]) == (manifest.size, False)
    assert_whole(target, manifest)


def test_a_spare_address_of_another_machine_does_not_stop_the_sender(source, target, serving):
    _, manifest = source
    with serving(spare=["192.0.2.1"]) as made:
        assert not made.receiver(target).run()["switched"]
    assert_whole(target, manifest)


@WAYS
def test_an_address_that_is_taken_is_said(source, tmp_path, encrypted):
    made = Serving(tmp_path, source, encrypted=encrypted)
    channel = CopyChannel.of(made.secrets, sender=True, encrypted=encrypted)
    with (
        made.running(),
        pytest.raises(ResourceError, match=f"nothing can be sent from .* {made.port}"),
    ):
        Sender(channel, ["127.0.0.1"], (), lambda *_: None)


def test_a_source_that_is_damaged_is_refused(source, target, serving):
    cache, manifest = source
    file = next(f for f in manifest.files if f.path == "model-2.safetensors")
    with cache.blob(REPOSITORY, file.blob).open("r+b") as opened:
        opened.seek(BIG)
        opened.write(b"flipped")
    with serving() as made, pytest.raises(ResourceError) as error:
        made.receiver(target).run()
    assert "model-2.safetensors from spark1 is not what its hash says" in error.value.message
    assert not target.blob(REPOSITORY, file.blob).exists()
    assert not target.snapshot(REPOSITORY, COMMIT).exists()


@pytest.mark.parametrize("name", ["model-2.safetensors", "one.txt"])
def test_a_sender_that_does_not_stop_fills_no_disk(source, target, tmp_path, name):
    """It knows the secret, and sends more of a file than there is."""
    _, manifest = source
    made = Serving(tmp_path, source)
    file = next(f for f in manifest.files if f.path == name)

    sound = made.sender._give

    def endless(stream: Stream, number: int, begin: int) -> None:
        if [*manifest.blobs.values()][number] != file:
            sound(stream, number, begin)
            return
        for _ in range(100):
            stream.answer(DATA, bytes(BIG))

    made.sender._give = endless
    with made.running(), pytest.raises(ResourceError, match=r"more than the .* bytes of .* come"):
        made.receiver(target).run()
    sizes = [p.stat().st_size for p in made.folder.rglob("*") if "target" in str(p)]
    assert max(sizes) <= max(f.size for f in manifest.files)
    assert not target.blob(REPOSITORY, file.blob).exists()


@pytest.mark.parametrize("extra", [-1, 0, 5])
def test_a_half_file_of_other_content_is_thrown_away(source, target, serving, extra):
    """Of a copy that died, or of another tool: nothing passes without its hash."""
    _, manifest = source
    for file in (f for f in manifest.files if f.size > BIG):
        half = target.incomplete(REPOSITORY, file.blob)
        half.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(b"x" * (file.size + extra))
    with serving() as made:
        made.receiver(target).run()
    assert_whole(target, manifest)


@WAYS
def test_another_sender_is_refused(target, serving, encrypted):
    with serving(encrypted=encrypted) as made:
        place = made.folder / "other"
        place.mkdir()
        wrong = copy_channel.make_secrets(place, Processes())
        with pytest.raises(ResourceError, match="is not spark1: it has another certificate"):
            made.receiver(target, secrets=wrong).run()
    assert not list(target.root.rglob("snapshots"))


def test_a_full_disk_is_said_before_the_first_byte(target, serving):
    with (
        serving() as made,
        pytest.raises(ResourceError, match=r"needs 0\.0 GB more below .* are free"),
    ):
        made.receiver(target, kept_free=1 << 60).run()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_gets_full_leaves_what_is_there(source, target, serving):
    _, manifest = source
    blobs = target.blobs(REPOSITORY)
    blobs.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={4 * BIG}", "tmpfs", str(blobs)]
    Processes().run(mount, env={}, timeout=10.0).check("mount")
    try:
        with serving() as made:
            with pytest.raises(ResourceError, match="No space left") as error:
                made.receiver(target).run()
            assert "resumes where this one ended" in error.value.hint
            more = ["mount", "-o", f"remount,size={20 * BIG}", str(blobs)]
            Processes().run(more, env={}, timeout=10.0).check("mount")
            assert made.receiver(target).run()["kept"] > 0
        assert_whole(target, manifest)
    finally:
        Processes().run(["umount", str(blobs)], env={}, timeout=10.0)


def test_what_is_still_downloaded_is_waited_for(source, target, serving):
    cache, manifest = source
    blobs = [cache.blob(REPOSITORY, file.blob) for file in manifest.files[:3]]
    for blob in blobs:
        blob.rename(f"{blob}.hidden")
    with alone(cache, REPOSITORY), serving() as made:
        receiver = made.receiver(target)
        thread = threading.Thread(target=receiver.run)
        thread.start()
        rest = sum(file.size for file in manifest.files[3:])
        until(lambda: _arrived(target) >= rest, what="the others are there")
        for blob in blobs:
            Path(f"{blob}.hidden").rename(blob)
        thread.join(30)
    assert_whole(target, manifest)


def _arrived(target: HubCache) -> int:
    names = target.contents(REPOSITORY).items()
    return sum(about.st_size for name, about in names if not name.endswith(".incomplete"))


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ("bytes of a file", r"spark1 cannot give all of org/model: .*its size is not the one"),
        ("a file that nobody downloads", "its download there has ended without it"),
        ("a file whose download takes for ever", "has no "),
    ],
)
def test_what_a_source_lacks_is_said(source, target, serving, monkeypatch, lacks, says):
    monkeypatch.setattr(copy_channel, "WRITER_GONE_S", 0.3)
    cache, manifest = source
    if lacks == "bytes of a file":
        os.truncate(cache.blob(REPOSITORY, manifest.files[-1].blob), 5)
    else:
        cache.blob(REPOSITORY, manifest.files[0].blob).unlink()
    writes = alone(cache, REPOSITORY) if "for ever" in lacks else nullcontext()
    with writes, serving() as made, pytest.raises(ResourceError, match=says):
        made.receiver(target, patience_s=0.5).run()


@WAYS
@pytest.mark.parametrize(("number", "begin"), [(99, 0), (1 << 63, 0), (0, 1 << 62), (1, 24)])
def test_a_receiver_gets_what_is_of_the_model_and_nothing_else(serving, encrypted, number, begin):
    """A file is named by its number in the sender's list, whatever a receiver asks for."""
    with (
        serving(encrypted=encrypted) as made,
        made.channel().connected("127.0.0.1", "spark1") as stream,
    ):
        stream.request(number, begin)
        with pytest.raises(Broken):
            list(stream.answered(memoryview(bytearray(BIG))))


@pytest.mark.parametrize("trick", ["link", "half", "fifo"])
def test_what_has_taken_the_place_of_a_file_is_not_sent(source, serving, trick, tmp_path):
    """Who can write the folder of a model puts something else there once the copy has begun."""
    cache, manifest = source
    (tmp_path / "secret").write_bytes(MODEL["config.json"])
    number = [*manifest.blobs].index(
        next(f.blob for f in manifest.files if f.path == "config.json")
    )
    with serving() as made, made.channel().connected("127.0.0.1", "spark1") as stream:
        blob = cache.blob(REPOSITORY, [*manifest.blobs][number])
        blob.unlink()
        if trick == "link":
            blob.symlink_to(tmp_path / "secret")
        elif trick == "half":
            blob.write_bytes(b"{}")
        else:
            os.mkfifo(blob)
        stream.request(number, 0)
        with pytest.raises(copy_channel.CopyRefused):
            list(stream.answered(memoryview(bytearray(BIG))))


def test_a_sender_that_only_talks_is_left(target, serving, monkeypatch):
    """It sends a byte now and then for ever: the proof has a limit for all of it."""
    monkeypatch.setattr(copy_channel, "PROOF_S", 0.5)
    ended = threading.Event()
    with serving(encrypted=False) as made, socket.create_server(("127.0.0.9", made.port)) as talks:

        def talk() -> None:
            with suppress(OSError):
                near, _ = talks.accept()
                while not ended.wait(0.05):
                    near.sendall(b"x")

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        try:
            made.receiver(target, ("127.0.0.9",)).leave()
        finally:
            ended.set()
            thread.join()


def test_secrets_are_not_shown_and_root_only(tmp_path, source):
    made = Serving(tmp_path, source)
    for file in made.place.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    assert made.secrets["key"] not in repr(made.channel())
