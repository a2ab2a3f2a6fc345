"""The examination as a whole: who is asked what, how often, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import factories
import pytest
from cases import each_case
from doctor_samples import seen

from spark_cluster.config.inventory import Inventory
from spark_cluster.doctor import examine
from spark_cluster.doctor.check import Check
from spark_cluster.doctor.observations import NodeSource, ok
from spark_cluster.errors import Failed, Unreachable
from spark_cluster.runner import dialer
from spark_cluster.runner.session import Session


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    return factories.make_inventory(
        tmp_path,
        "nodes:\n  spark1: {address: 127.0.0.1, roles: [head]}\n  spark2: {address: 127.0.0.2}\n",
    )


@pytest.fixture
def requests(
    agent: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[str]]:
    """Real agents in place of SSH; node to what it was asked. A node named `off` is unreachable."""
    asked: dict[str, list[str]] = {}

    class Connection:
        def __init__(self, target: Any) -> None:
            self.name = target.name

        @property
        def user(self) -> str:
            if self.name in asked.get("off", []):
                raise Unreachable("it did not answer", where=self.name, hint="is it on?")
            return "root"

        def session(self, run: str, *, become: bool) -> Session:
            assert become
            session = agent(self.name)
            submit = session.submit

            def counted(op: str, **what: Any) -> Any:
                asked.setdefault(self.name, []).append(op)
                return submit(op, **what)

            monkeypatch.setattr(session, "submit", counted)
            return session

        def close(self) -> None:
            pass

    monkeypatch.setattr(dialer, "SshConnection", Connection)
    monkeypatch.setattr(examine, "pings", lambda _: False)
    return asked


def examined(inventory: Inventory) -> tuple[examine.Diagnosis, list[str]]:
    nodes = list(inventory.nodes.values())
    with examine.Examination(inventory, nodes, dialer.Dialer()) as examination:
        observed = examination.observe()
        found = [*examine.judge(observed), *examination.reachability()]
    diagnosis = examine.Diagnosis(tuple(examine.select(found, ())), examination.unreached)
    return diagnosis, [node.node for node in observed]


def test_every_node_is_asked_once(inventory: Inventory, requests: dict[str, list[str]]) -> None:
    diagnosis, nodes = examined(inventory)
    assert nodes == ["spark1", "spark2"]
    assert requests == {"spark1": ["gather"], "spark2": ["gather"]}
    checks = {result.id for result in diagnosis.results}
    assert checks == {check.id for check in (*examine.NODE, *examine.PAIR)} | {examine.ID}
    assert diagnosis.exit_code == 5  # one machine twice: the same machine id, the same keys


def test_interfaces_of_the_link_are_those_that_the_inventory_names(
    tmp_path: Path, requests: dict[str, list[str]]
) -> None:
    link = "fabric: {interfaces: [{name: fabric0, address: 10.90.1.11/24, configure: false}]}"
    text = f"nodes:\n  spark1: {{address: 127.0.0.1, roles: [head], {link}}}\n"
    inventory = factories.make_inventory(tmp_path, text)
    nodes = list(inventory.nodes.values())
    with examine.Examination(inventory, nodes, dialer.Dialer()) as examination:
        (seen_,) = examination.observe()
    assert seen_.fabric == ("fabric0",)
    assert requests == {"spark1": ["gather"]}


def test_one_of_two_is_off(inventory: Inventory, requests: dict[str, list[str]]) -> None:
    requests["off"] = ["spark2"]
    diagnosis, nodes = examined(inventory)
    assert nodes == ["spark1"]
    assert diagnosis.exit_code == 3
    (first,) = [result for result in diagnosis.results if result.node == "spark2"]
    assert (first.id, first.found) == ("system.reachable", "it did not answer")
    assert not [result for result in diagnosis.results if result.area == "pair"]


@pytest.mark.parametrize(
    ("changes", "unreached", "status"),
    [
        ({}, {}, 0),
        ({"history": None}, {}, 0),
        ({"swaps": "head\n/swap.img file 1 0 -2\n"}, {}, 0),
        ({"hcas": ""}, {}, 5),
        ({"hcas": ""}, {"spark2": Unreachable("off")}, 3),
        ({"hcas": ""}, {"spark2": Failed("no sudo")}, 5),
    ],
)
def test_exit_status(changes: dict[str, Any], unreached: dict[str, Any], status: int) -> None:
    """Unknown and warnings are shown, and are no failure."""
    found = tuple(examine.judge([seen(1, **changes)]))
    assert examine.Diagnosis(found, unreached).exit_code == status


def test_what_a_shipped_check_brings_is_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    swap = NodeSource("/proc/swaps", path="/proc/swaps")
    check = Check("memory.x", "x", lambda _: ok("none"), ("swaps",), "risks", sources={"x": swap})
    monkeypatch.setattr(examine, "ALL", (check,))
    assert examine.sources_of_checks() == {"x": swap}


SILENT = Unreachable("10.0.0.2:22 did not answer within 10 s", hint="check that it is on")


@each_case(__file__, "unreached.json")
def test_why(case: dict[str, Any]) -> None:
    result = examine.unreached("spark2", case["address"], SILENT, case["pings"])
    assert (result.id, result.status) == ("system.reachable", "fail")
    assert case["cause"] in result.cause
    assert "did not answer within 10 s" in result.found
    assert result.fix


def test_what_is_worth_a_ping() -> None:
    assert examine.worth_a_ping(SILENT)
    assert not examine.worth_a_ping(Unreachable("THE HOST KEY HAS CHANGED: x came"))
    assert not examine.worth_a_ping(Failed("sudo asks for the password"))
