"""The operation `store` on a root that is a folder, with real files and real processes."""

import json
import shutil
import time
from pathlib import Path

import pytest
from model_content import COMMIT, REPOSITORY, content, model

from spark_cluster.agent import operations
from spark_cluster.node import engine_caches
from spark_cluster.node.engine_caches import LaunchRecord
from spark_cluster.node.host import Host
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.values import ResourceError

HUB = "/var/cache/hub"
CONTENTS = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": content(300_000, 1),
    "model-00002-of-00002.safetensors": content(200_000, 2),
}
SHARD = "model-00002-of-00002.safetensors"
REVISION = {"repository": REPOSITORY, "commit": COMMIT}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(root=tmp_path, run_id="test")


@pytest.fixture
def cache(host: Host) -> HubCache:
    return HubCache(host.path(HUB))


def ask(host, what, **request):
    asked = {"op": "store", "what": what, "hub": HUB, **request}
    return json.loads(json.dumps(operations.act(host, asked)))


def state(host, revision="main"):
    wanted = [{"repository": REPOSITORY, "revision": revision}]
    [found] = ask(host, "state", wanted=wanted)["models"]
    return found


def flip(path: Path, at: int) -> None:
    """Change one byte of a file, and not its size."""
    with path.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte[0] ^ 1]))


def blob_of(cache, manifest, path):
    [file] = [file for file in manifest.files if file.path == path]
    return cache.blob(REPOSITORY, file.blob)


def test_a_model_is_known_by_its_branch_and_its_commit_and_a_branch_that_moved_is_told(host, cache):
    manifest = model(cache.root, CONTENTS)
    for revision in ("main", COMMIT):
        found = state(host, revision)
        assert found["commit"] == COMMIT
        assert found["manifest"] == manifest.document()
        assert (found["missing"], found["links"], found["missing_bytes"]) == ([], [], 0)
    (cache.folder(REPOSITORY) / "refs/main").write_text("d" * 40)
    found = state(host)
    assert (found["commit"], found["manifest"]) == ("d" * 40, None)
    assert "dddddddddddd is not on this node" in found["problem"]
    assert state(host, COMMIT)["manifest"]


def test_what_is_damaged_is_found_and_removed_and_only_that_is_missing(host, cache):
    """A broken link, which is made again, a flipped byte, and a blob that is gone."""
    manifest = model(cache.root, CONTENTS)
    assert ask(host, "verify", **REVISION)["damaged"] == []  # the manifest is kept from here on
    link = cache.snapshot(REPOSITORY, COMMIT) / "config.json"
    link.unlink()
    link.symlink_to("../../blobs/gone")
    assert state(host)["links"] == ["config.json"]
    assert ask(host, "remove_damaged", **REVISION) == {"removed": 0, "links": 1}
    assert link.read_bytes() == CONTENTS["config.json"]
    first = "model-00001-of-00002.safetensors"
    flip(blob_of(cache, manifest, SHARD), 150_000)
    blob_of(cache, manifest, first).unlink()
    found = ask(host, "verify", **REVISION)
    read = manifest.size - 300_000
    assert found == {"damaged": [SHARD], "missing": [first], "unchecked": [], "read": read}
    removed = ask(host, "remove_damaged", **REVISION, paths=found["damaged"])
    assert removed == {"removed": 1, "links": 0}
    after = state(host)
    assert (after["missing"], after["missing_bytes"]) == ([first, SHARD], 500_000)
    assert after["manifest"] == manifest.document(), "what is missing stays known"


def test_only_files_of_the_model_are_removed(host, cache):
    model(cache.root, CONTENTS)
    outside = host.path("/etc/passwd")
    outside.parent.mkdir()
    outside.write_text("x")
    paths = ["../../../../../../etc/passwd", "/etc/passwd", "refs/main"]
    found = ask(host, "remove_damaged", **REVISION, paths=paths)
    assert found["removed"] == 0
    assert outside.exists()


def test_a_model_of_another_tool_is_adopted_as_a_copy(host, cache):
    theirs = host.path("/root/.cache/huggingface/hub")
    manifest = model(theirs, CONTENTS)
    found = state(host)
    assert found["elsewhere"] == "/root/.cache/huggingface/hub"
    assert found["adoptable"] == manifest.document()
    ask(host, "adopt", **REVISION, revision="main", other=found["elsewhere"])
    after = state(host)
    assert (after["missing"], after["links"]) == ([], [])
    flip(blob_of(HubCache(theirs), manifest, SHARD), 7)
    assert ask(host, "verify", **REVISION)["damaged"] == [], "what its owner does now is not ours"
    assert sum(one["freed"] for one in ask(host, "usage")["revisions"]) == manifest.size


def test_a_damaged_model_of_another_tool_is_not_adopted(host, cache):
    theirs = host.path("/root/.cache/huggingface/hub")
    manifest = model(theirs, CONTENTS)
    flip(blob_of(HubCache(theirs), manifest, SHARD), 7)
    with pytest.raises(ResourceError, match="its content is not what its hash says"):
        ask(host, "adopt", **REVISION, other="/root/.cache/huggingface/hub")
    left = [path.name for path in cache.folder(REPOSITORY).rglob("*") if path.is_file()]
    assert sorted(left) == sorted({f.blob for f in manifest.files if f.path != SHARD})
    assert state(host)["manifest"] is None
    assert HubCache(theirs).found(REPOSITORY, COMMIT) == manifest


def test_pins_are_by_revision_or_for_all(host, cache):
    model(cache.root, CONTENTS)
    assert ask(host, "pin", name=f"{REPOSITORY}@main", pinned=True) == {"changed": True}
    assert [one["pinned"] for one in ask(host, "usage")["revisions"]] == [True]
    assert ask(host, "prune", apply=True)["removed"] == []
    with pytest.raises(ResourceError, match="v9' of org/model is not on this node"):
        ask(host, "pin", name=f"{REPOSITORY}@v9", pinned=True)
    assert ask(host, "pin", name=f"{REPOSITORY}@main", pinned=False) == {"changed": True}
    assert len(ask(host, "prune")["removed"]) == 1
    assert state(host)["manifest"], "a preview removes nothing"
    assert ask(host, "prune", apply=True)["freed"] == 500_002
    assert not cache.folder(REPOSITORY).exists()


def test_what_served_last_is_pruned_last(host, cache):
    model(cache.root, CONTENTS)
    shutil.copytree(cache.folder(REPOSITORY), cache.folder("org/other"), symlinks=True)
    served = LaunchRecord("recipe", models=(f"{REPOSITORY}@{COMMIT}",), last=time.time() + 60)
    engine_caches.add_launch(host.root, served)
    order = [one["repository"] for one in ask(host, "usage")["revisions"]]
    assert order == ["org/other", REPOSITORY]
    assert [one["repository"] for one in ask(host, "prune", bytes=1)["removed"]] == ["org/other"]


@pytest.mark.parametrize(
    "request_", [{"what": "erase"}, {"what": "verify", "repository": "../x", "commit": COMMIT}]
)
def test_an_unknown_request_is_refused(host, request_):
    with pytest.raises(ResourceError):
        ask(host, **request_)
