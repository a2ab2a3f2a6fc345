"""Several models: what is ended, the order in which they are started, which share each gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_node, make_recipe
from serve_plans import inventory_of

from spark_cluster.errors import DoesNotFit, Refused
from spark_cluster.inference.process import PAUSE, RAY, SERVER
from spark_cluster.loader.project import Project
from spark_cluster.node.containers import NEEDS, ContainerState
from spark_cluster.planning.room import SPARK, NodeMemory
from spark_cluster.planning.together import Placed
from spark_cluster.serving import model_admission, model_loading, model_servers
from spark_cluster.serving.model_admission import Admitted, Starting, admit
from spark_cluster.serving.models import ServedModel, resolve_models
from spark_cluster.serving.proxy import Replica
from spark_cluster.serving.replicas import Member

CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"
NODE = make_node("a")
MODELS = tuple(ServedModel(make_recipe(name), "a") for name in (CHAT, EMBEDDING))
ENTRIES = [{"recipe": name} for name in (CHAT, EMBEDDING)]
GROUP = resolve_models(MODELS, inventory_of(NODE, recipes=ENTRIES), [NODE])
GONE = ContainerState("absent")


class FakePlay:
    """A play that notes what it is given, and does nothing."""

    check = False
    options = SimpleNamespace(selection=SimpleNamespace(partial=False))
    bus = SimpleNamespace(emit=lambda _event: None)

    def __init__(self) -> None:
        self.nodes, self.head = [NODE], NODE
        self.project = Project()
        self.sessions: dict[str, Any] = {}
        self.changed = 0
        self.log: list[Any] = []
        self.notes: list[str] = []

    def role(self, name: str, **given: Any) -> tuple[str, dict[str, Any]]:
        return name, given

    def apply(self, _nodes: Any, *what: Any) -> Any:
        for one in what:
            if isinstance(one, tuple):
                made = one[1]["deployment"]
                self.log.append((made.instance, made.flags.get("gpu-memory-utilization")))
            else:
                self.log.append(sorted({r.name for r in one}))
        return SimpleNamespace(changed=self.changed, changes=lambda _name: ())

    def together(self, *jobs: Any) -> list[Any]:
        return [job() for job in jobs]

    def note(self, text: str, **_how: Any) -> None:
        self.notes.append(text)


def running(index: int, share: float | None = None) -> ContainerState:
    """The server of a model as it was started."""
    flags = ("--gpu-memory-utilization", str(share)) if share is not None else ()
    labels = GROUP.parts[index].deployment.labels
    return ContainerState("running", labels=dict(labels), command=("vllm", *flags))


def members(play: FakePlay, *states: ContainerState) -> list[Member]:
    return [
        Member(play, plan, state, GONE)  # type: ignore[arg-type]
        for plan, state in zip(GROUP.parts, states, strict=True)
    ]


def planned(
    monkeypatch: pytest.MonkeyPatch, *states: ContainerState, gib: float | None = None, **how: Any
) -> Mapping[str, float | None]:
    """The shares on a Spark with so much available."""
    return admitted(monkeypatch, *states, gib=gib, **how).shares


def admitted(
    monkeypatch: pytest.MonkeyPatch, *states: ContainerState, gib: float | None = None, **how: Any
) -> Admitted:
    """What each is given there."""
    play = how.pop("play", None) or FakePlay()
    memory = SPARK if gib is None else replace(SPARK, available_kib=round(gib * 2**20))
    room = NodeMemory("a", memory)

    def placed(_play: Any, models: Sequence[ServedModel], _there: Any) -> list[Placed]:
        return [Placed(model.subject, room, on_request=model.on_request) for model in models]

    monkeypatch.setattr(model_admission, "placed", placed)
    monkeypatch.setattr(model_admission.admission, "our_processes", lambda *_: {"a": set()})
    monkeypatch.setattr(model_admission.model_lookup, "hub_for", lambda *_, **__: None)
    models = how.pop("models", MODELS)
    starting = [Starting(m, one, {}) for m, one in zip(models, members(play, *states), strict=True)]
    return admit(play, starting, [], **{"force": False, **how})


def test_each_gets_the_share_of_the_plan_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(monkeypatch, GONE, GONE)
    assert found == {f"spark-vllm-{CHAT}": 0.74, f"spark-vllm-{EMBEDDING}": None}, (
        "the embedding model's recipe says 0.10 itself"
    )


def test_a_server_that_runs_keeps_its_share_and_the_other_takes_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = planned(monkeypatch, running(0, 0.74), GONE, gib=25)
    assert found[f"spark-vllm-{CHAT}"] == 0.74
    with pytest.raises(DoesNotFit, match=r"a: qwen3-embedding-0\.6b needs 21\.8 GiB"):
        planned(monkeypatch, running(0, 0.74), GONE, gib=20)


def test_nothing_is_planned_when_all_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(monkeypatch, running(0, 0.5), running(1), gib=1)
    assert found[f"spark-vllm-{CHAT}"] == 0.5


ON_REQUEST = (MODELS[0], replace(MODELS[1], on_request=True))
LOADS = f"spark-vllm-{EMBEDDING}"


def made(needs: str, status: str = "exited") -> ContainerState:
    """The container of the model that is loaded on request."""
    labels = {**GROUP.parts[1].deployment.labels, NEEDS: needs}
    return ContainerState(status, labels=labels)


def test_a_model_on_request_keeps_its_place_and_is_told_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = admitted(monkeypatch, GONE, GONE, models=ON_REQUEST)
    assert found.shares == planned(monkeypatch, GONE, GONE)
    assert found.needs_gib == {LOADS: pytest.approx(21.8, abs=0.1)}
    assert found.new == {f"spark-vllm-{CHAT}", LOADS}


@pytest.mark.parametrize("status", ["created", "exited", "running"])
def test_one_that_is_made_already_is_left_as_it_is(monkeypatch, status):
    found = admitted(monkeypatch, running(0, 0.5), made("21.8", status), models=ON_REQUEST, gib=1)
    assert (found.new, found.needs_gib) == (frozenset(), {LOADS: 21.8})


def test_what_is_started_leaves_room_for_one_that_is_loaded_later(monkeypatch):
    found = admitted(monkeypatch, GONE, made("21.8", "running"), models=ON_REQUEST)
    assert found.shares[f"spark-vllm-{CHAT}"] == 0.74
    assert (found.new, found.needs_gib) == ({f"spark-vllm-{CHAT}"}, {LOADS: 21.8})
    with pytest.raises(DoesNotFit, match=r"a: 2 models need 51\.7 GiB together"):
        admitted(monkeypatch, GONE, made("21.8"), models=ON_REQUEST, gib=40)


def test_what_does_not_fit_is_refused_with_the_sum_or_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DoesNotFit, match=r"a: 2 models need 51\.7 GiB together") as refused:
        planned(monkeypatch, GONE, GONE, gib=40)
    assert "--force launches anyway" in refused.value.hint
    play = FakePlay()
    planned(monkeypatch, GONE, GONE, gib=40, force=True, play=play)
    assert play.notes[0].startswith("--force: a: 2 models need")


def test_a_model_that_no_one_knows_needs_a_share_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = make_recipe(CHAT)
    model = recipe.model.model_copy(update={"name": "no/such", "base": None, "weights_gib": None})
    unknown = recipe.model_copy(update={"model": model})
    monkeypatch.setattr("test_model_servers.MODELS", (ServedModel(unknown, "a"), MODELS[1]))
    with pytest.raises(Refused, match="no share of the memory can be computed") as refused:
        planned(monkeypatch, GONE, GONE)
    assert f"give gpu_memory_utilization in the recipe: {CHAT}" in refused.value.hint


def test_they_are_started_one_after_the_other_each_when_the_one_before_is_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = FakePlay()
    monkeypatch.setattr(model_servers.launches, "before_start", lambda *_: None)
    monkeypatch.setattr(
        model_servers.load_guard, "prepare", lambda play, nodes: play.log.append(nodes[0].name)
    )
    monkeypatch.setattr(
        model_servers.readiness,
        "healthy",
        lambda _play, endpoint, *_, server, **__: play.log.append((server, endpoint.url)) or [],
    )
    share = Admitted({f"spark-vllm-{CHAT}": 0.74, f"spark-vllm-{EMBEDDING}": None})
    model_servers.start(play, members(play, GONE, GONE), "present", share)  # type: ignore[arg-type]
    assert play.log == [
        "a",
        (CHAT, 0.74),
        (f"spark-vllm-{CHAT}", "http://127.0.0.1:18000/v1"),
        "a",
        (EMBEDDING, 0.1),
        (f"spark-vllm-{EMBEDDING}", "http://127.0.0.1:18001/v1"),
    ]


def test_what_has_no_place_next_to_them_is_ended_and_they_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = replace(GROUP.whole.endpoint.models[0], program="spark-vllm-old")
    former = model_servers.stale(
        GROUP, (old, *GROUP.whole.endpoint.models), (Replica("b", "192.168.177.12", 18000),)
    )
    assert former == {"a": ["spark-vllm-old"], "b": [SERVER]}
    waited: list[Any] = []
    monkeypatch.setattr(model_servers.admission, "our_processes", lambda *_: {"a": {7}})
    monkeypatch.setattr(
        model_servers.vram, "until_free", lambda _sessions, ignored: waited.append(ignored)
    )
    play = FakePlay()
    model_servers.end_others(play, GROUP, former)  # type: ignore[arg-type]
    assert (play.log, waited) == ([[PAUSE, RAY, SERVER, "spark-vllm-old"]], []), "nothing was there"
    play.changed = 1
    model_servers.end_others(play, GROUP, former)  # type: ignore[arg-type]
    assert waited == [{"a": {7}}], "the memory of those that stay is not waited for"


@pytest.mark.parametrize("status", ["created", "exited", "running"])
def test_what_may_have_been_loaded_meanwhile_is_unloaded_too(monkeypatch, status):
    """The loader goes on while images and models are fetched."""
    ran: list[list[str]] = []
    play: Any = FakePlay()
    play.session = lambda _node: SimpleNamespace(run=lambda argv, **_: ran.append(argv))
    monkeypatch.setattr(model_loading.admission, "our_processes", lambda *_: {})
    monkeypatch.setattr(model_loading.vram, "until_free", lambda *_, **__: [])
    group = resolve_models(ON_REQUEST, inventory_of(NODE, recipes=ENTRIES), [NODE])
    states = (running(0), made("21.8", status))
    found = [Member(play, plan, one, GONE) for plan, one in zip(group.parts, states, strict=True)]
    model_loading.unload(play, found)
    assert ran == [
        ["systemctl", "stop", model_loading.proxy.LOADER_UNIT],
        ["docker", "stop", "-t", "5", LOADS],
    ]
