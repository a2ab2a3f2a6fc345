"""`models` on real agents over pipes, with real hub caches in the nodes' folders."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from factories import ONE_NODE, TWO_NODES, put

from spark_cluster.engine import model_upkeep
from spark_cluster.engine.hub_models import hub_folder
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest

COMMIT = "c" * 40
WEIGHTS = b"weights" * 1000
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture
def cache(project: Path, agent, monkeypatch) -> HubCache:
    """The hub cache of spark1, with one model, which no recipe needs."""

    monkeypatch.setenv("COLUMNS", "200")
    put(project / "inventory.yaml", ONE_NODE)
    return with_model(HubCache(project / "spark1" / hub_folder().lstrip("/")))


def manifest(commit: str) -> Manifest:
    about = {"path": "model.safetensors", "size": 7000, "blob": DIGEST, "algorithm": "sha256"}
    return Manifest.from_document({"repository": "org/model", "commit": commit, "files": [about]})


def with_model(cache: HubCache, commit: str = COMMIT) -> HubCache:
    put(cache.blob("org/model", DIGEST), WEIGHTS)
    cache.publish(manifest(commit), "main")
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


def server(project: Path, source: str, inside: str) -> None:
    """Have spark1's Docker tell of a server that reads a folder of the node."""
    state = {
        "State": {"Status": "running"},
        "Config": {"Cmd": ["vllm", "serve", f"{inside}/words"], "Labels": {}},
        "Mounts": [{"Type": "bind", "Source": source, "Destination": inside}],
    }
    text = f"#!{sys.executable} -IS\nprint({json.dumps([state])!r})\n"
    put(project / "spark1/usr/local/bin/docker", text, 0o755)


def test_what_is_served_from_elsewhere_is_named(run, cache, project):
    assert "served" not in run("models", "list")[1]
    server(project, "/srv/models", "/models")
    out = run("models", "list")[1]
    assert "in 1 model in the hub's cache, " in out
    assert "served from /srv/models/words, which is not in the hub's cache" in out
    [node] = json.loads(run("models", "list", "--json")[1])["nodes"]
    assert node["served_outside"] == "/srv/models/words"
    server(project, hub_folder(), "/hub")
    assert "served from" not in run("models", "list")[1]


def pruned(run):
    return json.loads(run("models", "prune", "--apply", "--json")[1])["nodes"][0]


def test_prune_is_a_preview_and_acts_with_apply(run, cache):
    status, out, _ = run("models", "prune")
    assert (status, "would go" in out) == (0, True)
    assert cache.commits("org/model") == [COMMIT]
    assert pruned(run)["freed"] == 7000
    assert not cache.folder("org/model").exists()


@pytest.mark.parametrize("revision", ["main", COMMIT[:8], COMMIT])
def test_a_revision_is_pruned_by_its_branch_and_as_it_is_listed(run, cache, revision):
    status, out, _ = run("models", "prune", f"org/model@{revision}", "--apply")
    assert (status, "nothing to remove" in out) == (0, False)
    assert cache.commits("org/model") == []


def test_a_branch_is_pruned_as_each_node_has_it(run, cache, project):
    put(project / "inventory.yaml", TWO_NODES)
    other = with_model(HubCache(project / "spark2" / hub_folder().lstrip("/")), "d" * 40)
    other.publish(manifest(COMMIT), "old")
    status, out, _ = run("models", "prune", "org/model@main", "--apply", "--json")
    removed = [[one["commit"] for one in node["removed"]] for node in json.loads(out)["nodes"]]
    assert (status, removed) == (0, [[COMMIT], ["d" * 40]])
    assert other.commits("org/model") == [COMMIT], "there it is another branch"
    run("models", "prune", "org/model@old", "--apply")
    assert other.commits("org/model") == []


def test_a_pinned_model_stays(run, cache):
    assert "is pinned now" in run("models", "pin", "org/model@main")[1]
    assert "was pinned already" in run("models", "pin", "org/model@main")[1]
    found = pruned(run)
    assert found["kept"] == [{"repository": "org/model", "commit": COMMIT, "reason": "pinned"}]
    assert "is unpinned now" in run("models", "unpin", "org/model@main")[1]


@pytest.mark.parametrize("words", ["pin org/modle", "prune org/model org/modle --apply"])
def test_a_model_that_no_node_has_is_neither_pinned_nor_pruned(run, cache, words):
    status, _, err = run("models", *words.split())
    assert (status, "org/modle is on no node" in err) == (1, True)
    [node] = json.loads(run("models", "list", "--json")[1])["nodes"]
    assert [(one["repository"], one["pinned"]) for one in node["models"]] == [("org/model", False)]


def test_what_an_own_recipe_needs_stays_and_while_one_cannot_be_read_all_does(run, cache, project):
    recipe = "name: mine\nmodel: {name: org/model, served_name: m}\nimage: {ref: a/b:c}\n"
    put(project / "recipes/mine.yaml", recipe)
    assert [one["reason"] for one in pruned(run)["kept"]] == ["a recipe needs it"]
    put(project / "recipes/mine.yaml", "model: {")
    status, _, err = run("models", "prune", "--apply")
    assert (status, "mine.yaml" in err) == (2, True)
    assert cache.commits("org/model") == [COMMIT]


def test_verify_names_a_damaged_file(run, cache):
    assert "sound" in run("models", "verify")[1]
    cache.blob("org/model", DIGEST).write_bytes(b"Weights" * 1000)
    status, out, err = run("models", "verify", "org/model")
    assert status == 5
    assert "damaged  model.safetensors" in out
    assert "spark-cluster models repair org/model@" in err
    status, out, _ = run("models", "verify", "--json")
    assert (status, json.loads(out)["models"][0]["damaged"]) == (5, ["model.safetensors"])
    status, _, err = run("models", "verify", "org/other")
    assert (status, "org/other is on no node" in err) == (1, True)


def test_repair_has_only_the_damaged_file_again(run, cache, monkeypatch):
    blob = cache.blob("org/model", DIGEST)
    assert run("models", "verify")[0] == 0
    blob.write_bytes(b"Weights" * 1000)
    pulled = []

    def pull(_play, _node, wanted, **_where):
        assert not blob.exists(), "what is damaged is gone before"
        pulled.append((wanted.repository, wanted.revision))
        blob.write_bytes(WEIGHTS)

    monkeypatch.setattr(model_upkeep, "pull", pull)
    monkeypatch.setattr(model_upkeep, "copy", lambda *_, **__: pytest.fail("no other node has it"))
    status, out, err = run("models", "repair", "--json")
    assert status == 0, err
    [model] = json.loads(out)["models"]
    assert pulled == [("org/model", COMMIT)]
    assert (model["removed"], model["fetched"], model["source"]) == (1, 7000, "hub")
    assert run("models", "verify")[0] == 0
    assert "all models are sound" in run("models", "repair")[1]
    assert len(pulled) == 1


def test_repair_copies_from_the_node_that_is_sound(run, cache, project, monkeypatch):
    put(project / "inventory.yaml", TWO_NODES)
    with_model(HubCache(project / "spark2" / hub_folder().lstrip("/")))
    blob = cache.blob("org/model", DIGEST)
    blob.write_bytes(b"Weights" * 1000)
    copied = []

    def copy(_play, manifest, source, targets, **_where):
        copied.append((manifest.size, source.name, [node.name for node in targets]))
        blob.write_bytes(WEIGHTS)

    monkeypatch.setattr(model_upkeep, "pull", lambda *_, **__: pytest.fail("the hub was asked"))
    monkeypatch.setattr(model_upkeep, "copy", copy)
    status, out, err = run("models", "repair", "org/model", "--json")
    assert status == 0, err
    assert copied == [(7000, "spark2", ["spark1"])]
    assert [one["node"] for one in json.loads(out)["models"]] == ["spark1"]


def test_a_pull_looks_where_the_inventory_has_the_caches(run, cache, project):
    put(project / "inventory.yaml", f"{ONE_NODE}settings: {{caches: {{root: /data/engine}}}}\n")
    assert run("models", "pull", "org/model", "--offline")[0] == 4
    status, _, err = run("models", "pull", "org/model", "--offline", "--on", "spark9")
    assert status == 2
    assert "spark9 is not in this run" in err
    with_model(HubCache(project / "spark1" / hub_folder("/data/engine").lstrip("/")))
    status, out, _ = run("models", "pull", "org/model", "--offline", "--json")
    assert status == 0
    assert json.loads(out)["model"]["commit"] == COMMIT


def test_verify_says_that_there_is_nothing_to_verify(run, cache):
    assert run("models", "prune", "--apply")[0] == 0
    status, out, _ = run("models", "verify")
    assert (status, out) == (0, "there is no model in the nodes' hub caches\n")
