"""`bench fabric` as a playbook: the Ray that it uses, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Interface
from types import SimpleNamespace
from typing import Any

import pytest
from factories import SHIPPED, make_node, make_recipe
from serve_plans import inventory_of, plan_for

from spark_cluster.bench import fabric_end, fabric_run
from spark_cluster.errors import Failed
from spark_cluster.inference.process import Process
from spark_cluster.inference.ray_node import MEASURING
from spark_cluster.inference.runtime import RUNTIMES
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.session import Output
from spark_cluster.serving import readiness, start
from spark_cluster.topology import Link

DOWN = "down"


class Play:
    """A play as far as the playbook asks it; keeps what was done."""

    def __init__(self, ray: ContainerState, *, check: bool = False) -> None:
        link = Link("eth0", IPv4Interface("192.168.177.11/24"))
        self.nodes = [
            replace(make_node("spark1", address="10.0.0.1"), links=(link,)),
            replace(make_node("spark2", head=False, address="10.0.0.2"), links=(link,)),
        ]
        self.ray, self.check, self.done = ray, check, []  # type: ignore[var-annotated]
        self.inventory = inventory_of(*self.nodes)
        self.project = SimpleNamespace(
            load_playbook=lambda name: SimpleNamespace(
                function=lambda _play: self.done.append(name)
            )
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.done.append(name)
        yield

    def role(self, name: str, **given: Any) -> Any:
        return SimpleNamespace(name=name, given={"state": "present", **given})

    def apply(self, _nodes: Any, *what: Any) -> Any:
        for one in what:
            ids = [r.id for r in one] if isinstance(one, list) else [getattr(one, "name", one)]
            self.done += ids
        return SimpleNamespace(changed=False)

    def session(self, node: Any) -> Any:
        def run(argv: list[str]) -> Output:
            known = {fabric_end.ARM: "arm", fabric_end.ONCE: "once"}
            what = next((known[word] for word in argv if word in known), "disarm")
            self.done.append(f"{node.name}: {what}")
            return Output(0, "", "")

        return SimpleNamespace(run=run, node=node.name)

    def note(self, _text: str, **_options: Any) -> None:
        pass


@pytest.fixture
def playbook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`playbook(play, error)`: run it; `error` is what measuring raises."""

    def run(play: Play, error: BaseException | None = None) -> Any:
        def measure(_play: Any, _plan: Any, port: int, name: str) -> str:
            play.done.append(f"job {name} at {port}")
            if error is not None:
                raise error
            return "measured"

        monkeypatch.setattr(fabric_run, "must_be_possible", lambda _play, _plan: None)
        monkeypatch.setattr(fabric_run, "measure", measure)
        monkeypatch.setattr(fabric_run, "warn_of_others", lambda _play: None)
        monkeypatch.setattr(readiness, "container_state", lambda _play, _name: play.ray)
        monkeypatch.setattr(readiness, "ray_cluster", lambda *_: [])
        monkeypatch.setattr(start, "token", lambda _session: "5eed")
        function = SHIPPED.load_playbook("fabric").function
        function.__globals__["start_ray_alone"] = lambda _play, _plan, guarded, labels: (
            play.done.append(f"Ray, firewall {guarded}, {labels}")
        )
        recipe = make_recipe("gemma4-31b-fp8")
        return function(play, recipe=recipe, tp=2, name="r1")

    return run


def test_ray_is_started_and_ended(playbook):
    play = Play(ContainerState("absent"))
    assert playbook(play) == "measured"
    ray = "Ray, firewall present, {'spark-cluster.fabric': 'r1'}"
    armed = ["spark1: arm", "spark2: arm"]
    assert play.done[play.done.index(ray) - 2 : play.done.index(ray)] == armed
    once = ["spark1: once", "spark2: once"]
    assert play.done[play.done.index(ray) + 1 : play.done.index("measure")] == once
    assert play.done.index("network") < play.done.index("images") < play.done.index("measure")
    assert play.done[-4:] == ["job r1 at 8265", DOWN, "spark1: disarm", "spark2: disarm"]
    assert "models" not in play.done, "no model is fetched for it"


@pytest.mark.parametrize("error", [Failed("the job on Ray failed"), KeyboardInterrupt()])
def test_it_is_ended_when_measuring_fails(playbook, error):
    play = Play(ContainerState("absent"))
    with pytest.raises(type(error)):
        playbook(play, error)
    assert play.done[-3:] == [DOWN, "spark1: disarm", "spark2: disarm"]


def test_a_ray_that_a_killed_run_left_is_replaced_and_ended(playbook):
    play = Play(ContainerState("running", labels={MEASURING: "r0"}))
    assert playbook(play) == "measured"
    assert any(text.startswith("Ray, ") and "'r1'" in text for text in play.done)
    assert DOWN in play.done


def test_an_error_of_the_end_does_not_hide_the_first(playbook):
    play = Play(ContainerState("absent"))

    def broken(_play: Any) -> None:
        raise Failed("the memory is still held")

    play.project.load_playbook = lambda _name: SimpleNamespace(function=broken)
    with pytest.raises(Failed, match="the job on Ray"):
        playbook(play, Failed("the job on Ray failed"))
    with pytest.raises(Failed, match="still held"):
        playbook(play)


@pytest.mark.parametrize("error", [None, Failed("no")])
def test_a_ray_that_runs_is_used_and_stays(playbook, error):
    play = Play(ContainerState("running", labels={"spark-cluster.dashboard": "8300"}))
    if error is None:
        assert playbook(play) == "measured"
    else:
        with pytest.raises(Failed, match="no"):
            playbook(play, error)
    assert play.done == ["start", "measure", "job r1 at 8300"]


def test_check_mode_starts_and_ends_nothing(playbook):
    play = Play(ContainerState("absent"), check=True)
    assert playbook(play) is None
    assert DOWN not in play.done
    assert "measure" not in play.done
    assert not [text for text in play.done if "arm" in text]


def test_its_ray_has_neither_model_nor_secrets(monkeypatch):
    """The model need not be on the nodes, and a job needs no secret of the server."""
    started: list[Any] = []
    monkeypatch.setattr(start, "token", lambda _session: "5eed")
    monkeypatch.setattr(start, "_start_ray", lambda _play, _nodes, made: started.append(made))
    plan = plan_for(make_recipe("lab-paris"), *Play(ContainerState("absent")).nodes)
    secret = replace(plan.deployment, secret_env={"KEY": "s3cret"})
    play = SimpleNamespace(session=lambda _node: None)
    start.start_ray_alone(play, replace(plan, deployment=secret), "present")  # type: ignore[arg-type]
    (made,) = started
    assert made.on_ray
    assert made.ray_token == "5eed"
    container = RUNTIMES["docker"].resource(Process("spark-ray", ("ray", "start")), made)
    assert container.mounts == ("/opt/vllm:/opt/vllm:ro",), "no folder of a model"
    assert container.caches == made.cache_root
    assert "s3cret" not in repr(container.secret_files)
    assert not container.secret_files
