"""The order in which files reach the disk: a power cut at any moment leaves all or nothing."""

import fcntl
import io
import json
import os
import stat
import zipfile
from pathlib import Path

import pytest
from factories import apply

from spark_cluster.agent import bootstrap
from spark_cluster.node import durable
from spark_cluster.node.durable import TemporaryFiles, temporary_name, write_file
from spark_cluster.node.host import Host
from spark_cluster.resources import Command, Directory, File
from spark_cluster.resources.base import Resource

JOURNAL = "var/lib/spark-cluster/journal"


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Each path that was synced, and what /f held then."""
    found: list[tuple[str, str]] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        target = tmp_path / "f"
        held = target.read_text() if target.exists() else ""
        found.append((str(path.relative_to(tmp_path)), held))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def run(root: Path, *resources: Resource) -> list[str]:
    events: list[dict[str, object]] = []
    apply(resources, Host(root=root, run_id="r1"), events.append)
    return [str(e["verdict"]) for e in events if e["event"] == "result"]


def test_a_file_is_on_the_disk_before_it_takes_the_old_ones_place(tmp_path, synced):
    (tmp_path / "f").write_text("old")
    assert run(tmp_path, File("/f", content="new")) == ["change"]
    staged = [held for path, held in synced if path.startswith(".f.")]
    assert staged == ["old"], "its content, while the old one is in place"
    assert synced[-1][1] == "new"
    assert (".", "new") in synced, "the folder, once it is in place"


def test_the_journal_is_on_the_disk_before_the_change(tmp_path, synced):
    (tmp_path / "f").write_text("old")
    run(tmp_path, File("/f", content="new"))
    before = [path for path, held in synced if held == "old"]
    assert any(path.startswith(f"{JOURNAL}/r1/.run.json.spark-cluster-") for path in before)
    assert f"{JOURNAL}/r1" in before
    assert f"{JOURNAL}/r1/changes.jsonl" in before
    (kept,) = (tmp_path / JOURNAL / "r1/before").iterdir()
    assert any(path.startswith(f"{JOURNAL}/r1/before/.{kept.name}") for path in before)
    entry = json.loads((tmp_path / JOURNAL / "r1/changes.jsonl").read_text().splitlines()[0])
    assert entry["action"] == "file"


def test_a_restart_that_is_owed_is_on_the_disk_before_the_change(tmp_path, synced):
    (tmp_path / "f").write_text("old")
    config = File("/f", content="new")
    run(tmp_path, config, Command("restart", ("true",), when_changed=(config,)))
    assert ("var/lib/spark-cluster/pending", "old") in synced


def test_the_agents_code_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    """A power cut would leave empty files under the name of the whole: their digest is compared at
    each start, so that they would be sent again, and no other code would run."""
    (tmp_path / "made/spark_cluster").mkdir(parents=True)
    (tmp_path / "made/spark_cluster/a.py").write_text("a = 1")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as code:
        code.write(tmp_path / "made/spark_cluster/a.py", "spark_cluster/a.py")
    folder = tmp_path / "agent" / bootstrap.digest_of(str(tmp_path / "made"))
    done = []

    def synced(handle: int) -> None:
        done.append(("sync", os.path.realpath(f"/proc/self/fd/{handle}")))

    def renamed(old: str, new: str, real=os.rename) -> None:
        done.append(("rename", new))
        real(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    bootstrap.keep(packed.getvalue(), str(folder))
    staged = f"{folder}.{os.getpid()}"
    named = done.index(("rename", str(folder)))
    assert {path for _, path in done[:named]} == {
        staged, f"{staged}/spark_cluster", f"{staged}/spark_cluster/a.py",
    }  # fmt: skip
    assert ("sync", str(folder.parent)) in done[named:]


def test_only_root_reads_the_journal(tmp_path):
    (tmp_path / "f").write_text("old")
    run(tmp_path, File("/f", content="new"), Directory("/d"))
    assert stat.S_IMODE((tmp_path / JOURNAL).stat().st_mode) == 0o700
    files = [path for path in (tmp_path / JOURNAL).rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_small_file_is_not_written_through_a_link(tmp_path):
    """Neither by the name that it has at first, nor by its own."""
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    outside.chmod(0o600)
    for name in (".f.new", "f"):
        (tmp_path / name).symlink_to(outside)
    write_file(tmp_path / "f", b"ours", 0o644)
    assert (outside.read_text(), outside.stat().st_mode & 0o777) == ("theirs", 0o600)
    assert not (tmp_path / "f").is_symlink()
    assert (tmp_path / "f").read_text() == "ours"


def test_what_a_crash_left_of_a_small_file_goes_with_the_next_write(tmp_path):
    left, written = (tmp_path / temporary_name("f") for _ in range(2))
    other = tmp_path / temporary_name("g")
    for path in (left, written, other):
        path.write_text("half")
    with written.open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)  # as a process that is at work with it
        write_file(tmp_path / "f", b"ours")
        TemporaryFiles(tmp_path / "state").path_for(written)
        TemporaryFiles(tmp_path / "state").clean(lambda _text: None)
    assert (left.exists(), written.exists(), other.exists()) == (False, True, False)
    write_file(tmp_path / "f", b"ours")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["f"]


def test_a_small_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "f", b"ours")
    assert list(tmp_path.iterdir()) == []


def test_only_a_plain_file_of_a_usual_size_is_read_as_an_object(tmp_path, monkeypatch):
    kept = tmp_path / "kept.json"
    kept.write_text('{"number": 1}')
    assert durable.read_object(kept) == {"number": 1}
    (tmp_path / "link").symlink_to(kept)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "list").write_text("[1]")
    for name in ("link", "fifo", "list", "missing"):
        assert durable.read_object(tmp_path / name) == {}, name
    monkeypatch.setattr(durable, "LARGEST_OBJECT", 10)
    assert durable.read_object(kept) == {}
