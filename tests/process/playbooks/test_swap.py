"""`swap`: the order of its steps, what is refused before the stop, and the way back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import each_case
from factories import make_recipe
from piped_cluster import Make, PipedCluster
from ray_server import RayServer

from spark_cluster.config.launch import options_text, value_text
from spark_cluster.engine.launches import PreviousServer, previous_server_of
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import DESCRIPTION
from spark_cluster.errors import (
    DoesNotFit,
    Refused,
    SparkClusterError,
    UsageError,
    VerificationFailed,
)
from spark_cluster.node.containers import OVERRIDES, ContainerState

NEW = "gemma4-31b-nvfp4"
OLD = "gemma4-31b-fp8"
FETCHED = ("containers", "caches", "models")

PLAYBOOK = """\
from pathlib import Path
from types import SimpleNamespace
from spark_cluster.errors import Failed, Unreachable, VerificationFailed
from spark_cluster.resources import File

CALLS = Path(__file__).with_suffix(".calls")
ERRORS = [{errors}]

def main(play, *, deployment=None, **given):
    calls = CALLS.read_text().splitlines() if CALLS.exists() else []
    CALLS.write_text("\\n".join([*calls, repr(given)]))
    nodes = "" if play.workers else " without spark2"
    what = f"{name} {{deployment.first.recipe.name}}" if deployment else "{name}"
    with play.stage(what + nodes):
        if len(calls) < len(ERRORS):
            play.apply(play.workers, [File("/no/such/folder/file", content="")], fail_fast=False)
            raise ERRORS[len(calls)]
    return SimpleNamespace(now=[])
"""
"""In place of `up` or `down`: its first calls lose spark2 and raise these errors, then it works."""


def labels(name: str = OLD, tp: int = 2, text: str = "") -> dict[str, str]:
    known = {"spark-cluster.recipe": name, "spark-cluster.tp": str(tp)}
    return {**known, **({OVERRIDES: text} if text else {})}


class Swap:
    """Two nodes where OLD runs, whose image is there and whose `up` and `down` end as told."""

    def __init__(self, cluster: PipedCluster) -> None:
        self.cluster = cluster
        cluster.marked(*FETCHED)
        for node in cluster.nodes.values():
            node.put("/srv/models/new/.complete", "")
            node.have_image(make_recipe(NEW).image.ref)
        self.runs()
        self.ends()

    def runs(self, **given: Any) -> None:
        """Have a server with these labels on the head."""
        self.cluster.head.run_container(SERVER, labels(**given))

    def ends(self, up: str = "", down: str = "") -> None:
        """Have the playbooks raise these errors, call by call; then they work."""
        for name, errors in (("up", up), ("down", down)):
            self.cluster.playbook(name, PLAYBOOK.format(name=name, errors=errors))

    def given(self, name: str) -> list[str]:
        """Return the arguments of each call of a playbook."""
        return (self.cluster.project / f"playbooks/{name}.calls").read_text().splitlines()

    @property
    def done(self) -> list[str]:
        return self.cluster.stages

    def __call__(self, **more: Any) -> Any:
        """Run the playbook from OLD to NEW, whose model has a folder of its own."""
        recipe = make_recipe(NEW, model={"path": "/srv/models/new"})
        given = {"load": lambda previous: make_recipe(previous.recipe), **more}
        return self.cluster.run("swap", recipe=recipe, tp=2, **given)


@pytest.fixture
def swap(piped_cluster: Make) -> Swap:
    return Swap(piped_cluster("spark1", "spark2"))


def test_what_can_be_fetched_is_fetched_before_the_stop(swap: Swap) -> None:
    swapped = swap()
    assert swap.done == ["prepare", "fetch", "down", f"up {NEW}"]
    assert tuple(swap.cluster.roles()) == tuple(swap.cluster.roles("spark2")) == FETCHED
    assert swapped.former == PreviousServer(OLD, 2)
    assert any(f"spark-cluster up --recipe {OLD} --tp 2" in note for note in swap.cluster.notes)


def test_after_an_interrupt_the_way_back_is_named(swap: Swap) -> None:
    swap()
    hint = swap.cluster.play.after_interrupt
    assert "same command again" in hint
    assert f"to go back: spark-cluster up --recipe {OLD}" in hint


def test_the_memory_of_others_may_stay_and_models_are_unloaded(swap: Swap) -> None:
    swap(unload=("ollama",))
    given = {"unload": ("ollama",), "keep_others": True, "end_jobs": False}
    assert swap.given("down") == [repr(given)]


def test_running_jobs_stop_nothing_without_the_flag(swap: Swap, ray: RayServer) -> None:
    ray.job("job-1", "RUNNING")
    swap.cluster.head.run_container(RAY, {"spark-cluster.dashboard": str(ray.port)})
    with pytest.raises(Refused, match="job job-1 is running on Ray") as caught:
        swap()
    assert "--end-jobs" in caught.value.hint
    assert swap.done == []
    swap(end_jobs=True)
    (given,) = swap.given("down")
    assert "'end_jobs': True" in given


def test_with_nothing_to_stop_it_is_up(piped_cluster: Make) -> None:
    swap = Swap(piped_cluster("spark1", "spark2"))
    swap.runs(name=NEW)
    assert swap().former is None
    swap.cluster.head.run_container(SERVER, status="exited")
    assert swap().former is None
    assert swap.done == [f"up {NEW}"] * 2
    serves, nothing = swap.cluster.notes
    assert "serves already" in serves
    assert "no server to stop" in nothing


def test_what_does_not_fit_stops_nothing(swap: Swap) -> None:
    swap.cluster.nodes["spark2"].available_gib = 10
    with pytest.raises(DoesNotFit, match="spark2: the weights take"):
        swap()
    assert swap.done == []


def test_an_old_server_that_could_not_be_started_again_is_not_stopped(swap: Swap) -> None:
    def gone(_previous: PreviousServer) -> Any:
        raise UsageError(f"there is no recipe {OLD}", hint="write it again")

    with pytest.raises(Refused, match="could not be started again: there is no recipe") as caught:
        swap(load=gone)
    assert caught.value.hint == "write it again; --no-restore swaps without a way back"
    swap.runs(text="-o max-num-seqs=2")
    with pytest.raises(Refused, match="cannot be read back"):
        swap()
    assert swap.done == []
    swap.runs()
    assert swap(load=gone, restore=False).former.recipe == OLD


@each_case(__file__, "failed_swaps.toml")
def test_what_becomes_of_one_that_fails(swap: Swap, case: dict[str, Any]) -> None:
    swap.ends(case.get("up", ""), case.get("down", ""))
    with pytest.raises(SparkClusterError) as caught:
        swap(restore=case.get("restore", True))
    assert type(caught.value).__name__ == case["raises"]
    assert (caught.value.message, caught.value.where) == (case["message"], case.get("where", ""))
    assert case.get("hint", "") in (caught.value.hint or "")
    assert swap.done[2:] == case["then"]


def test_the_log_of_the_failed_one_is_kept(swap, tmp_path, monkeypatch):
    """`down` removes the container, and its log with it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    swap.ends("VerificationFailed('no', hint='its log stays')")
    for node in swap.cluster.nodes.values():
        node.run_container(RAY)
        node.log(RAY, "RuntimeError: out of memory\n")
    with pytest.raises(VerificationFailed) as caught:
        swap()
    (path,) = (tmp_path / "spark-cluster/failed").glob("*.log")
    assert caught.value.hint == f"the log of the failed server: {path}"
    for name in swap.cluster.nodes:
        assert f"==> {name} spark-ray\nRuntimeError: out of memory\n" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_labels_give_the_command_back():
    given = {"compilation-config": '{"level": 3}', "max-num-seqs": 2, "no-enable-x": None}
    given |= {"env.NOTE": "two words", "image.ref": "other/vllm:2"}
    previous = previous_server_of(ContainerState(labels=labels(text=options_text(given))))
    assert previous.command == (
        f"spark-cluster up --recipe {OLD} --tp 2 -o 'compilation-config={{\"level\": 3}}' "
        "-e 'NOTE=two words' --image other/vllm:2 -o max-num-seqs=2 -o no-enable-x="
    )
    assert dict(change.split("=", 1) for change in previous.changes) == {
        flag: value_text(value) for flag, value in given.items()
    }
    assert previous_server_of(ContainerState("running", labels={"spark-cluster.tp": "x"})) is None


def test_several_models_are_not_swapped(swap: Swap) -> None:
    model = {"node": "spark1", "address": "127.0.0.1", "port": 1, "program": "x", "kind": "chat"}
    models = [{**model, "names": [name]} for name in ("paris", "words")]
    swap.cluster.head.put(DESCRIPTION, json.dumps({"models": models}))
    with pytest.raises(Refused, match=r"the endpoint has 2 models \(paris, words\)"):
        swap()
    assert swap.done == []
