"""`models` on real agents over pipes, with real hub caches in the nodes' folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.transfer.state import hub_folder

COMMIT = "c" * 40
WEIGHTS = b"weights" * 1000


@pytest.fixture
def cache(project: Path, run) -> HubCache:
    """The hub cache of spark1, with one model, which no recipe needs."""
    from factories import put

    put(project / "inventory.yaml", INVENTORY)
    root = project / "spark1" / hub_folder().lstrip("/")
    return with_model(HubCache(root))


INVENTORY = "nodes:\n  spark1: {host: 192.0.2.1}\n"


def with_model(cache: HubCache) -> HubCache:
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    files = [
        {"path": "model.safetensors", "size": 7000, "blob": digest, "algorithm": "sha256"},
    ]
    document = {"repository": "org/model", "commit": COMMIT, "files": files}
    blob = cache.blob("org/model", digest)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(WEIGHTS)
    cache.publish(Manifest.from_document(document), "main")
    return cache


def test_models_are_listed_with_their_size(run, cache):
    status, out, _ = run("models", "list", "--json")
    assert status == 0
    [node] = json.loads(out)["nodes"]
    [model] = node["models"]
    assert (model["repository"], model["commit"], model["size"]) == ("org/model", COMMIT, 7000)
    assert (model["problem"], model["refs"], model["pinned"]) == ("", ["main"], False)
    status, out, _ = run("models", "list")
    assert status == 0
    assert "org/model@cccccccc" in out
    sizes = json.loads(run("models", "size", "--json")[1])["nodes"][0]
    assert (sizes["size"], sizes["prunable"]) == (7000, 7000)


def test_prune_is_a_preview_and_acts_with_apply(run, cache):
    status, out, _ = run("models", "prune")
    assert status == 0
    assert "would go" in out
    assert cache.commits("org/model") == [COMMIT]
    status, out, _ = run("models", "prune", "--apply", "--json")
    assert status == 0
    assert json.loads(out)["nodes"][0]["freed"] == 7000
    assert not cache.folder("org/model").exists()


def test_a_pinned_model_stays(run, cache):
    assert "is pinned now" in run("models", "pin", "org/model@main")[1]
    assert "was pinned already" in run("models", "pin", "org/model@main")[1]
    found = json.loads(run("models", "prune", "--apply", "--json")[1])["nodes"][0]
    assert found["removed"] == []
    assert found["kept"] == [{"repository": "org/model", "commit": COMMIT, "reason": "pinned"}]
    assert "is unpinned now" in run("models", "unpin", "org/model@main")[1]
    assert json.loads(run("models", "prune", "--json")[1])["nodes"][0]["freed"] == 7000


def test_what_an_own_recipe_needs_stays(run, cache, project):
    recipe = "name: mine\nmodel: {name: org/model, served_name: m}\nimage: {ref: a/b:c}\n"
    (project / "recipes").mkdir()
    (project / "recipes" / "mine.yaml").write_text(recipe)
    found = json.loads(run("models", "prune", "--apply", "--json")[1])["nodes"][0]
    assert [one["reason"] for one in found["kept"]] == ["a recipe needs it"]
    assert cache.commits("org/model") == [COMMIT]


def test_nothing_is_pruned_while_an_own_recipe_cannot_be_read(run, cache, project):
    (project / "recipes").mkdir()
    (project / "recipes" / "mine.yaml").write_text("model: {")
    status, _, err = run("models", "prune", "--apply")
    assert status == 2
    assert "mine.yaml" in err
    assert cache.commits("org/model") == [COMMIT]


def test_verify_names_a_damaged_file(run, cache):
    assert "sound" in run("models", "verify")[1]
    cache.blob("org/model", hashlib.sha256(WEIGHTS).hexdigest()).write_bytes(b"Weights" * 1000)
    status, out, err = run("models", "verify", "org/model")
    assert status == 5
    assert "damaged  model.safetensors" in out
    assert "spark-cluster models repair org/model@" in err
    status, out, _ = run("models", "verify", "--json")
    assert status == 5
    assert json.loads(out)["models"][0]["damaged"] == ["model.safetensors"]


def test_a_model_that_is_nowhere_is_said(run, cache):
    status, _, err = run("models", "verify", "org/other")
    assert status == 1
    assert "org/other is on no node" in err
