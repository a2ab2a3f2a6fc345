"""The hub asked through a node, whose agent is a real process of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_cluster.agent.operations import Gathering
from spark_cluster.engine.hub_models import NodeDocuments
from spark_cluster.models.hub import HubError, HubLibrary
from spark_cluster.models.lookup import Hub, ModelStore, find
from spark_cluster.node.host import Host
from spark_cluster_lab.hub import Conduct, LabHub


class Node:
    """A session whose agent reads in this process; what it is asked for is kept.

    Attributes:
        replies: in place of the answers to addresses that begin so.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.replies: dict[str, dict[str, Any]] = {}
        self.exchanges = 0

    def request(self, op: str, requests: Any, timeout: float) -> dict[str, Any]:
        assert op == "gather"
        self.exchanges += 1
        self.asked += [one["url"] for one in requests.values()]
        real = {
            name: one
            for name, one in requests.items()
            if not any(one["url"].startswith(url) for url in self.replies)
        }
        answer = Gathering(Host(), timeout).all({}, {}, {}, real)
        for name, one in requests.items():
            for url, reply in self.replies.items():
                if one["url"].startswith(url):
                    answer["requests"][name] = reply
        return answer


@pytest.fixture
def node() -> Node:
    return Node()


def through(node: Node, hub: LabHub, tmp_path: Path) -> Hub:
    documents = NodeDocuments(node, hub.url)  # type: ignore[arg-type]
    return Hub(documents, ModelStore(tmp_path / "kept"))


def test_the_same_model_as_from_here(hub: LabHub, node: Node, tmp_path: Path) -> None:
    found = through(node, hub, tmp_path).checkpoint("org/small")
    here = Hub(HubLibrary(hub.url), ModelStore(tmp_path / "other")).checkpoint("org/small")
    assert found == here
    assert found.tensors
    assert node.exchanges == 5  # the listing, the config, the index, all headers (redirected)


def test_where_the_laptop_has_no_way_the_node_is_asked(
    hub: LabHub, node: Node, tmp_path: Path
) -> None:
    models = Hub(HubLibrary("http://127.0.0.1:1"), ModelStore(tmp_path / "kept"))
    documents = NodeDocuments(node, hub.url)  # type: ignore[arg-type]
    assert not models.ask_through(documents)  # nobody was asked yet
    with pytest.raises(HubError, match="cannot be reached"):
        find("org/small", hub=models)
    assert models.ask_through(documents)
    assert find("org/small", hub=models).stored is not None
    assert models.problem("org/small") == ""


def test_offline_no_node_is_asked(hub: LabHub, node: Node, tmp_path: Path) -> None:
    models = Hub(None, ModelStore(tmp_path / "kept"))
    assert models.checkpoint("org/small") is None
    assert not models.ask_through(NodeDocuments(node, hub.url))  # type: ignore[arg-type]
    assert node.asked == []


@pytest.mark.parametrize(
    ("conduct", "kind"),
    [(Conduct(gated=True), "gated"), (Conduct(garbage=b"\xff\xfe"), "server")],
)
def test_a_refusal_is_of_the_same_kind_as_from_here(
    conduct: Conduct, kind: str, hub: LabHub, node: Node, tmp_path: Path
) -> None:
    hub.conduct["org/small"] = conduct
    models = through(node, hub, tmp_path)
    with pytest.raises(HubError) as caught:
        models.checkpoint("org/small")
    assert caught.value.kind == kind
    with pytest.raises(HubError, match="no model 'org/none'"):
        models.checkpoint("org/none")


def moved(target: str) -> dict[str, Any]:
    return {"status": 302, "body": "", "headers": {"Location": target}}


@pytest.mark.parametrize(
    "target",
    ["http://169.254.169.254/", "https://hf.co.example.org/", "https://example-huggingface.co/",
     "file:///etc/passwd", "http://nowhere.invalid/"],
)  # fmt: skip
def test_it_is_not_sent_on_to_others(target: str, hub: LabHub, node: Node, tmp_path: Path) -> None:
    node.replies[f"{hub.url}/api"] = moved(target)
    with pytest.raises(HubError, match="sends on to"):
        through(node, hub, tmp_path).checkpoint("org/small")
    assert all(url.startswith(hub.url) for url in node.asked)


def test_the_hubs_own_stores_are_followed(hub: LabHub, node: Node, tmp_path: Path) -> None:
    store = "https://cas-bridge.xethub.hf.co/file"
    first = f"{hub.url}/org/small/resolve/{hub.commit('org/small')}/config.json"
    node.replies[first] = moved(store)
    node.replies[store] = {"status": 200, "body": "{}", "headers": {}}
    found = through(node, hub, tmp_path).checkpoint("org/small")
    assert found.config == {}
    assert store in node.asked


def test_a_circle_ends(hub: LabHub, node: Node, tmp_path: Path) -> None:
    node.replies[f"{hub.url}/api"] = moved(f"{hub.url}/api/again")
    with pytest.raises(HubError, match="status 302"):
        through(node, hub, tmp_path).checkpoint("org/small")
    assert node.exchanges == 4


def test_a_node_without_a_network(node: Node, tmp_path: Path) -> None:
    documents = NodeDocuments(node, "http://127.0.0.1:1")  # type: ignore[arg-type]
    with pytest.raises(HubError, match="from the node"):
        Hub(documents, ModelStore(tmp_path)).checkpoint("org/small")


def test_a_password_of_the_laptop_for_its_mirror_is_not_sent_to_the_node(
    hub: LabHub, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("://", "://me:p%40ss@"))
    documents = NodeDocuments(node)  # type: ignore[arg-type]
    assert documents.listing("org/small", "main").names
    assert node.asked == [f"{hub.url}/api/models/org/small/revision/main?blobs=true"]
