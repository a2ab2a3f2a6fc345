"""Three and four nodes on a switch: linked, checked, a ring of cables refused, and served on."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from commandline import WAIT_S, CommandLine, until
from on_nodes import ranks

from spark_cluster_lab import Lab, network
from spark_cluster_lab.layout import CABLES, FABRIC, UNCABLED

pytestmark = pytest.mark.lab

LINK = ("--tags", "network,ssh_mesh")
NAMES = ["spark1", "spark2", "spark3", "spark4"]


@pytest.fixture(scope="module")
def four(lab: Lab) -> Iterator[Lab]:
    """Four nodes, of which the last two are fresh; afterwards two again."""
    lab.up(4, progress=lambda text: print(text, file=sys.stderr))
    for node in lab.nodes[2:]:
        node.reset(wait=False)
    for node in lab.nodes:
        node.wait()
    lab.trust()
    yield lab
    lab.up(2)
    lab.trust()


@pytest.fixture(scope="module")
def user(four: Lab, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    made = CommandLine(tmp_path_factory.mktemp("more-nodes"), inventory="lab4")
    made("trust")
    made("down")
    made("provision", *LINK)
    return made


def link(user: CommandLine, *, healthy: bool = True) -> dict[str, dict[str, Any]]:
    """What doctor finds of the link, by check; of a check of each node what is worst.

    A rate that is low says nothing here: other tests keep the processors busy.
    """
    asked = user.start("doctor", "--probe", "--only", "link", "--json")
    found = json.loads(asked.process.communicate(timeout=WAIT_S)[0])["checks"]
    fails = {result["id"] for result in found if result["status"] == "fail"}
    assert asked.process.returncode == (5 if fails else 0)
    assert healthy != bool(fails - {"link.transfer-rate"}), found
    return {result["id"]: result for result in reversed(found)}


def test_four_nodes_are_linked_over_the_switch(user, four):
    again = user.json("provision", *LINK)
    assert again["changed"] == 0
    for number, node in enumerate(four.nodes, start=1):
        shown = node.ssh("ip -4 -br address").stdout
        assert f"192.168.177.{10 + number}/24" in shown
        assert f"192.168.178.{10 + number}/24" in shown
    four.node("spark4").ssh(["ssh", "-o", "BatchMode=yes", "spark2", "true"])
    found = link(user)
    assert found["link.full-size-ping"]["found"] == "8972 bytes pass on 8 ways"
    assert found["link.cabling"]["status"] == "ok"
    assert "ways" in found["link.transfer-rate"]["found"]


def test_a_cable_that_is_out_is_that_of_one_node(user, four):
    one = four.node("spark3")
    one.unplug_fabric()
    try:
        found = link(user, healthy=False)
        assert (found["link.port-up"]["status"], found["link.port-up"]["node"]) == (
            "fail",
            "spark3",
        )
        assert found["link.full-size-ping"]["found"] == "8972 bytes pass on 4 ways"
    finally:
        one.plug_fabric()
    until(lambda: "(Up)" in one.ssh("ibdev2netdev").stdout, what="its link again")


@contextmanager
def ring_of_cables(lab: Lab) -> Iterator[None]:
    """Cable port 1 of each of the first three nodes to port 0 of the next one."""
    three = [node.layout for node in lab.nodes[:3]]
    pairs = list(zip(three, (*three[1:], three[0]), strict=True))
    bridges: dict[str, tuple[str, str]] = {
        f"ring{number}{twin}": (one.cable(FABRIC[twin]), other.cable(UNCABLED[twin]))
        for number, (one, other) in enumerate(pairs)
        for twin in (0, 1)
    }
    network.ip(
        *(f"link add {bridge} type bridge forward_delay 0 mcast_snooping 0" for bridge in bridges),
        *(f"link set {end} master {bridge}" for bridge, ends in bridges.items() for end in ends),
        *(f"link set {name} up" for bridge, ends in bridges.items() for name in (bridge, *ends)),
        namespace=CABLES,
    )
    try:
        yield
    finally:
        network.ip(
            *(f"link delete {bridge}" for bridge in bridges),
            *(f"link set {node.cable(port)} master {port}" for node in three for port in FABRIC),
            *(f"link set {node.cable(port)} down" for node in three for port in UNCABLED),
            namespace=CABLES,
        )


def test_a_ring_of_cables_is_refused_before_anything_is_changed(user, four):
    three = CommandLine(user.home, inventory="lab3")
    ports = four.node("spark2")
    with ring_of_cables(four):
        until(lambda: ports.ssh("ibdev2netdev").stdout.count("(Up)") == 4, what="both ports up")
        ran = three("provision", *LINK, status=1)
        assert "without a switch" in ran.printed
        assert "spark1: f0np0 to spark3; f1np1 to spark2" in ran.printed
        assert "from the same port of each node to a switch" in ran.printed
        found = link(three, healthy=False)
        assert found["link.cabling"]["status"] == "fail"
    until(lambda: ports.ssh("ibdev2netdev").stdout.count("(Up)") == 2, what="one port up")
    assert user.json("provision", *LINK)["changed"] == 0


# --- serving on them --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(user: CommandLine) -> Iterator[dict[str, Any]]:
    yield user.json("up", "--tp", "4")
    user("down")


@pytest.mark.soak
def test_one_model_over_four_nodes(user, four, served):
    assert served["tp"] == 4
    assert "Paris" in served["answer"]
    assert [ranks(node) for node in four.nodes] == [1, 1, 1, 1]
    assert user.json("up", "--tp", "4")["changed"] == 0
    status = user.json("status")
    assert (status["state"], status["problems"]) == ("serving", [])
    nodes = user.json("vram")["nodes"]
    assert [node["name"] for node in nodes] == NAMES
    assert all(node["processes"] for node in nodes)
    link(user)
