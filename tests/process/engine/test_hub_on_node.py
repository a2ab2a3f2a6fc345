"""The hub asked through a node, and what a node has of a revision, compared with the hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from piped_cluster import Make, PipedCluster
from small_server import answering

from spark_cluster.engine import hub_models
from spark_cluster.engine.hub_models import NodeDocuments, must_be_the_hubs
from spark_cluster.errors import Failed
from spark_cluster.models.hub import HubError, HubLibrary
from spark_cluster.models.lookup import Hub, ModelStore, find
from spark_cluster.node.store.manifest import GIT_SHA1, SHA256, Manifest
from spark_cluster_lab.hub import Conduct, LabHub


class Asked:
    """A node, and what it was asked for since."""

    def __init__(self, cluster: PipedCluster) -> None:
        self.session, self._head = cluster.play.session(cluster.play.head), cluster.head
        self._before = len(cluster.head.requests("gather"))

    @property
    def exchanges(self) -> list[list[str]]:
        """The addresses of each exchange."""
        requests = self._head.requests("gather")[self._before :]
        return [[one["url"] for one in found["requests"].values()] for found in requests]

    @property
    def urls(self) -> list[str]:
        return [url for found in self.exchanges for url in found]


@pytest.fixture
def node(one_node: PipedCluster) -> Asked:
    return Asked(one_node)


def through(node: Asked, url: str, tmp_path: Path) -> Hub:
    return Hub(NodeDocuments(node.session, url), ModelStore(tmp_path / "kept"))


def test_the_same_model_as_from_here(hub, node, tmp_path):
    found = through(node, hub.url, tmp_path).checkpoint("org/small")
    here = Hub(HubLibrary(hub.url), ModelStore(tmp_path / "other")).checkpoint("org/small")
    assert found == here
    assert found.tensors
    assert len(node.exchanges) == 5  # the listing, the config, the index, all headers (redirected)


def test_where_the_laptop_has_no_way_the_node_is_asked(hub, node, tmp_path):
    models = Hub(HubLibrary("http://127.0.0.1:1"), ModelStore(tmp_path / "kept"))
    documents = NodeDocuments(node.session, hub.url)
    assert not models.ask_through(documents)  # nobody was asked yet
    with pytest.raises(HubError, match="cannot be reached"):
        find("org/small", hub=models)
    assert models.ask_through(documents)
    assert find("org/small", hub=models).stored is not None
    assert models.problem("org/small") == ""


def test_offline_no_node_is_asked(hub, node, tmp_path):
    models = Hub(None, ModelStore(tmp_path / "kept"))
    assert models.checkpoint("org/small") is None
    assert not models.ask_through(NodeDocuments(node.session, hub.url))
    assert node.urls == []


@pytest.mark.parametrize(
    ("conduct", "kind"), [(Conduct(gated=True), "gated"), (Conduct(garbage=b"\xff\xfe"), "server")]
)
def test_a_refusal_is_of_the_same_kind_as_from_here(conduct, kind, hub, node, tmp_path):
    hub.conduct["org/small"] = conduct
    models = through(node, hub.url, tmp_path)
    with pytest.raises(HubError) as caught:
        models.checkpoint("org/small")
    assert caught.value.kind == kind
    with pytest.raises(HubError, match="no model 'org/none'"):
        models.checkpoint("org/none")


def sent_on(node: Asked, target: str, tmp_path: Path) -> str:
    """Return the error about a hub that sends on to there."""
    answer = 302, {"Location": target}, ""
    with answering(lambda _: answer) as port, pytest.raises(HubError) as caught:
        through(node, f"http://127.0.0.1:{port}", tmp_path).checkpoint("org/small")
    return str(caught.value)


@pytest.mark.parametrize(
    "target",
    ["http://169.254.169.254/", "https://hf.co.example.org/", "https://example-huggingface.co/",
     "file:///etc/passwd", "http://nowhere.invalid/", "https://[::1"],
)  # fmt: skip
def test_it_is_not_sent_on_to_others(target, node, tmp_path):
    assert "sends on to" in sent_on(node, target, tmp_path)
    assert len(node.urls) == 1


def test_the_hubs_own_stores_are_followed(node, tmp_path, monkeypatch):
    """Here one that is not reached."""
    monkeypatch.setattr(hub_models, "STORES", (".localhost",))
    store = "https://cas-bridge.localhost:1/file"
    assert "from the node" in sent_on(node, store, tmp_path)
    assert node.urls[1:] == [store]


def test_a_circle_ends(node, tmp_path):
    assert "status 302" in sent_on(node, "/again", tmp_path)
    assert len(node.exchanges) == 4


def test_a_node_without_a_network(node, tmp_path):
    with pytest.raises(HubError, match="from the node"):
        through(node, "http://127.0.0.1:1", tmp_path).checkpoint("org/small")


def test_a_password_of_the_laptop_for_its_mirror_is_not_sent_to_the_node(hub, node, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("://", "://me:p%40ss@"))
    assert NodeDocuments(node.session).listing("org/small", "main").names
    assert node.urls == [f"{hub.url}/api/models/org/small/revision/main?blobs=true"]


# --- what a node says of a revision, compared with a hub on this machine by the real client ------


Compare = Callable[..., list[str]]


@pytest.fixture
def compare(piped_cluster: Make) -> Compare:
    """`compare(endpoint, manifest)`: what is warned of when spark2 is to get it from spark1."""

    def compare(endpoint: str, manifest: Manifest, *, offline: bool = False) -> list[str]:
        more = f"settings: {{models: {{endpoint: {endpoint}}}}}\n"
        cluster = piped_cluster("spark1", "spark2", more=more)
        holder, receiver = cluster.play.nodes
        cluster.play.options.offline = offline
        must_be_the_hubs(cluster.play, manifest, holder, receiver)
        return cluster.notes

    return compare


def held(hub: LabHub, change: Callable[[dict[str, Any]], object] = lambda _file: None) -> Manifest:
    """What an honest node has of the model; `change` changes each file of it."""
    listing = HubLibrary(hub.url).listing("org/small", "main")
    files = [
        {
            "path": name,
            "size": (hub.root / "org/small" / name).stat().st_size,
            "blob": listing.blobs[name],
            "algorithm": SHA256 if len(listing.blobs[name]) == 64 else GIT_SHA1,
        }
        for name in listing.names
    ]
    for file in files:
        change(file)
    return Manifest.from_document(
        {"repository": "org/small", "commit": listing.commit, "files": files}
    )


def test_what_the_hub_has_is_taken_without_a_word(hub, compare):
    assert compare(hub.url, held(hub)) == []


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_another_content_is_refused_with_its_file_and_node(hub, compare, name):
    """The content fits its hash; that it is not the commit's, only the hub knows."""

    def change(file: dict[str, Any]) -> None:
        if file["path"] == name:
            file["blob"] = "e" * len(file["blob"])

    with pytest.raises(Failed, match=rf"is not what the hub has: {name} has another content") as e:
        compare(hub.url, held(hub, change))
    assert e.value.where == "spark1"
    assert "models prune org/small" in e.value.hint


def test_a_file_that_the_revision_does_not_have_is_refused(hub, compare):
    """Such as code that `--trust-remote-code` would run."""

    def change(file: dict[str, Any]) -> None:
        if file["path"] == "config.json":
            file["path"] = "modeling_evil.py"

    with pytest.raises(Failed, match=r"modeling_evil\.py is not in that revision"):
        compare(hub.url, held(hub, change))


def test_where_the_hub_is_not_reached_it_is_said(hub, compare):
    warned = compare("http://127.0.0.1:9", held(hub))
    assert "is not verified against the hub" in warned[0]


def test_offline_it_is_not_asked(hub, compare):
    manifest, asked = held(hub), len(hub.requests)
    assert "(--offline)" in compare(hub.url, manifest, offline=True)[0]
    assert len(hub.requests) == asked
