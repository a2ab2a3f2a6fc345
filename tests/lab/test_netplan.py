"""The link's addresses on nodes whose netplan files others have written: all of them stay.

Each test says first what a run would change, by `--check`, and then that it changed just that.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commandline import CommandLine
from netplan_files import FIRST, LAYOUTS, PLAYBOOK, SECOND, Layout

from spark_cluster.node import paths
from spark_cluster_lab import Lab, LabNode

pytestmark = pytest.mark.lab

NETWORK = ("provision", "--tags", "network")
POOL = {FIRST: "192.168.177.12/24", SECOND: "192.168.178.12/24"}
"""What the second node gets."""

BOTH_FREE = f"""
rm -f /etc/netplan/[4-9]*
netplan apply
for interface in {FIRST} {SECOND}; do
    ip address flush dev $interface scope global
    ip link set $interface mtu 1500
done
"""


@pytest.fixture(scope="module", autouse=True)
def fresh_nodes(lab: Lab) -> Iterator[None]:
    lab.up(2, fresh=True)
    lab.trust()
    yield
    for node in lab.nodes:
        root(node, BOTH_FREE)


@pytest.fixture
def user(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def node(lab: Lab) -> LabNode:
    """The second node; neither of them has an address on the link."""
    for one in lab.nodes:
        root(one, BOTH_FREE)
    return lab.nodes[1]


def with_settings(user: CommandLine, **settings: str) -> CommandLine:
    def change(document: dict[str, Any]) -> None:
        document["settings"] = {**document.get("settings", {}), "network": settings}

    return user.with_inventory("with-settings", change)


def root(node: LabNode, shell: str) -> str:
    return node.run(["sh", "-c", shell]).stdout.strip()


def write(node: LabNode, layout: Layout) -> None:
    for path, text in layout.files.items():
        file = node.root / path.lstrip("/")
        file.write_text(text)
        file.chmod(0o600)


def unchanged(node: LabNode, layout: Layout) -> bool:
    return all((node.root / p.lstrip("/")).read_text() == t for p, t in layout.files.items())


def changes(user: CommandLine, *words: str) -> dict[str, str]:
    """Run the role; return `NODE RESOURCE` to what it made of that, or would make, and its remark.

    What was there before is left out: a link-local address comes when it likes.
    """
    user(*NETWORK, *words)
    events = map(json.loads, user.record.read_text().splitlines())
    return {
        f"{e['node']} {e['resource']}": f"{ {k: now for k, (_, now) in e['changes'].items()} } "
        f"{e['reason']}"
        for e in events
        if e["event"] == "Result" and e["verdict"] == "change"
    }


def run_as_foretold(user: CommandLine) -> dict[str, str]:
    """Run the role after its check, and again; return what it changed."""
    foretold = changes(user, "--check")
    assert changes(user) == foretold
    assert changes(user) == {}
    return foretold


def mtu(node: LabNode, interface: str) -> int:
    return int(root(node, f"cat /sys/class/net/{interface}/mtu"))


def addresses(node: LabNode) -> dict[str, list[str]]:
    """Return interface to its IPv4 addresses, link-local ones left out."""
    rows = json.loads(root(node, "ip -j -4 address show scope global"))
    return {
        row["ifname"]: [f"{i['local']}/{i['prefixlen']}" for i in row["addr_info"] if i]
        for row in rows
        if row["ifname"] in (FIRST, SECOND)
    }


def test_our_file_alone(user, lab, node):
    assert set(run_as_foretold(user)) == {f"{n.name} Netplan:{paths.NETPLAN}" for n in lab.nodes}
    assert addresses(node) == {name: [address] for name, address in POOL.items()}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_addresses_of_others_stay(user, node, layout):
    """P01: the user's file was overwritten, and `--check` foretold one change of two."""
    write(node, layout)
    root(node, "netplan apply")
    told = run_as_foretold(user).get(f"{node.name} Netplan:{paths.NETPLAN}", "")
    assert unchanged(node, layout)
    assert addresses(node) == {name: [a] for name, a in (POOL | layout.given).items()}
    assert all(place in told for place in layout.places.values() if told)
    assert {mtu(node, name) for name in POOL} == {9000}


def test_addresses_that_are_not_in_force_yet(user, node):
    layout = LAYOUTS["block lists"]
    write(node, layout)
    run_as_foretold(user)
    assert addresses(node) == {name: [address] for name, address in layout.given.items()}
    assert "addresses" not in (node.root / paths.NETPLAN.lstrip("/")).read_text()


def test_our_file_of_another_name_is_replaced(user, node):
    """Until now it had the playbook's name."""
    run_as_foretold(with_settings(user, netplan_file=PLAYBOOK))
    assert (node.root / PLAYBOOK.lstrip("/")).exists()
    changed = run_as_foretold(user)
    assert {name.split()[1] for name in changed} == {f"Netplan:{paths.NETPLAN}", f"File:{PLAYBOOK}"}
    assert addresses(node) == {name: [address] for name, address in POOL.items()}


def test_revert_leaves_the_files_of_others(user, node):
    """P01: `revert` says which command brings the old addresses into force."""
    layout = LAYOUTS["one interface without an address"]
    write(node, layout)
    root(node, "netplan apply")
    user(*NETWORK)
    said = user("revert", user.record.stem).printed
    command = "`spark-cluster exec -b -l spark1,spark2 -- netplan apply`"
    assert command in re.sub(r"\s+", " ", said)
    assert not (node.root / paths.NETPLAN.lstrip("/")).exists()
    assert unchanged(node, layout)
    user("exec", "-b", "-l", node.name, "--", "netplan", "apply")
    assert addresses(node) == {name: [address] for name, address in layout.given.items()}
