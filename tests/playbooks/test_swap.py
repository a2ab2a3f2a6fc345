"""`swap`: the order of its steps, what is refused before the stop, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from factories import SHIPPED, make_node, make_recipe
from serve_plans import inventory_of

from spark_cluster.config import overrides
from spark_cluster.errors import (
    DoesNotFit,
    Failed,
    Refused,
    SparkClusterError,
    Unreachable,
    UsageError,
    VerificationFailed,
)
from spark_cluster.node.containers import OVERRIDES, ContainerState
from spark_cluster.serving import admission, logs, readiness
from spark_cluster.serving.former import Former, former_of
from spark_cluster.transfer.stored import Stored

NEW = "gemma4-31b-nvfp4"
OLD = "gemma4-31b-fp8"


def runs(name: str = OLD, tp: int = 2, text: str = "") -> ContainerState:
    labels = {"spark-cluster.recipe": name, "spark-cluster.tp": str(tp)}
    return ContainerState("running", labels={**labels, **({OVERRIDES: text} if text else {})})


class Play:
    """A play whose `up` and `down` are functions of the test; keeps what was done."""

    check = False

    def __init__(self, up: Callable[..., Any], down: Callable[..., Any]) -> None:
        self.nodes = [make_node("spark1"), make_node("spark2", head=False, address="10.0.0.2")]
        self.inventory = inventory_of(*self.nodes)
        self.description: str | None = None
        self.done: list[str] = []
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []
        self.playbooks = {"up": up, "down": down}
        self.project = SimpleNamespace(load_playbook=self._load)

    def _load(self, name: str) -> Any:
        def function(_play: Play, **given: Any) -> Any:
            recipe = given.get("recipe")
            self.done.append(f"{name} {recipe.name}" if recipe else name)
            return self.playbooks[name](**given)

        return SimpleNamespace(function=function)

    @contextmanager
    def stage(self, _name: str) -> Iterator[None]:
        yield

    def apply(self, _nodes: Any, *what: str) -> None:
        self.done += what

    def note(self, text: str, **_options: Any) -> None:
        self.notes.append(text)

    @property
    def head(self) -> Any:
        return self.nodes[0]

    def session(self, _node: Any) -> Any:
        found = {"files": {"endpoint": self.description}}
        return SimpleNamespace(request=lambda _operation, files: found)

    def readmit(self) -> None:
        self.done.append("readmit")


def fine(**_given: Any) -> Any:
    return SimpleNamespace(now=[], to_dict=dict)


def failing(*errors: SparkClusterError) -> Callable[..., Any]:
    """A playbook that raises these, call by call, and then works."""
    left = list(errors)

    def run(**given: Any) -> Any:
        if left:
            raise left.pop(0)
        return fine(**given)

    return run


@pytest.fixture
def swap(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`swap(play, running, **more)`: run the playbook from OLD to NEW."""

    def run(
        play: Play,
        running: ContainerState,
        refusal: SparkClusterError | None = None,
        log: str = "",
        **more: Any,
    ) -> Any:
        def must_work(*_: Any, force: bool) -> None:
            if refusal is not None:
                raise refusal

        function = SHIPPED.load_playbook("swap").function
        monkeypatch.setattr(readiness, "container_state", lambda *_: running)
        monkeypatch.setattr(
            logs, "read", lambda _session, name, lines: log if "ray" in name else ""
        )
        monkeypatch.setattr(admission, "must_work", must_work)
        for name, stand_in in (
            ("stored", lambda *_: Stored("/hub", (), {})),
            ("fetch", lambda p, *_: p.done.append("fetch")),
        ):
            monkeypatch.setitem(function.__globals__, name, stand_in)
        given = {"load": lambda former: make_recipe(former.recipe), **more}
        return function(play, recipe=make_recipe(NEW), tp=2, **given)

    return run


def test_what_can_be_fetched_is_fetched_before_the_stop(swap):
    play = Play(fine, fine)
    swapped = swap(play, runs())
    assert play.done == ["containers", "caches", "fetch", "down", f"up {NEW}"]
    assert swapped.to_dict()["former"] == {"recipe": OLD, "tp": 2, "overrides": ""}
    assert any(f"spark-cluster up --recipe {OLD} --tp 2" in note for note in play.notes)


def test_the_memory_of_others_may_stay_and_models_are_unloaded(swap):
    given: dict[str, Any] = {}
    play = Play(fine, lambda **more: given.update(more) or fine())
    swap(play, runs(), unload=("ollama",))
    assert given == {"unload": ("ollama",), "keep_others": True}


@pytest.mark.parametrize(
    ("running", "note"),
    [(ContainerState("absent"), "nothing serves"), (runs(NEW), "serves already")],
)
def test_with_nothing_to_stop_it_is_up(swap, running, note):
    play = Play(fine, fine)
    assert swap(play, running).former is None
    assert play.done == [f"up {NEW}"]
    assert note in play.notes[0]


def test_what_does_not_fit_stops_nothing(swap):
    play = Play(fine, fine)
    with pytest.raises(DoesNotFit, match="too large"):
        swap(play, runs(), refusal=DoesNotFit("too large"))
    assert play.done == []


def test_an_old_recipe_that_is_gone_stops_nothing(swap):
    def gone(_former: Former) -> Any:
        raise UsageError(f"there is no recipe {OLD}")

    play = Play(fine, fine)
    with pytest.raises(Refused, match="could not be started again: there is no recipe") as caught:
        swap(play, runs(), load=gone)
    assert "--no-restore" in caught.value.hint
    assert play.done == []
    assert swap(play, runs(), load=gone, restore=False).former.recipe == OLD


def test_options_that_cannot_be_read_back_stop_nothing(swap):
    play = Play(fine, fine)
    with pytest.raises(Refused, match="cannot be read back"):
        swap(play, runs(text="-o max-num-seqs=2"))
    assert play.done == []


def test_the_old_one_is_started_again(swap):
    error = VerificationFailed("the model says nonsense", where="spark1", hint="look at it")
    play = Play(failing(error), fine)
    with pytest.raises(VerificationFailed) as caught:
        swap(play, runs())
    assert play.done[3:] == ["down", f"up {NEW}", "readmit", "down", f"up {OLD}"]
    assert caught.value.exit_code == 5
    assert caught.value.message == (
        f"the model says nonsense; {OLD} (tp 2) was started again, is verified, and serves"
    )
    assert (caught.value.where, caught.value.hint) == ("spark1", "look at it")


def test_the_log_of_the_failed_one_is_kept(swap, tmp_path, monkeypatch):
    """`down` removes the container, and its log with it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    play = Play(failing(VerificationFailed("no", hint="its log stays")), fine)
    with pytest.raises(VerificationFailed) as caught:
        swap(play, runs(), log="RuntimeError: out of memory")
    (path,) = (tmp_path / "spark-cluster/failed").glob("*.log")
    assert caught.value.hint == f"the log of the failed server: {path}"
    text = "".join(
        f"==> {name} spark-ray\nRuntimeError: out of memory\n" for name in ("spark1", "spark2")
    )
    assert path.read_text() == text
    assert path.stat().st_mode & 0o777 == 0o600


def test_both_failures_are_stated(swap):
    play = Play(failing(Failed("no image"), Failed("no memory", hint="free some")), fine)
    with pytest.raises(Failed) as caught:
        swap(play, runs())
    assert "no image" in caught.value.message
    assert f"{OLD} (tp 2) could not be started again either: no memory" in caught.value.message
    assert "Nothing serves" in caught.value.message
    assert f"spark-cluster up --recipe {OLD} --tp 2" in caught.value.hint


def test_memory_that_is_not_returned_ends_in_the_old_one(swap):
    held = VerificationFailed("memory is still held: VLLM::Worker (pid 7, 900 MiB) on spark1")
    play = Play(fine, failing(held))
    with pytest.raises(VerificationFailed, match=r"pid 7, 900 MiB\) on spark1; .*serves"):
        swap(play, runs())
    assert play.done[3:] == ["down", "readmit", "down", f"up {OLD}"]


def test_a_node_that_is_away_is_not_waited_for(swap):
    play = Play(failing(Unreachable("connection lost", where="spark2")), fine)
    with pytest.raises(Unreachable, match="cannot be started again while the node is away"):
        swap(play, runs())
    assert play.done[-1] == f"up {NEW}"


def test_without_restore_the_failure_is_all(swap):
    play = Play(failing(Failed("no image")), fine)
    with pytest.raises(Failed, match=r"^no image$"):
        swap(play, runs(), restore=False)
    assert play.done[-1] == f"up {NEW}"


def test_the_labels_give_the_command_back():
    given = {"compilation-config": '{"level": 3}', "max-num-seqs": 2, "no-enable-x": None}
    former = former_of(runs(text=overrides.text(given)))
    assert former is not None
    assert former.changes == (
        'compilation-config={"level": 3}',
        "max-num-seqs=2",
        "no-enable-x=",
    )
    assert former.command == (
        f"spark-cluster up --recipe {OLD} --tp 2 -o 'compilation-config={{\"level\": 3}}' "
        "-o max-num-seqs=2 -o no-enable-x="
    )
    assert former_of(ContainerState("running", labels={"spark-cluster.tp": "x"})) is None


def test_several_models_are_not_swapped(swap: Callable[..., Any]) -> None:
    play = Play(fine, fine)
    model = {"node": "spark1", "address": "127.0.0.1", "port": 1, "program": "x", "kind": "chat"}
    models = [{**model, "names": [name]} for name in ("paris", "words")]
    play.description = json.dumps({"models": models})
    with pytest.raises(Refused, match=r"the endpoint has 2 models \(paris, words\)"):
        swap(play, runs())
    assert play.done == []
