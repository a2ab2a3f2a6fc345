"""What a node says of a revision, compared with a hub on this machine by the real client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_cluster import Make

from spark_cluster.engine.hub_models import must_be_the_hubs
from spark_cluster.errors import Failed
from spark_cluster.models.hub import HubLibrary
from spark_cluster.node.store.manifest import GIT_SHA1, SHA256, Manifest
from spark_cluster_lab.hub import LabHub

Compare = Callable[..., list[str]]


@pytest.fixture
def compare(fake_cluster: Make) -> Compare:
    """`compare(endpoint, manifest)`: what is warned of when spark2 is to get it from spark1."""

    def compare(endpoint: str, manifest: Manifest, *, offline: bool = False) -> list[str]:
        more = f"settings: {{models: {{endpoint: {endpoint}}}}}\n"
        cluster = fake_cluster("spark1", "spark2", more=more)
        holder, receiver = cluster.play.nodes
        must_be_the_hubs(cluster.play, manifest, holder, receiver, offline=offline)
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


def test_what_the_hub_has_is_taken_without_a_word(hub: LabHub, compare: Compare) -> None:
    assert compare(hub.url, held(hub)) == []


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_another_content_is_refused_with_its_file_and_node(
    hub: LabHub, compare: Compare, name: str
) -> None:
    """The content fits its hash; that it is not the commit's, only the hub knows."""

    def change(file: dict[str, Any]) -> None:
        if file["path"] == name:
            file["blob"] = "e" * len(file["blob"])

    with pytest.raises(Failed, match=rf"is not what the hub has: {name} has another content") as e:
        compare(hub.url, held(hub, change))
    assert e.value.where == "spark1"
    assert "models prune org/small" in e.value.hint


def test_a_file_that_the_revision_does_not_have_is_refused(hub: LabHub, compare: Compare) -> None:
    """Such as code that `--trust-remote-code` would run."""

    def change(file: dict[str, Any]) -> None:
        if file["path"] == "config.json":
            file["path"] = "modeling_evil.py"

    with pytest.raises(Failed, match=r"modeling_evil\.py is not in that revision"):
        compare(hub.url, held(hub, change))


def test_where_the_hub_is_not_reached_it_is_said(hub: LabHub, compare: Compare) -> None:
    warned = compare("http://127.0.0.1:9", held(hub))
    assert "is not verified against the hub" in warned[0]


def test_offline_it_is_not_asked(hub: LabHub, compare: Compare) -> None:
    manifest, asked = held(hub), len(hub.requests)
    assert "(--offline)" in compare(hub.url, manifest, offline=True)[0]
    assert len(hub.requests) == asked
