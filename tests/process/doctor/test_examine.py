"""The examination as a whole: who is asked what, how often, and what comes of it."""

import sys

import factories
import pytest
from cases import each_case
from doctor_samples import seen
from fake_programs import Said
from piped_cluster import Dials, Piped, PipedCluster

from spark_cluster.doctor import examine
from spark_cluster.doctor.check import Check
from spark_cluster.doctor.observations import NodeSource, Observations, ok
from spark_cluster.errors import Failed, Unreachable
from spark_cluster.runner.session import Session


class AsRoot(Piped):
    def session(self, run: str, *, become: bool = False) -> Session:
        assert become
        return super().session(run)


def examined(cluster: PipedCluster, *off: str) -> tuple[examine.Diagnosis, list[Observations]]:
    for node in cluster.nodes.values():
        node.away = sys.maxsize if node.name in off else 0
        for name in ("docker", "systemctl", "journalctl"):
            node.programs[name] = lambda _words, _stdin: Said(status=1)
    inventory = cluster.play.inventory
    dialer = Dials(lambda node: AsRoot(cluster.nodes[node.name]))
    with examine.Examination(inventory, list(inventory.nodes.values()), dialer) as examination:
        observed = examination.observe()
        found = [*examine.judge(observed), *examination.reachability()]
    return examine.Diagnosis(tuple(examine.select(found, ())), examination.unreached), observed


def test_every_node_is_asked_once(piped_cluster):
    cluster = piped_cluster()
    before = [len(node.requests("gather")) for node in cluster.nodes.values()]
    diagnosis, nodes = examined(cluster)
    assert [node.node for node in nodes] == ["spark1", "spark2"]
    after = [len(node.requests("gather")) for node in cluster.nodes.values()]
    assert after == [number + 1 for number in before]
    checks = {result.id for result in diagnosis.results}
    assert checks == {check.id for check in (*examine.NODE, *examine.PAIR)} | {examine.ID}


def test_interfaces_of_the_link_are_those_that_the_inventory_names(piped_cluster):
    link = "interfaces: [{name: fabric0, address: 10.90.1.11/24, configure: false}]"
    cluster = piped_cluster("spark1")
    node = factories.make_inventory(
        cluster.project,
        f"nodes: {{spark1: {{address: 10.0.0.1, roles: [head], fabric: {{{link}}}}}}}\n",
    ).nodes["spark1"]
    cluster.play.inventory.nodes["spark1"] = node
    _, (seen_,) = examined(cluster)
    assert seen_.fabric == ("fabric0",)


def test_one_of_two_is_off(piped_cluster, monkeypatch):
    monkeypatch.setattr(examine, "pings", lambda _: False)
    diagnosis, nodes = examined(piped_cluster(), "spark2")
    assert [node.node for node in nodes] == ["spark1"]
    assert diagnosis.exit_code == 3
    (first,) = [result for result in diagnosis.results if result.node == "spark2"]
    assert (first.id, first.found) == ("system.reachable", "no answer")
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
def test_exit_status(changes, unreached, status):
    """Unknown and warnings are shown, and are no failure."""
    found = tuple(examine.judge([seen(1, **changes)]))
    assert examine.Diagnosis(found, unreached).exit_code == status


def test_what_a_shipped_check_brings_is_asked_too(monkeypatch):
    swap = NodeSource("/proc/swaps", path="/proc/swaps")
    check = Check("memory.x", "x", lambda _: ok("none"), ("swaps",), "risks", sources={"x": swap})
    monkeypatch.setattr(examine, "ALL", (check,))
    assert examine.sources_of_checks() == {"x": swap}


SILENT = Unreachable("10.0.0.2:22 did not answer within 10 s", hint="check that it is on")


@each_case(__file__, "unreached.json")
def test_why(case):
    result = examine.unreached("spark2", case["address"], SILENT, case["pings"])
    assert (result.id, result.status) == ("system.reachable", "fail")
    assert case["cause"] in result.cause
    assert "did not answer within 10 s" in result.found
    assert result.fix


def test_what_is_worth_a_ping():
    assert examine.worth_a_ping(SILENT)
    assert not examine.worth_a_ping(Unreachable("THE HOST KEY HAS CHANGED: x came"))
    assert not examine.worth_a_ping(Failed("sudo asks for the password"))
