"""Which node a model is copied from, and to which ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_inventory, make_node

from spark_cluster.engine.copies import copy_model as module
from spark_cluster.engine.copies.copy import Copied
from spark_cluster.engine.copies.state import Have, Wanted
from spark_cluster.errors import Refused, UsageError
from spark_cluster.node.store.manifest import Manifest

NAMES = ("spark1", "spark2", "spark3")
FILES = [{"path": "a", "size": 1, "blob": "a" * 64, "algorithm": "sha256"}]
MANIFEST = Manifest.from_document({"repository": "org/model", "commit": "c" * 40, "files": FILES})
WANTED = Wanted("org/model")


def have(*, whole: bool, problem: str = "") -> Have:
    manifest, missing = (MANIFEST, ()) if whole else (MANIFEST, ("a",))
    size = 0 if whole else 3_000_000_000
    return Have("c" * 40, manifest, missing, size, 0, (), problem, "", None, 1 << 40)


@pytest.fixture
def play(tmp_path: Path) -> Any:
    head = {"spark1": ", roles: [head]"}
    hosts = "".join(
        f"  {name}: {{address: 10.0.0.{n}{head.get(name, '')}}}\n"
        for n, name in enumerate(NAMES, 1)
    )
    inventory = make_inventory(tmp_path, f"nodes:\n{hosts}")
    return SimpleNamespace(
        nodes=[make_node(name) for name in NAMES], inventory=inventory, check=False
    )


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], dict[str, Any]]]:
    """The copies that were asked for; only spark2 has the model whole."""
    calls: list[tuple[str, list[str], dict[str, Any]]] = []

    def states(_play: Any, nodes: Any, _wanted: Wanted, _hub: str) -> dict[str, Have]:
        return {node.name: have(whole=node.name == "spark2") for node in nodes}

    def copy(_play: Any, manifest: Manifest, source: Any, targets: Any, **how: Any) -> list[Any]:
        assert manifest == MANIFEST
        calls.append((source.name, [node.name for node in targets], how))
        return []

    monkeypatch.setattr(module, "models_on", states)

    def compare(_play: Any, _manifest: Manifest, source: Any, receiver: Any) -> None:
        calls.append((source.name, [receiver.name], {"compared": True}))

    monkeypatch.setattr(module, "copy", copy)
    monkeypatch.setattr(module, "must_be_the_hubs", compare)
    return calls


def test_by_default_who_has_it_sends_to_all_others(play, copied):
    module.copy_model(play, WANTED)
    (compared, (source, targets, how)) = copied
    assert compared == ("spark2", ["spark1"], {"compared": True})
    assert (source, targets) == ("spark2", ["spark1", "spark3"])
    assert how["hub"].endswith("/huggingface/hub")
    assert how["encrypt"] is True


def test_targets_are_those_that_are_named_once(play, copied):
    module.copy_model(play, WANTED, targets=("spark3", "spark3"))
    assert [one[1] for one in copied] == [["spark3"], ["spark3"]]


def test_a_source_that_does_not_have_it_says_what_it_lacks(play, copied):
    with pytest.raises(Refused, match=r"spark1: 3\.0 GB are missing") as error:
        module.copy_model(play, WANTED, source="spark1")
    assert "models pull" in error.value.hint
    assert not copied


def test_a_node_that_is_not_there_is_named(play, copied):
    with pytest.raises(UsageError, match="spark9 is not in this run"):
        module.copy_model(play, WANTED, targets=("spark9",))


def test_one_node_alone_has_nobody_to_copy_to(play, copied):
    play.nodes = [node for node in play.nodes if node.name == "spark2"]
    with pytest.raises(UsageError, match="no other node"):
        module.copy_model(play, WANTED)


def test_what_was_done_is_said_in_a_line():
    moved = Copied("spark2", "spark1", 8_000_000_000, 1_000_000_000, 4.0, True)
    assert str(moved) == (
        "spark2: 8.0 GB from spark1 over the fabric in 4.0 s, 2.0 GB/s; 1.0 GB were there"
    )
    assert str(Copied("spark2", kept=5_000_000)) == ("spark2: nothing to copy, 5.0 MB are there")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, ("spark1", ["spark2", "spark3"])),
        ({"source": "spark3", "targets": ("spark1", "spark1", "spark3")}, ("spark3", ["spark1"])),
    ],
)
def test_a_folder_goes_from_the_first_node_or_the_one_named(play, monkeypatch, given, sent):
    calls: list[Any] = []

    def copy_folder(_play: Any, path: str, source: Any, targets: Any, **_how: Any) -> list[Any]:
        calls.append((path, source.name, [node.name for node in targets]))
        return []

    monkeypatch.setattr(module, "copy_folder", copy_folder)
    module.copy_path(play, "/srv/model", **given)
    assert calls == [("/srv/model", *sent)]


def test_a_folder_has_to_go_to_another_node(play):
    with pytest.raises(UsageError, match="no other node"):
        module.copy_path(play, "/srv/model", source="spark2", targets=("spark2",))
    with pytest.raises(UsageError, match="spark9 is not in this run"):
        module.copy_path(play, "/srv/model", source="spark9")
