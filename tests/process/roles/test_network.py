"""network: both twins, their own subnets, the cable count rule, the user's own files left alone."""

from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from role_samples import HCAS, a_spark

from spark_cluster.config.facts import Interface
from spark_cluster.errors import Failed


def test_addresses_of_the_users_own_are_left_alone(role):
    node = a_spark()
    theirs = replace(node.links[0], address=IPv4Interface("10.1.1.1/24"), ours=False)
    (netplan,) = role("network", replace(node, links=(theirs, node.links[1])))
    assert list(netplan.addresses) == ["enP2p1s0f1np1"]
    assert "enp1s0f1np1:" not in netplan.content
    assert role("network", replace(node, links=(theirs,))) == []


def test_no_cable(role):
    with pytest.raises(Failed, match="no ConnectX-7 interface is up"):
        role("network", a_spark(linked=False))


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


def test_interfaces_named_by_hand_need_no_rdma_device(role):
    assert role("network", a_spark(hcas=()))


def test_an_interface_that_is_not_there(role):
    """A wrong name in the inventory: nothing of it is written into netplan."""
    node = a_spark()
    facts = replace(node.facts, interfaces=(Interface("eth0"), Interface("enp1s0f1np1")))
    with pytest.raises(Failed, match="has no interface enP2p1s0f1np1, which the inventory") as it:
        role("network", replace(node, facts=facts))
    assert "eth0, enp1s0f1np1)" in it.value.message
    assert "fabric: detect" in it.value.hint
