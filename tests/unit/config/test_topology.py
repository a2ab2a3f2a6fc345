"""Nodes as roles see them: which port has the cable, which addresses are ours to give."""

from ipaddress import IPv4Interface

import factories
import pytest
from cases import each_case

from spark_cluster.config.facts import Facts, Hca, Interface
from spark_cluster.config.topology import cabled_port, links, links_of, topology_of

PORT_1 = ("enp1s0f1np1", "enP2p1s0f1np1")
HCAS = {
    "enp1s0f0np0": "rocep1s0f0",
    "enP2p1s0f0np0": "roceP2p1s0f0",
    "enp1s0f1np1": "rocep1s0f1",
    "enP2p1s0f1np1": "roceP2p1s0f1",
}


def facts(up, addresses=None, given_here=()):
    """Facts of a Spark whose interfaces `up` have a carrier; of its addresses we gave these."""
    given = addresses or {}
    return Facts(
        interfaces=tuple(
            Interface(name, up=name in up, addresses=tuple(map(IPv4Interface, given.get(name, ()))))
            for name in HCAS
        ),
        hcas=tuple(Hca(hca, name, name in up) for name, hca in HCAS.items()),
        given_addresses=tuple(map(IPv4Interface, given_here)),
    )


@pytest.fixture
def inventory(tmp_path):
    """`inventory(fabric="detect", pool=...)`: two nodes."""

    def make(fabric="detect", pool="[192.168.177.0/24, 192.168.178.0/24]"):
        return factories.make_inventory(
            tmp_path,
            "nodes:\n  spark1: {address: 10.0.0.1, roles: [head]}\n"
            f"  spark2:\n    address: 10.0.0.2\n    fabric: {fabric}\n"
            f"fabric: {{pool: {pool}}}\n",
        )

    return make


@each_case(__file__, "links.json")
def test_the_links_of_a_node(inventory, case):
    """Of the port with the cable; addresses that a user configured are not changed. Those of an
    earlier pool were taken for the user's, and gone with the `netplan apply` of our file."""
    made = inventory(**case.get("inventory", {}))
    seen = facts(case["up"], case.get("has"), given_here=case.get("ours", ()))
    found = links(made, made.nodes["spark2"], seen)
    assert [[k.interface, str(k.address), k.hca, k.ours] for k in found] == case["links"]


def test_an_interface_of_another_name():
    assert [h.interface for h in cabled_port(Facts(hcas=(Hca("mlx5_0", "fabric0", True),)))] == [
        "fabric0"
    ]


def test_sparks_know_each_other(inventory):
    made = inventory()
    found = {"spark1": facts(PORT_1), "spark2": facts(PORT_1)}
    known = topology_of(made, found, {"spark1": "nvidia"}, found.__getitem__)
    one, two = known["spark1"], known["spark2"]
    assert [n.name for n in two.cluster] == ["spark1", "spark2"]
    assert (two.head.name, two.head.fabric_ip) == ("spark1", "192.168.177.11")
    assert (one.is_head, two.is_head, one.index, two.index) == (True, False, 0, 1)
    assert (one.user, two.user) == ("nvidia", "root")
    alone = topology_of(made, ["spark2"], {}, {"spark2": facts(())}.__getitem__)
    assert list(alone) == ["spark2"]
    assert alone["spark2"].fabric_ip is None


def test_the_others_links_are_the_shared_ones_before_facts_are_read(inventory):
    """The head that a worker knew had an address of the pool, where the user's subnet is shared."""
    made = inventory()
    theirs = facts(PORT_1, {PORT_1[0]: ["192.168.100.10/24"]})
    found = {"spark1": facts(PORT_1), "spark2": theirs}
    known = topology_of(made, found, {}, found.__getitem__)
    assert known["spark2"].head.fabric_ip == known["spark1"].fabric_ip == "192.168.100.11"


def addresses_of(made, **nodes):
    """Return the addresses of the first twin of each node, all of which have both twins up."""
    return {name: str(found[0].address) for name, found in links_of(made, nodes).items()}


def test_nodes_share_the_subnet_that_the_user_configured_on_one(inventory):
    """P01: an address of the user's on one node left the other node in a subnet of the pool."""
    made = inventory()
    theirs = facts(PORT_1, {PORT_1[0]: ["192.168.100.10/24"]})
    assert addresses_of(made, spark1=facts(PORT_1), spark2=theirs) == {
        "spark1": "192.168.100.11/24",
        "spark2": "192.168.100.10/24",
    }
    taken = facts(PORT_1, {PORT_1[0]: ["192.168.100.11/24"]})
    assert addresses_of(made, spark1=facts(PORT_1), spark2=taken)["spark1"] == "192.168.100.1/24"
    given = facts(PORT_1, {PORT_1[0]: ["192.168.100.7/24"]}, given_here=["192.168.100.7/24"])
    assert addresses_of(made, spark1=given, spark2=theirs)["spark1"] == "192.168.100.7/24"
    # Of a node that is not in this run it is not known what it has: nothing is changed.
    assert addresses_of(made, spark1=given)["spark1"] == "192.168.100.7/24"
    assert addresses_of(made, spark1=given, spark2=facts(PORT_1)) == {
        "spark1": "192.168.177.11/24",
        "spark2": "192.168.177.12/24",
    }
