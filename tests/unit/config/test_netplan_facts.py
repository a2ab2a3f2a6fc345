"""Netplan files of others, as the YAML library reads them: each form in which an address stands."""

import pytest
from cases import cases
from netplan_files import FIRST, LAYOUTS, SECOND

from spark_cluster.config.fact_gathering import LONGEST_NETPLAN, MANAGED, netplan_files
from spark_cluster.config.facts import Interface

CASES = cases(__file__, "netplan_facts.toml")

INTERFACES = (
    Interface(FIRST, mac="4C:BB:47:00:00:01"),
    Interface(SECOND, mac="4c:bb:47:00:00:02"),
    Interface("enP7s7", mac="4c:bb:47:00:00:03"),
)
PATH = "/etc/netplan/40-cx7.yaml"


def definitions(text, path=PATH, **more):
    return netplan_files({path: text, **more}, INTERFACES, {FIRST, SECOND}).definitions


def interfaces(body):
    """Return the interfaces that a definition with this text is for."""
    text = f"network: {{ethernets: {{x: {body}}}}}"
    return [one.interface for one in definitions(text)]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_address_of_each_interface_and_its_place(layout):
    """P01: addresses in another form than our own were not read."""
    files = netplan_files(layout.files, INTERFACES)
    assert (files.own, files.unreadable) == ((), ())
    for interface in (FIRST, SECOND):
        addresses = [str(address) for address in files.given(interface)]
        assert addresses == [layout.given[i] for i in (interface,) if i in layout.given]
        places = {
            f"{d.file}:{d.addresses[0].line if d.addresses else d.line}"
            for d in files.of_others(interface)
        }
        assert places == {layout.places[interface]} if interface in layout.places else not places


def test_a_profile_of_network_manager():
    (one,) = definitions(CASES["network_manager"], "/etc/netplan/90-NM-0c1f7a2e.yaml")
    assert (one.interface, one.shared, one.addresses[0].line) == (FIRST, False, 9)
    assert one.id.startswith("NM-0c1f7a2e")


@pytest.mark.parametrize(("match", "names"), CASES["match"])
def test_match(match, names):
    assert interfaces(f"{{match: {match}}}") == names


def test_a_definition_in_two_files():
    """What ours adds to a definition of another file counts for the interface of its `match`."""
    theirs = f"network: {{ethernets: {{cable: {{match: {{name: {FIRST}}}}}}}}}"
    ours = f"{MANAGED}\nnetwork: {{ethernets: {{cable: {{addresses: [10.0.0.1/24]}}}}}}"
    other, own = definitions(theirs, **{"/etc/netplan/99-spark-cluster.yaml": ours})
    assert (other.ours, other.addresses, own.ours, own.interface) == (False, (), True, FIRST)


def test_a_file_hides_one_of_its_name():
    addresses = "network: {{ethernets: {{enp1s0f1np1: {{addresses: [10.0.{}.1/24]}}}}}}"
    paths = ("/run/netplan/50-a.yaml", "/etc/netplan/50-a.yaml", "/lib/netplan/60-b.yaml",
             "/etc/netplan/old/70-c.yaml", "/etc/netplan/10-d.yaml")  # fmt: skip
    files = {path: addresses.format(number) for number, path in enumerate(paths)}
    found = netplan_files(files, INTERFACES)
    assert [str(address) for address in found.given(FIRST)] == [
        "10.0.4.1/24",
        "10.0.0.1/24",
        "10.0.2.1/24",
    ]


def test_members_of_a_bond():
    text = f"network:\n  bonds:\n    bond0:\n      interfaces: [{FIRST}, {SECOND}]\n"
    assert [(d.interface, d.member_of, d.line) for d in definitions(text)] == [
        (FIRST, "bond bond0", 3),
        (SECOND, "bond bond0", 3),
    ]


@pytest.mark.parametrize("text", [*CASES["unreadable"], "x" * (LONGEST_NETPLAN + 1)])
def test_a_file_that_cannot_be_read_is_named(text):
    found = netplan_files({PATH: text}, INTERFACES)
    (reason,) = found.unreadable
    assert reason.startswith(f"{PATH}:")
    assert found.definitions == ()


@pytest.mark.parametrize(
    "body", ["7", "{enp1s0f1np1: no}", "{enp1s0f1np1: {addresses: 3, mtu: x, match: [1]}}"]
)
def test_values_of_a_wrong_kind_are_left_out(body):
    found = netplan_files({PATH: f"network: {{ethernets: {body}, bonds: {body}}}"}, INTERFACES)
    assert found.given(FIRST) == found.unreadable == ()
