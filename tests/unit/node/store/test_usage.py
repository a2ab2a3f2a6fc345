"""Usage, pins and pruning of real hub caches."""

import os
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from model_content import COMMIT, REPOSITORY, content, model

from spark_cluster.node.store import usage as usage_module
from spark_cluster.node.store.hub_cache import HubCache, Records, alone
from spark_cluster.node.store.usage import Usage, plan, remove
from spark_cluster.node.values import ResourceError

OTHER = "d" * 40
SHARED = content(100_000, 1)
NOW = 2_000_000_000.0


@pytest.fixture
def cache(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "hub", tmp_path / "ours")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "ours")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A `/proc` without processes."""
    return tmp_path / "proc"


@pytest.fixture
def two(cache: HubCache) -> HubCache:
    """Two revisions of a model that have one blob in common; the first one served earlier."""
    model(cache.root, {"config.json": b"{}", "model.safetensors": SHARED}, "old")
    second = {"config.json": b"{ }", "model.safetensors": SHARED, "more.safetensors": b"more"}
    model(cache.root, second, "main", OTHER)
    return cache


def _process(proc: Path, number: int, *words: str) -> None:
    (proc / str(number)).mkdir(parents=True)
    (proc / str(number) / "cmdline").write_bytes("\0".join(words).encode())


USED = {f"{REPOSITORY}@{COMMIT}": NOW - 5000, f"{REPOSITORY}@{OTHER}": NOW - 10}


def usage(cache: HubCache, proc: Path) -> Usage:
    return usage_module.usage(cache, USED, proc)


def _plan(cache: HubCache, found: Usage, **wish: Any) -> list[str]:
    return [revision.commit for revision in plan(cache, found, NOW, **wish)[0]]


def _reasons(cache: HubCache, found: Usage, **wish: Any) -> dict[str, str]:
    _, kept = plan(cache, found, NOW, **wish)
    return {revision.commit: reason for revision, reason in kept}


def test_a_blob_of_two_revisions_is_counted_once(two, proc):
    found = usage(two, proc)
    assert [revision.commit for revision in found.revisions] == [COMMIT, OTHER]
    old, new = found.revisions
    assert (old.size, new.size) == (100_002, 100_007)
    assert found.size == 100_009
    assert (old.freed, new.freed) == (2, 7)
    assert found.freed(found.revisions) == 100_009
    assert (old.refs, new.refs) == (("old",), ("main",))
    assert not old.problem
    assert old.served


def test_pruning_one_revision_leaves_the_other_whole(two, proc):
    found = usage(two, proc)
    chosen, _ = plan(two, found, NOW, only=(f"{REPOSITORY}@{COMMIT}",))
    assert found.freed(chosen) == 2
    removed, _ = remove(two, found, chosen)
    assert [revision.commit for revision in removed] == [COMMIT]
    assert two.commits(REPOSITORY) == [OTHER]
    assert two.refs(REPOSITORY) == {"main": OTHER}
    after = usage(two, proc)
    assert after.size == found.size - 2
    assert not after.revisions[0].problem


def test_pruning_the_last_revision_removes_the_folder_with_its_half_files(two, proc):
    half = two.incomplete(REPOSITORY, "a" * 64)
    half.write_bytes(b"half")
    os.utime(half, (NOW - 5000, NOW - 5000))
    unfinished = usage(two, proc)
    assert unfinished.unfinished == 4
    remove(two, unfinished, plan(two, unfinished, NOW)[0])
    assert not two.folder(REPOSITORY).exists()
    assert two.root.is_dir()


@each_case(__file__, "plans.json")
def test_what_is_planned_to_go_and_why_the_others_stay(two, proc, case):
    """`old` served earlier than `main`; a branch that is unknown here may be any revision."""
    wish = case["wish"]
    if "keep" in wish:
        wish["keep"] = tuple(map(tuple, wish["keep"]))
    chosen, kept = plan(two, usage(two, proc), NOW, **wish)
    assert [revision.refs[0] for revision in chosen] == case["goes"]
    assert {revision.refs[0]: why for revision, why in kept} == case["stays"]


def test_pinned_revisions_and_models_stay(two, records, proc):
    assert records.pin(f"{REPOSITORY}@{COMMIT}", NOW)
    assert not records.pin(f"{REPOSITORY}@{COMMIT}", NOW)
    assert _plan(two, usage(two, proc)) == [OTHER]
    assert records.pin(REPOSITORY, NOW)
    assert _plan(two, usage(two, proc)) == []
    assert records.pin(REPOSITORY, NOW, pinned=False)
    assert not records.pin(REPOSITORY, NOW, pinned=False)
    assert _plan(two, usage(two, proc)) == [OTHER]


def test_what_serves_stays(two, proc):
    _process(proc, 7, "vllm", "serve", str(two.snapshot(REPOSITORY, OTHER)))
    assert _reasons(two, usage(two, proc)) == {OTHER: "in use by process 7 (vllm)"}
    _process(proc, 8, "python3", "-m", "other", f"--model={REPOSITORY}")
    assert _plan(two, usage(two, proc)) == []


def test_a_process_with_a_longer_name_is_no_use(two, proc):
    _process(proc, 7, "vllm", "serve", f"{REPOSITORY}-large", f"/x/models--org--model2/{COMMIT}")
    assert _plan(two, usage(two, proc)) == [COMMIT, OTHER]


def test_a_model_that_is_being_downloaded_stays(two, proc):
    half = two.incomplete(REPOSITORY, "a" * 64)
    half.write_bytes(b"half")
    os.utime(half, (NOW - 5, NOW - 5))
    reasons = _reasons(two, usage(two, proc))
    assert set(reasons.values()) == {"something is being downloaded there"}


def test_a_model_that_a_copy_has_locked_stays(two, proc, monkeypatch):
    monkeypatch.setattr(usage_module, "LOCK_S", 0.0)
    found = usage(two, proc)
    with alone(two, REPOSITORY):
        removed, kept = remove(two, found, plan(two, found, NOW)[0])
    assert not removed
    assert {reason for _, reason in kept} == {"something is being downloaded there"}
    assert two.commits(REPOSITORY) == [COMMIT, OTHER]


def test_a_blob_with_a_hard_link_frees_nothing(two, proc, tmp_path):
    [file] = [f for f in two.found(REPOSITORY, COMMIT).files if f.size == 100_000]
    (tmp_path / "elsewhere").hardlink_to(two.blob(REPOSITORY, file.blob))
    found = usage(two, proc)
    assert found.freed(found.revisions) == 9
    assert found.size == 100_009


def test_missing_blobs_are_a_problem_and_unreferenced_ones_are_counted(two, records, proc):
    manifest = two.found(REPOSITORY, COMMIT)
    records.keep(manifest)
    two.blob(REPOSITORY, next(f.blob for f in manifest.files if f.size == 2)).unlink()
    two.blob(REPOSITORY, "e" * 64).write_bytes(b"stray")
    found = usage(two, proc)
    assert found.revisions[0].problem == "missing: 1 file with 2 bytes"
    assert found.unused == 5


def test_nothing_is_pruned_while_the_pins_cannot_be_read(two, records, proc):
    assert records.pin(REPOSITORY, NOW)
    (records.folder / "pins.json").write_text("{")
    with pytest.raises(ResourceError, match=r"pins\.json cannot be read"):
        usage(two, proc)


@pytest.mark.parametrize("name", ["../x", "org/model@main", "a/b/c", "", "@" + COMMIT])
def test_only_models_are_pinned(records, name):
    with pytest.raises(ResourceError, match="is not a model"):
        records.pin(name, NOW)


def test_a_damaged_or_false_manifest_of_ours_counts_as_none(two, records):
    manifest = two.found(REPOSITORY, COMMIT)
    records.keep(manifest)
    assert records.manifest(REPOSITORY, COMMIT) == manifest
    assert records.manifest(REPOSITORY, OTHER) is None
    [path] = (records.folder / "manifests").iterdir()
    path.write_text('{"repository": "../x"}')
    assert records.manifest(REPOSITORY, COMMIT) is None


def test_our_notes_are_for_root_only(two, records):
    records.keep(two.found(REPOSITORY, COMMIT))
    found = [path for path in records.folder.rglob("*") if path.is_file()]
    assert found
    assert {path.stat().st_mode & 0o077 for path in [*found, records.folder]} == {0}


def test_no_content_of_two_hundred_files_is_read(cache, records, proc):
    """It may be hundreds of GB."""
    model(cache.root, {f"model-{n:05}-of-00200.safetensors": b"%d" % n for n in range(1, 201)})
    blobs = list(cache.blobs(REPOSITORY).iterdir())
    for blob in blobs:
        os.utime(blob, (1, 2))  # a read is seen: relatime moves what is older than the last write
    found = usage(HubCache(cache.root, records.folder / "none"), proc)
    assert found.revisions[0].files == 200
    assert {blob.stat().st_atime for blob in blobs} == {1}


def test_a_process_that_does_not_let_its_words_be_read_is_named(two, proc, monkeypatch):
    """They can be in a file of a file system of its user's own, which never answers."""
    monkeypatch.setattr(usage_module, "READ_S", 0.2)
    (proc / "77").mkdir(parents=True)
    os.mkfifo(proc / "77/cmdline")
    with pytest.raises(ResourceError, match="process 77 does not let") as caught:
        usage(two, proc)
    assert "kill -9 77" in caught.value.hint
    os.close(os.open(proc / "77/cmdline", os.O_WRONLY))  # its reader ends
