"""HubModel: the real program and the real client library against a hub of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from web_server import WebServer

from spark_cluster.agent import operations
from spark_cluster.agent.messages import ACTIONS, check_reply
from spark_cluster.node.host import Host
from spark_cluster.node.own_program import answer_of
from spark_cluster.node.values import ResourceError, Secret
from spark_cluster.resources import HubModel
from spark_cluster.resources.base import to_wire
from spark_cluster_lab.hub import Conduct, LabHub, serve


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LabHub]:
    root = tmp_path / "hub" / "org" / "model"
    root.mkdir(parents=True)
    (root / "model.safetensors").write_bytes(b"weights" * 1000)
    (root / "config.json").write_bytes(b"{}")
    with serve(tmp_path / "hub") as served:
        yield served


def model(hub: LabHub, revision: str = "", token: str = "") -> HubModel:
    """The model, pulled with the Python of these tests, which has the library."""
    library = str(Path(sys.executable).parent.parent)
    return HubModel(
        "org/model",
        revision or hub.commit("org/model"),
        "/srv/hub",
        library,
        token=Secret(token) if token else None,
        endpoint=hub.url,
    )


def test_a_commit_is_pulled_once_and_known_without_the_hub(hub: LabHub, node: Any) -> None:
    wanted = model(hub)
    first = node.apply(wanted)
    assert (first.verdict, first.error) == ("change", " | ")
    asked = len(hub.requests)
    assert node.apply(wanted).verdict == "ok"
    assert len(hub.requests) == asked


def test_a_missing_file_is_fetched_again(hub: LabHub, node: Any) -> None:
    wanted = model(hub)
    node.apply(wanted)
    folder = node.root / "srv/hub/models--org--model"
    (folder / "snapshots" / hub.commit("org/model") / "config.json").resolve().unlink()
    node.must_converge(wanted)


def test_a_branch_is_asked_for_at_each_run(hub: LabHub, node: Any) -> None:
    for _ in range(2):
        assert node.apply(model(hub, "main")).verdict == "change"


def test_the_proxy_of_the_node_is_used(hub: LabHub, node: Any) -> None:
    with WebServer(lambda _asked: (404, "none")) as proxy:
        node.put("/etc/environment", f"http_proxy={proxy.url}\n")
        with pytest.raises(ResourceError):
            model(hub).preview(node.host())
        before = len(proxy.asked)
        assert node.apply(model(hub)).verdict != "change"
        assert len(proxy.asked) > before > 0
        assert all(asked.path.startswith(hub.url) for asked in proxy.asked)
        assert not hub.requests
        node.put("/etc/environment", f"http_proxy={proxy.url}\nno_proxy=127.0.0.1\n")
        assert node.apply(model(hub)).verdict == "change"


def test_a_refusal_says_what_to_do(hub: LabHub, node: Any) -> None:
    hub.conduct["org/model"] = Conduct(gated=True)
    result = node.apply(model(hub, token="hf_wrong"))
    assert result.verdict == "failed"
    assert "accept its conditions" in result.error
    assert "hf_wrong" not in str(result.event)


def test_a_preview_says_what_a_pull_would_fetch_and_fetches_nothing(hub: LabHub, node: Any) -> None:
    """As the agent answers it, by the program that pulls."""
    asked = {"what": "preview", "hub": "/srv/hub", "model": to_wire(model(hub, "main"))}
    found = operations.act(Host(root=node.root), {"op": "store", **asked})
    check_reply(found, "store", ACTIONS["store"]["preview"])
    assert found["manifest"]["commit"] == hub.commit("org/model")
    assert found["missing"] == 7002
    assert not list((node.root / "srv/hub").rglob("config.json"))
    node.apply(model(hub))
    assert operations.act(Host(root=node.root), {"op": "store", **asked})["missing"] == 0


def test_a_result_is_the_last_line() -> None:
    assert answer_of('progress\n{"commit": "a"}\n', "", "org/m") == {"commit": "a"}


@each_case(__file__, "hub_ends.json")
def test_an_end_without_a_result_is_told(case: dict[str, Any]) -> None:
    with pytest.raises(ResourceError, match=case["words"]):
        answer_of(case["stdout"], case["stderr"], "org/m")
