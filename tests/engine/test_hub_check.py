"""What a node says of a revision, compared with a hub on this machine by the real client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_inventory, make_node

from spark_cluster.engine.copies.pull import must_be_the_hubs
from spark_cluster.errors import Failed
from spark_cluster.lab.hub import LabHub
from spark_cluster.models.hub.documents import HubLibrary
from spark_cluster.node.store.manifest import GIT_SHA1, SHA256, Manifest

NODES = "nodes: {spark1: {address: 10.0.0.1, roles: [head]}, spark2: {address: 10.0.0.2}}\n"


class Run:
    """A run on two nodes, whose agents reach no hub; its warnings are kept."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        settings = f"settings: {{models: {{endpoint: {endpoint}}}}}\n"
        self.inventory = make_inventory(folder, NODES + settings)
        self.warned: list[str] = []
        self.nodes = [make_node("spark1"), make_node("spark2", head=False)]

    def note(self, text: str, **_how: Any) -> None:
        self.warned.append(text)

    def session(self, _node: Any) -> Any:
        return SimpleNamespace(request=lambda *_a, **_k: {"requests": {}})

    def compare(self, manifest: Manifest, *, offline: bool = False) -> list[str]:
        holder, receiver = self.nodes
        must_be_the_hubs(self, manifest, holder, receiver, offline=offline)  # type: ignore[arg-type]
        return self.warned


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


def test_what_the_hub_has_is_taken_without_a_word(hub: LabHub, tmp_path: Path) -> None:
    assert Run(tmp_path, hub.url).compare(held(hub)) == []


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_another_content_is_refused_with_its_file_and_node(
    hub: LabHub, tmp_path: Path, name: str
) -> None:
    """The content fits its hash; that it is not the commit's, only the hub knows."""

    def change(file: dict[str, Any]) -> None:
        if file["path"] == name:
            file["blob"] = "e" * len(file["blob"])

    with pytest.raises(Failed, match=rf"is not what the hub has: {name} has another content") as e:
        Run(tmp_path, hub.url).compare(held(hub, change))
    assert e.value.where == "spark1"
    assert "models prune org/small" in e.value.hint


def test_a_file_that_the_revision_does_not_have_is_refused(hub: LabHub, tmp_path: Path) -> None:
    """Such as code that `--trust-remote-code` would run."""

    def change(file: dict[str, Any]) -> None:
        if file["path"] == "config.json":
            file["path"] = "modeling_evil.py"

    with pytest.raises(Failed, match=r"modeling_evil\.py is not in that revision"):
        Run(tmp_path, hub.url).compare(held(hub, change))


def test_where_the_hub_is_not_reached_it_is_said(hub: LabHub, tmp_path: Path) -> None:
    manifest, run = held(hub), Run(tmp_path, "http://127.0.0.1:9")
    assert "is not verified against the hub" in run.compare(manifest)[0]


def test_offline_it_is_not_asked(hub: LabHub, tmp_path: Path) -> None:
    manifest, asked = held(hub), len(hub.requests)
    assert "(--offline)" in Run(tmp_path, hub.url).compare(manifest, offline=True)[0]
    assert len(hub.requests) == asked
