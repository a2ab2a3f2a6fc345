"""A folder of plain files from one machine to another, as a hub cache is copied."""

import contextlib
import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import copy_ends
import pytest
from hostile import container, user
from hostile.container import FILE_TRICKS

from spark_cluster.node.store import verify
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.verify import PlainFolder
from spark_cluster.node.values import ResourceError

CONTENTS = {
    "config.json": b"{}",
    "empty": b"",
    "same-1.bin": b"twice" * 1000,
    "sub/same-2.bin": b"twice" * 1000,
    "sub/weights.bin": bytes(range(256)) * 40_000,
}


@pytest.fixture
def source(tmp_path: Path) -> PlainFolder:
    root = tmp_path / "source"
    for name, data in CONTENTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / ".complete").write_text("org/model@main\n")
    return PlainFolder(root, tmp_path / "ours-a")


@pytest.fixture
def target(tmp_path: Path) -> PlainFolder:
    return PlainFolder(tmp_path / "target", tmp_path / "ours-b")


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    return partial(copy_ends.copied, tmp_path / "ends")


def files(folder: PlainFolder) -> dict[str, bytes]:
    found = (path for path in folder.root.rglob("*") if path.is_file())
    return {path.relative_to(folder.root).as_posix(): path.read_bytes() for path in found}


def test_all_files_arrive_and_equal_ones_move_once(source, target, copied):
    manifest = source.manifest()
    assert copied(source, target, manifest) == manifest.size
    assert manifest.size < sum(map(len, CONTENTS.values()))
    assert files(target) == CONTENTS
    assert copied(source, target, manifest) == 0
    assert target.manifest().files == manifest.files


def test_what_has_not_changed_is_not_read_again(source, monkeypatch):
    read: list[int] = []
    manifest = source.manifest(read.append)
    assert sum(read) == sum(map(len, CONTENTS.values()))
    again: list[int] = []
    assert source.manifest(again.append) == manifest
    assert not again
    (source.root / "config.json").write_bytes(b"[]")
    os.utime(source.root / "config.json", ns=(1, 1))
    assert source.manifest(again.append).commit != manifest.commit
    assert again == [2]


def test_only_a_file_that_differs_moves(source, target, copied):
    manifest = source.manifest()
    copied(source, target, manifest)
    (target.root / "config.json").write_bytes(b"[]")
    os.utime(target.root / "config.json", ns=(1, 1))
    assert copied(source, target, manifest) == 2
    assert (target.root / "config.json").read_bytes() == b"{}"


def test_a_half_file_is_gone_on_with(source, target, copied):
    manifest = source.manifest()
    weights = CONTENTS["sub/weights.bin"]
    name = f"{hashlib.sha256(weights).hexdigest()}.incomplete"
    half = target.root / verify.INCOMING / name
    half.parent.mkdir(parents=True)
    half.write_bytes(weights[:1_000_000])
    assert copied(source, target, manifest) == manifest.size - 1_000_000
    assert (target.root / "sub/weights.bin").read_bytes() == weights
    assert not half.parent.exists()


def test_without_reading_an_unknown_file_counts_as_missing(source, tmp_path):
    manifest = source.manifest()
    quick = PlainFolder(source.root, tmp_path / "none", read=False)
    assert {file.path for file in quick.missing(manifest).blobs} >= {"config.json"}
    assert PlainFolder(source.root, tmp_path / "ours-a", read=False).missing(manifest).nothing


@pytest.mark.parametrize("to", ["/etc/passwd", "/etc"])
def test_what_is_no_folder_of_files_is_refused(source, target, to):
    with pytest.raises(ResourceError, match="is not a folder"):
        target.manifest()
    target.root.mkdir()
    with pytest.raises(ResourceError, match="has no file"):
        target.manifest()
    (source.root / "link").symlink_to(to)
    with pytest.raises(ResourceError, match="is a link or no file"):
        source.manifest()


def test_a_record_that_is_damaged_is_made_again(source):
    manifest = source.manifest()
    (record,) = (source.root.parent / "ours-a").glob("*.json")
    record.write_text('{"config.json": [1')
    assert source.manifest() == manifest


def test_an_exact_copy_has_hidden_files_and_the_times_of_all(source, target, copied):
    for number, name in enumerate((*CONTENTS, ".ninja_log"), 1):
        (source.root / name).write_bytes(CONTENTS.get(name, b"# ninja log"))
        os.utime(source.root / name, ns=(number, number))
    exact = PlainFolder(source.root, source.root.parent / "ours-a", exact=True)
    manifest = Manifest.from_document(exact.manifest().document())
    assert copied(exact, target, manifest) == manifest.size
    assert files(target) == {**CONTENTS, ".ninja_log": b"# ninja log"}
    names = sorted(files(target), key=lambda name: (target.root / name).stat().st_mtime_ns)
    assert names == [*CONTENTS, ".ninja_log"]
    assert copied(exact, target, manifest) == 0

    os.utime(target.root / "config.json", ns=(99, 99))
    assert not target.missing(manifest).nothing
    assert copied(exact, target, manifest) == 0  # its content is there, its time is not
    assert (target.root / "config.json").stat().st_mtime_ns == 1


def test_a_time_that_cannot_be_one_is_refused(source):
    document = source.manifest().document()
    document["files"][0]["changed"] = "now"
    with pytest.raises(ResourceError, match="its time is 'now'"):
        Manifest.from_document(document)


@pytest.mark.parametrize("trick", [*sorted(FILE_TRICKS.keys() - {"huge file"}), "exchanged"])
def test_a_folder_of_a_user_gives_away_nothing_of_others(source, target, tmp_path, trick, copied):
    host = container.outside(tmp_path / "outside", len(CONTENTS["same-1.bin"]))
    manifest = source.manifest()
    place = source.root / "same-1.bin"
    if trick == "exchanged":
        meanwhile = container.exchanged(place, host.secret)
    else:
        container.leave(trick, place, host, FILE_TRICKS)
        meanwhile = contextlib.nullcontext()
    if os.geteuid() == 0:
        user.owned(source.root)
    with meanwhile:
        for _ in range(10 if trick == "exchanged" else 1):
            with contextlib.suppress(ResourceError, OSError):
                source.manifest()
            source.adopt(manifest)
            with contextlib.suppress(ResourceError, OSError):
                copied(source, target, manifest)
    container.untouched(host, target.root)


@pytest.mark.parametrize("trick", FILE_TRICKS)
@pytest.mark.parametrize("place", ["config.json", "sub", ".spark-cluster-incoming", "HALF"])
def test_nothing_is_written_through_a_folder_of_a_user(
    source, target, tmp_path, trick, place, copied
):
    host = container.outside(tmp_path / "outside")
    manifest = source.manifest()
    half = target.incomplete(manifest.repository, manifest.files[0].blob)
    container.leave(trick, half if place == "HALF" else target.root / place, host, FILE_TRICKS)
    with contextlib.suppress(ResourceError, OSError):
        copied(source, target, manifest)
    container.untouched(host, target.root, read=trick == "hard link")


@user.needs_root
def test_a_folder_is_not_reached_through_a_link_of_a_user(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/secret").write_text("x")
    link = tmp_path / "models"
    link.symlink_to("etc")
    assert PlainFolder(link, tmp_path / "ours").manifest().files
    os.lchown(link, user.NOBODY, user.NOBODY)
    with pytest.raises(ResourceError, match="a link that other users can replace"):
        PlainFolder(link, tmp_path / "ours").manifest()
