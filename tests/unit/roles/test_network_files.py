"""network: which interfaces and cables, and the netplan files of others: used, added to, never
written, or named as conflicts."""

import json
from dataclasses import replace
from ipaddress import IPv4Interface

import factories
import pytest
from cases import each_case
from netplan_files import FIRST, LAYOUTS, PLAYBOOK, SECOND
from role_samples import HCAS, a_spark, together

from spark_cluster.config.fact_gathering import MANAGED, netplan_files
from spark_cluster.config.facts import Interface
from spark_cluster.config.topology import links_of
from spark_cluster.errors import Failed
from spark_cluster.node import paths
from spark_cluster.resources import File

POOL = {FIRST: "192.168.177.11/24", SECOND: "192.168.178.11/24"}
LAN = "enP7s7"


@pytest.fixture
def a_pair(tmp_path):
    """`a_pair(files, now, fabric=..., **more)`: two nodes, the first one with these netplan files,
    and addresses that interfaces have `now`."""

    def make(files=(), now=(), fabric="detect", pool="[192.168.177.0/24, 192.168.178.0/24]"):
        inventory = factories.make_inventory(
            tmp_path,
            f"""
            nodes:
              spark1: {{address: 10.89.0.11, roles: [head], fabric: {json.dumps(fabric)}}}
              spark2: {{address: 10.89.0.12}}
            fabric: {{pool: {pool}}}
            """,
        )
        nodes = []
        for index, (texts, addresses) in enumerate([(dict(files), dict(now)), ({}, {})]):
            interfaces = tuple(
                Interface(name, addresses=tuple(map(IPv4Interface, addresses.get(name, ()))))
                for name in (FIRST, SECOND, LAN)
            )
            netplan = netplan_files(texts, interfaces, {FIRST, SECOND})
            given = tuple(g.address for d in netplan.definitions if d.ours for g in d.addresses)
            node = a_spark(index, interfaces=interfaces, netplan=netplan, given_addresses=given)
            nodes.append(node)
        found = links_of(inventory, {node.name: node.facts for node in nodes})
        return together(*(replace(node, links=found[node.name]) for node in nodes))

    return make


def refused(role, node, **settings):
    with pytest.raises(Failed) as caught:
        role("network", node, **settings)
    assert caught.value.where == node.name
    assert "nothing was changed" in caught.value.hint
    return caught.value.message


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_our_file_has_what_others_leave_open(role, a_pair, layout):
    """P01: the file of the user's was overwritten, and its address was lost."""
    node, _ = a_pair(layout.files)
    (netplan,) = role("network", replace(node, cluster=()))
    assert netplan.path == "/etc/netplan/99-spark-cluster.yaml" not in layout.files
    assert netplan.addresses == POOL | layout.given
    assert netplan.confirm_within_s == 20.0
    theirs = [d for name in POOL for d in node.facts.netplan.of_others(name)]
    assert set(netplan.mtu) == set(POOL) - {d.interface for d in theirs if d.mtu and d.addresses}
    if not netplan.mtu:
        assert netplan.content is None
    else:
        made = netplan_files({netplan.path: netplan.content, **layout.files}, node.facts.interfaces)
        own = {d.interface: d for d in made.definitions if d.ours}
        assert {n: str(d.addresses[0].address) for n, d in own.items() if d.addresses} == {
            name: POOL[name] for name in set(POOL) - set(layout.given)
        }
        assert {name for name, d in own.items() if d.mtu == 9000} == set(netplan.mtu)
    for name, place in layout.places.items():
        assert place in netplan.kept, name


@each_case(__file__, "netplan_cases.json")
def test_what_comes_of_the_files_of_others(role, a_pair, case):
    """P01: a conflict is named with file and line before anything is changed."""
    files = LAYOUTS[case["layout"]].files if "layout" in case else {}
    given = {name: case[name] for name in ("now", "fabric", "pool") if name in case}
    node = a_pair({**files, **case.get("files", {})}, **given)[case.get("at", 0)]
    if "refused" in case:
        said = refused(role, node, **case.get("settings", {}))
        assert [words for words in case["refused"] if words not in said] == [], said
        return
    (netplan,) = role("network", node, **case.get("settings", {}))
    assert netplan.path == case.get("path", paths.NETPLAN)
    for name in ("addresses", "content", "mtu"):
        assert getattr(netplan, name) == case.get(name, getattr(netplan, name))
    assert [words for words in case.get("kept", []) if words not in netplan.kept] == []
    assert [words for words in case.get("lacks", []) if words in netplan.content] == []


def test_our_file_under_another_name_goes(role, a_pair):
    """A file of ours that was written under the playbook's name, by its first line."""
    first, _ = a_pair()
    (made,) = role("network", first)
    node, _ = a_pair({PLAYBOOK: made.content}, {name: [POOL[name]] for name in POOL})
    netplan, gone = role("network", node)
    assert (netplan.path, dict(netplan.addresses)) == (paths.NETPLAN, POOL)
    assert gone == File(PLAYBOOK, state="absent")
    theirs, _ = a_pair({PLAYBOOK: made.content.replace(MANAGED, "# mine")})
    assert [resource.path for resource in role("network", theirs)] == [paths.NETPLAN]


def test_a_node_that_the_inventory_keeps_from_joining(role, a_pair):
    text = f"network: {{ethernets: {{{FIRST}: {{addresses: [192.168.100.10/24]}}}}}}"
    fabric = {"interfaces": [{"name": FIRST, "address": "192.168.177.5/24"}]}
    one, two = a_pair((), fabric=fabric, pool="[192.168.177.0/24]")
    with_its_own = replace(two.links[0], address=IPv4Interface("192.168.100.10/24"), ours=False)
    netplan = netplan_files({PLAYBOOK: text}, two.facts.interfaces)
    two = replace(two, links=(with_its_own,), facts=replace(two.facts, netplan=netplan))
    said = refused(role, together(one, two)[0])
    assert f"spark2 has 192.168.100.10/24 on {FIRST} ({PLAYBOOK}:1), which is another" in said
    assert "pool: [192.168.100.0/24, ...]" in said


def test_addresses_of_the_users_own_are_left_alone(role):
    node = a_spark()
    theirs = replace(node.links[0], address=IPv4Interface("10.1.1.1/24"), ours=False)
    (netplan,) = role("network", replace(node, links=(theirs, node.links[1])))
    assert list(netplan.addresses) == ["enP2p1s0f1np1"]
    assert "enp1s0f1np1:" not in netplan.content
    assert role("network", replace(node, links=(theirs,))) == []


@pytest.mark.parametrize("up", [1, 3])
def test_a_count_that_fits_no_number_of_cables(role, up):
    hcas = tuple(replace(hca, up=number < up) for number, hca in enumerate(HCAS))
    node = a_spark(hcas=hcas)
    node = replace(node, links=node.links[:up])
    with pytest.raises(Failed, match=f"{up} of the ConnectX-7's functions are up") as caught:
        role("network", node)
    assert "reseat" in caught.value.hint
    assert role("network", node, any_cable_count=True)


def test_two_cables(role):
    assert role("network", a_spark(hcas=tuple(replace(hca, up=True) for hca in HCAS)))


def test_an_interface_that_is_not_there(role):
    """A wrong name in the inventory: nothing of it is written into netplan."""
    node = a_spark()
    facts = replace(node.facts, interfaces=(Interface("eth0"), Interface("enp1s0f1np1")))
    with pytest.raises(Failed, match="has no interface enP2p1s0f1np1, which the inventory") as it:
        role("network", replace(node, facts=facts))
    assert "eth0, enp1s0f1np1)" in it.value.message
    assert "fabric: detect" in it.value.hint
