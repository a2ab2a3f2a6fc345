"""Which node a model is copied from, and to which ones."""

from __future__ import annotations

import pytest
from fake_cluster import FakeCluster, FakeNode, Make
from stored_models import COMMIT, model

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.engine import model_upkeep
from spark_cluster.engine.hub_models import Wanted, hub_folder
from spark_cluster.engine.node_copies import Copied
from spark_cluster.errors import Refused, UsageError
from spark_cluster.node import paths
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.runner.events import Options

WANTED = Wanted("org/model")
UNVERIFIED = "org/model@cccccccccccc is not verified against the hub"


def cache_of(node: FakeNode) -> HubCache:
    ours = node.root / paths.MODELS.lstrip("/")
    return HubCache(node.root / hub_folder(CACHE_ROOT).lstrip("/"), ours)


@pytest.fixture
def linked(linked: FakeCluster) -> FakeCluster:
    """The nodes, of which only spark2 has the model whole; no hub is reached from them."""
    there = cache_of(linked.nodes["spark2"])
    model(there.root, WANTED.repository, there.ours)
    for node in linked.nodes.values():
        cache_of(node).root.mkdir(parents=True, exist_ok=True)
    return linked


def ways(done: list[Copied]) -> list[tuple[str, str]]:
    return [(one.sender, one.node) for one in done]


def test_by_default_who_has_it_sends_to_all_others(linked: FakeCluster) -> None:
    done = model_upkeep.copy_model(linked.play, WANTED.repository)
    assert ways(done) == [("spark2", "spark1"), ("spark1", "spark3")], "on, in a chain"
    assert all(one.fabric for one in done)
    for node in linked.nodes.values():
        assert cache_of(node).commit_of(WANTED.repository, "main") == COMMIT
    (note,) = linked.notes
    assert note.startswith(f"spark2: {UNVERIFIED}"), "what it has is compared before"


def test_targets_are_those_that_are_named_once(linked: FakeCluster) -> None:
    done = model_upkeep.copy_model(linked.play, WANTED.repository, targets=("spark3", "spark3"))
    assert ways(done) == [("spark2", "spark3")]
    assert cache_of(linked.nodes["spark1"]).commit_of(WANTED.repository, "main") is None


def test_a_source_that_does_not_have_it_says_what_it_lacks(linked: FakeCluster) -> None:
    with pytest.raises(Refused, match=r"no node has org/model@main whole \(spark1: not") as error:
        model_upkeep.copy_model(linked.play, WANTED.repository, source="spark1")
    assert "models pull" in error.value.hint


@pytest.mark.parametrize("model", [WANTED.repository, "/srv/model"])
def test_another_node_is_needed_that_is_there(linked: FakeCluster, model: str) -> None:
    with pytest.raises(UsageError, match="spark9 is not in this run"):
        model_upkeep.copy_model(linked.play, model, source="spark2", targets=("spark9",))
    with pytest.raises(UsageError, match="no other node"):
        model_upkeep.copy_model(linked.play.part(["spark2"]), model)


def test_in_check_mode_nothing_is_copied_nor_asked_of_the_hub(fake_cluster: Make) -> None:
    cluster = fake_cluster(options=Options(check=True))
    there = cache_of(cluster.head)
    model(there.root, WANTED.repository, there.ours)
    assert model_upkeep.copy_model(cluster.play, WANTED.repository) == []
    assert cluster.notes == []


def test_what_was_done_is_said_in_a_line() -> None:
    moved = Copied("spark2", "spark1", 8_000_000_000, 1_000_000_000, 4.0, True)
    assert str(moved) == (
        "spark2: 8.0 GB from spark1 over the fabric in 4.0 s, 2.0 GB/s; 1.0 GB were there"
    )
    assert "GB/s" in str(Copied("spark2", "spark1", 1 << 63, 0, 5e-324)), "as a node that lies says"
    assert str(Copied("spark2", kept=5_000_000)) == ("spark2: nothing to copy, 5.0 MB are there")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, [("spark1", "spark2"), ("spark1", "spark3")]),
        (
            {"source": "spark3", "targets": ("spark1", "spark1", "spark3")},
            [("spark3", "spark1")],
        ),
    ],
)
def test_a_folder_goes_from_the_first_node_or_the_one_named(
    linked: FakeCluster, given: dict[str, str], sent: list[tuple[str, str]]
) -> None:
    for node in linked.nodes.values():
        (node.root / "srv").mkdir()
    linked.nodes[sent[0][0]].put("/srv/model/config.json", "{}")
    done = model_upkeep.copy_model(linked.play, "/srv/model", **given)
    assert ways(done) == sent
    assert all(linked.nodes[name].text("/srv/model/config.json") == "{}" for _, name in sent)
