"""Three and four nodes on a switch: what is tried between them, and a ring of cables refused."""

import json
import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import factories
import pytest

from spark_cluster.config.facts import Facts, Hca
from spark_cluster.config.topology import Node, topology_of
from spark_cluster.engine import link_check
from spark_cluster.errors import Failed, VerificationFailed

PORT_0 = ("enp1s0f0np0", "enP2p1s0f0np0")
PORT_1 = ("enp1s0f1np1", "enP2p1s0f1np1")


def a_node(up: tuple[str, ...]) -> Facts:
    return Facts(hcas=tuple(Hca(f"r{name}", name, name in up) for name in (*PORT_0, *PORT_1)))


def cluster(tmp_path: Any, count: int, up: tuple[str, ...] = PORT_1) -> list[Node]:
    entries = "".join(
        f"  spark{n}: {{address: 10.0.0.{n}{', roles: [head]' if n == 1 else ''}}}\n"
        for n in range(1, count + 1)
    )
    inventory = factories.make_inventory(tmp_path, f"nodes:\n{entries}")
    return list(topology_of(inventory, inventory.nodes, {}, lambda _: a_node(up)).values())


@pytest.mark.parametrize("count", [2, 3, 4, 5, 16])
def test_each_port_sends_and_receives_once_for_each_twin(tmp_path, count):
    found = link_check.checked_hops(cluster(tmp_path, count))
    assert len(found) == 2 * count, "it grows with the nodes, not with their square"
    sent = Counter((hop.source.name, hop.ours.interface) for hop in found)
    received = Counter((hop.target.name, hop.theirs.interface) for hop in found)
    assert set(sent.values()) == set(received.values()) == {1}
    divided = link_check.rounds(found)
    assert len(divided) <= 6
    for one in divided:
        ends = [name for hop in one for name in (hop.source.name, hop.target.name)]
        assert len(ends) == len(set(ends)), "no node is measured twice at a time"
    assert sorted(map(str, found)) == sorted(str(hop) for one in divided for hop in one)


def test_pairs_of_a_round_are_measured_at_once(tmp_path):
    found = link_check.checked_hops(cluster(tmp_path, 4))
    together = threading.Barrier(2)

    def measured(hop: link_check.Hop) -> float:
        together.wait(10)  # of four nodes two pairs are at work, or none goes on
        if hop.source.name == "spark3":
            raise VerificationFailed("no rate", where="spark3")
        return float(hop.source.index)

    outcomes = link_check.in_rounds(found, measured)
    assert [getattr(one, "message", one) for one in outcomes] == [
        *(0.0, 0.0, 1.0, 1.0),
        *("no rate", "no rate", 3.0, 3.0),
    ]


class Listener:
    """A node's agent that says what it has heard; interface to the names of other nodes."""

    def __init__(self, heard: dict[str, tuple[str, ...]] | str) -> None:
        self.heard, self.asked = heard, 0

    def submit(self, op: str, *, program: str, argv: list[str], timeout: float) -> Any:
        assert (op, program) == ("run", link_check.LISTENER)
        self.asked += 1
        if isinstance(self.heard, str):
            reply = {"stdout": "", "stderr": self.heard}
        else:
            rows = [[name, other] for name, ends in self.heard.items() for other in ends]
            reply = {"stdout": json.dumps(rows), "stderr": ""}
        return SimpleNamespace(wait=lambda: reply)


def ring(number: int) -> Listener:
    """Port 1 of each of three leads to port 0 of the next one; broadcasts reach both twins."""
    following, before = f"spark{number % 3 + 1}", f"spark{(number - 2) % 3 + 1}"
    return Listener(dict.fromkeys(PORT_1, (following,)) | dict.fromkeys(PORT_0, (before,)))


def refused(nodes: list[Node], agents: list[Any]) -> None:
    by_name: Any = dict(zip((node.name for node in nodes), agents, strict=True))
    link_check.must_be_switched(nodes, lambda node: by_name[node.name])


def test_three_nodes_in_a_ring_are_refused(tmp_path):
    three = cluster(tmp_path, 3, PORT_0 + PORT_1)
    with pytest.raises(Failed) as error:
        refused(three, [ring(1), ring(2), ring(3)])
    assert "spark1: f0np0 to spark3; f1np1 to spark2" in error.value.message
    assert "to a switch" in (error.value.hint or "")


def test_a_row_of_three_is_refused_for_the_one_in_the_middle(tmp_path):
    one, two, three = cluster(tmp_path, 3, PORT_1)
    two = replace(two, facts=a_node(PORT_0 + PORT_1))
    middle = Listener({PORT_0[0]: ("spark1",), PORT_1[0]: ("spark3",)})
    with pytest.raises(Failed, match=r"\(spark2: f0np0 to spark1; f1np1 to spark3\)"):
        refused(
            [one, two, three],
            [Listener({PORT_1[0]: ("spark2",)}), middle, Listener({PORT_1[0]: ("spark2",)})],
        )


def test_two_cables_of_each_node_to_a_switch(tmp_path):
    three = cluster(tmp_path, 3, PORT_0 + PORT_1)
    names = {node.name for node in three}
    agents = [
        Listener(dict.fromkeys(PORT_0 + PORT_1, tuple(names - {node.name}))) for node in three
    ]
    refused(three, agents)
    # A second cable to something else: no other node is heard there.
    agents = [Listener(dict.fromkeys(PORT_1, tuple(names - {node.name}))) for node in three]
    refused(three, agents)


def test_no_one_is_asked_where_it_is_clear(tmp_path):
    for count, up in ((2, PORT_0 + PORT_1), (4, PORT_1)):
        agents = [ring(1) for _ in range(count)]
        refused(cluster(tmp_path, count, up), agents)
        assert [agent.asked for agent in agents] == [0] * count


def test_a_node_that_cannot_listen(tmp_path):
    three = cluster(tmp_path, 3, PORT_0 + PORT_1)
    broken = Listener("PermissionError: [Errno 1] Operation not permitted")
    with pytest.raises(Failed, match="Operation not permitted") as error:
        refused(three, [ring(1), broken, ring(3)])
    assert error.value.where == "spark2"
