"""`ray up` as a playbook: what is prepared, what is refused, what is started."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Interface
from types import SimpleNamespace
from typing import Any

import pytest
from factories import SHIPPED, make_node, make_recipe
from serve_plans import inventory_of

from spark_cluster.errors import Refused
from spark_cluster.inference.process import SERVER
from spark_cluster.inference.ray_node import ALONE
from spark_cluster.node.containers import ContainerState
from spark_cluster.serving import ray_cluster, readiness, start
from spark_cluster.topology import Link


class Play:
    """A play as far as the playbook asks it; keeps what was done."""

    def __init__(self, *, check: bool = False) -> None:
        link = Link("eth0", IPv4Interface("192.168.177.11/24"))
        self.nodes = [
            replace(make_node("spark1", address="10.0.0.1"), links=(link,)),
            replace(make_node("spark2", head=False, address="10.0.0.2"), links=(link,)),
        ]
        self.check = check
        self.options = SimpleNamespace(selection=SimpleNamespace(partial=False))
        self.inventory, self.done = inventory_of(*self.nodes), []  # type: ignore[var-annotated]

    @contextmanager
    def stage(self, name: str) -> Any:
        self.done.append(name)
        yield

    def role(self, name: str, **given: Any) -> Any:
        return SimpleNamespace(name=name, given={"state": "present", **given})

    def apply(self, _nodes: Any, *what: Any) -> Any:
        self.done += [getattr(one, "name", one) for one in what]
        return SimpleNamespace(changed=False)

    def session(self, node: Any) -> Any:
        return SimpleNamespace(node=node.name)


@pytest.fixture
def playbook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`playbook(play, jobs=..., state=...)`: run it."""

    def run(play: Play, state: ContainerState | None = None, **given: Any) -> Any:
        found = state or ContainerState("absent")

        def known(_play: Any, name: str, _node: Any = None) -> ContainerState:
            return found if name == SERVER else ContainerState("absent")

        monkeypatch.setattr(readiness, "container_state", known)
        monkeypatch.setattr(ray_cluster, "servers_there", lambda _play: {})
        monkeypatch.setattr(ray_cluster, "look", lambda _play: "running")
        monkeypatch.setattr(start, "token", lambda _session: "5eed")
        function = SHIPPED.load_playbook("ray").function
        function.__globals__["start_ray_alone"] = lambda _play, _plan, guarded, labels: (
            play.done.append(f"Ray, firewall {guarded}, {labels}")
        )
        recipe = make_recipe("gemma4-31b-fp8", **given)
        return function(play, recipe=recipe, tp=2)

    return run


def test_ray_is_started_as_under_a_model_without_the_model(playbook):
    play = Play()
    assert playbook(play) == "running"
    assert play.done == [
        "prepare", "network", "firewall", "containers", "caches", "fetch", "images", "start",
        f"Ray, firewall present, {ALONE}",
    ]  # fmt: skip


def test_in_check_mode_there_is_nothing_to_look_at(playbook):
    assert playbook(Play(check=True)) is None


def test_a_server_is_not_ended_for_it(playbook):
    play = Play()
    up = ContainerState("running", labels={"spark-cluster.recipe": "lab-paris"})
    with pytest.raises(Refused, match="lab-paris is up") as caught:
        playbook(play, up)
    assert caught.value.hint == "spark-cluster down, then spark-cluster ray up"
    assert play.done == []


def test_a_recipe_without_ray(playbook):
    with pytest.raises(Refused, match="joins the nodes without Ray"):
        playbook(Play(), executor="mp")
