"""Which node a model or engine caches are copied from, and to which ones."""

from __future__ import annotations

import os

import pytest
from cases import cases
from hostile.agent import Played, said
from piped_cluster import Make, PipedCluster, PipedNode
from stored_models import COMMIT, model

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.engine import cache_parts, model_upkeep
from spark_cluster.engine.hub_models import Nodes, Wanted, all_models_on, hub_folder
from spark_cluster.engine.node_copies import Copied
from spark_cluster.errors import Failed, Refused, UsageError
from spark_cluster.node import paths
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.runner.events import Options
from spark_cluster.runner.session import Session

WANTED = Wanted("org/model")
UNVERIFIED = "org/model@cccccccccccc is not verified against the hub"


def cache_of(node: PipedNode) -> HubCache:
    ours = node.root / paths.MODELS.lstrip("/")
    return HubCache(node.root / hub_folder(CACHE_ROOT).lstrip("/"), ours)


@pytest.fixture
def linked(linked: PipedCluster) -> PipedCluster:
    """The nodes, of which only spark2 has the model whole; no hub is reached from them."""
    there = cache_of(linked.nodes["spark2"])
    model(there.root, WANTED.repository, there.ours)
    for node in linked.nodes.values():
        cache_of(node).root.mkdir(parents=True, exist_ok=True)
    return linked


def ways(done: list[Copied]) -> list[list[str]]:
    return [[one.sender, one.node] for one in done]


def test_by_default_who_has_it_sends_to_all_others(linked: PipedCluster) -> None:
    done = model_upkeep.copy_model(linked.play, WANTED.repository)
    assert ways(done) == [["spark2", "spark1"], ["spark1", "spark3"]], "on, in a chain"
    assert all(one.fabric for one in done)
    for node in linked.nodes.values():
        assert cache_of(node).commit_of(WANTED.repository, "main") == COMMIT
    (note,) = linked.notes
    assert note.startswith(f"spark2: {UNVERIFIED}"), "what it has is compared before"


def test_targets_are_those_that_are_named_once(linked: PipedCluster) -> None:
    done = model_upkeep.copy_model(linked.play, WANTED.repository, targets=("spark3", "spark3"))
    assert ways(done) == [["spark2", "spark3"]]
    assert cache_of(linked.nodes["spark1"]).commit_of(WANTED.repository, "main") is None


def test_a_source_that_does_not_have_it_says_what_it_lacks(linked: PipedCluster) -> None:
    with pytest.raises(Refused, match=r"no node has org/model@main whole \(spark1: not") as error:
        model_upkeep.copy_model(linked.play, WANTED.repository, source="spark1")
    assert "models pull" in error.value.hint


OTHER = {"repository": "org/other", "commit": COMMIT}
SAID = {
    "another model": {"commit": COMMIT, "manifest": OTHER},
    "another commit": {"commit": "d" * 40, "manifest": {**OTHER, "repository": WANTED.repository}},
    "another model of another tool": {"commit": COMMIT, "manifest": None, "adoptable": OTHER},
}


@pytest.mark.parametrize("found", SAID.values(), ids=SAID)
def test_a_node_that_answers_of_another_model_is_not_believed(found) -> None:
    """Its files would be copied to the other nodes, in the place of what they have by that name."""
    files = [{"path": "a.bin", "size": 1, "blob": "a" * 64, "algorithm": "sha256"}]
    for manifest in filter(None, (found["manifest"], found.get("adoptable"))):
        manifest["files"] = files
    none = {"missing": [], "missing_bytes": 0, "links": [], "problem": "", "elsewhere": ""}
    done = {"event": "done", "req": 1, "models": [{**none, **found}], "free": 1}
    session = Session("spark1", Played(said(done)))
    with pytest.raises(Failed, match="asked for org/model@main, it answered of org/") as error:
        all_models_on(Nodes({"spark1": session}, {"spark1": "/hub"}), [WANTED])
    assert error.value.where == "spark1"


@pytest.mark.parametrize("model", [WANTED.repository, "/srv/model"])
def test_another_node_is_needed_that_is_there(linked: PipedCluster, model: str) -> None:
    with pytest.raises(UsageError, match="spark9 is not in this run"):
        model_upkeep.copy_model(linked.play, model, source="spark2", targets=("spark9",))
    with pytest.raises(UsageError, match="no other node"):
        model_upkeep.copy_model(linked.play.part(["spark2"]), model)


def test_in_check_mode_nothing_is_copied_nor_asked_of_the_hub(piped_cluster: Make) -> None:
    cluster = piped_cluster(options=Options(check=True))
    there = cache_of(cluster.head)
    model(there.root, WANTED.repository, there.ours)
    assert model_upkeep.copy_model(cluster.play, WANTED.repository) == []
    assert cluster.notes == []


def test_what_was_done_is_said_in_a_line() -> None:
    moved = Copied("spark2", "spark1", 8_000_000_000, 1_000_000_000, 4.0, True)
    assert str(moved) == (
        "spark2: 8.0 GB from spark1 over the fabric in 4.0 s, 2.0 GB/s; 1.0 GB were there"
    )
    assert "TB/s" in str(Copied("spark2", "spark1", 1 << 63, 0, 5e-324)), "as a node that lies says"
    for sender in ("", "spark1"):  # the second was asked, and had nothing more
        nothing = Copied("spark2", sender, kept=5_000_000)
        assert str(nothing) == "spark2: nothing to copy, 5.0 MB are there"


@pytest.mark.parametrize(("given", "sent"), cases(__file__, "folder_copies.json"))
def test_a_folder_goes_from_the_first_node_or_the_one_named(linked, given, sent):
    for node in linked.nodes.values():
        (node.root / "srv").mkdir()
    linked.nodes[sent[0][0]].put("/srv/model/config.json", "{}")
    done = model_upkeep.copy_model(linked.play, "/srv/model", **given)
    assert ways(done) == sent
    assert all(linked.nodes[name].text("/srv/model/config.json") == "{}" for _, name in sent)
    asked = [len(node.requests("copy")) for node in linked.nodes.values()]
    assert {one.moved for one in model_upkeep.copy_model(linked.play, "/srv/model", **given)} == {0}
    again = sum(len(node.requests("copy")) for node in linked.nodes.values()) - sum(asked)
    assert again == 1 + len(sent), "what is there is compared, and nothing sent"


# --- which engine caches are copied, and to which nodes ------------------------------------------


IMAGE = f"{CACHE_ROOT}/images/0123456789ab"
H100 = "NVIDIA H100 80GB HBM3, 9.0, 580.95.05, 40, 10.0, 2400, 1000, 80000"


TRITON, COMPILED = "triton/AB2C", "vllm/torch_compile_cache/0123456789"
FLASHINFER = "flashinfer/.cache/flashinfer/0.6.1/121a/cached_ops"


def cached(cluster: PipedCluster, *folders: str) -> None:
    """Have a file in these folders of the head's caches, of an old time."""
    for folder in folders:
        os.utime(cluster.head.put(f"{folder}/rank_0_0/kernel.cubin", "x"), (1e9, 1e9))


def test_caches_that_are_there_are_copied(linked: PipedCluster) -> None:
    kinds = (TRITON, COMPILED, FLASHINFER)
    shared = f"{CACHE_ROOT}/torchinductor/x"  # of before images had their own: nobody reads it
    cached(linked, *(f"{IMAGE}/{kind}" for kind in kinds), shared, f"{IMAGE}/huggingface/hub")
    done = cache_parts.copy_caches(linked.play, "spark1", ("spark2",))
    assert [one.to_dict()["kind"] for one in done] == ["triton", "compile", "flashinfer"]
    assert {(one.copied.sender, one.copied.node) for one in done} == {("spark1", "spark2")}
    place = linked.nodes["spark2"].root / IMAGE.lstrip("/")
    there = {kind: place / f"{kind}/rank_0_0/kernel.cubin" for kind in kinds}
    assert set(linked.nodes["spark2"].root.rglob("*.cubin")) == set(there.values())
    kept = [kind for kind, file in there.items() if file.stat().st_mtime == 1e9]
    assert kept == [FLASHINFER], "it is built again when the time of a file is another one"


def test_another_gpu_is_refused(linked: PipedCluster) -> None:
    linked.nodes["spark2"].gpu = H100
    cached(linked, f"{IMAGE}/{TRITON}")
    with pytest.raises(Refused, match="spark2 has NVIDIA H100 80GB HBM3, and spark1 has NVIDIA GB"):
        cache_parts.copy_caches(linked.play, "spark1")
    assert not list(linked.nodes["spark2"].root.rglob("*.cubin"))


def test_nothing_to_copy_is_refused(linked: PipedCluster) -> None:
    cached(linked, f"{IMAGE}/huggingface/hub")
    with pytest.raises(
        Refused, match=r"spark1 has no cache to copy below /\S+ \(triton, inductor, compile"
    ):
        cache_parts.copy_caches(linked.play, "spark1")
    with pytest.raises(Refused, match="no other node"):
        cache_parts.copy_caches(linked.play, "spark1", ("spark1",))
    with pytest.raises(UsageError, match="spark9"):
        cache_parts.copy_caches(linked.play, "spark9")
