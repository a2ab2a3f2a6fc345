"""The link's addresses on nodes whose netplan files others have written: all of them stay.

Each test says first what a run would change, by `--check`, and then that it changed just that.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest
from laptop import CommandLine, root
from netplan_files import FIRST, LAYOUTS, PLAYBOOK, SECOND, Layout

from spark_cluster.lab import Lab, LabNode
from spark_cluster.node import paths

pytestmark = pytest.mark.lab

NETWORK = ("provision", "--tags", "network")
LINE = re.compile(
    r"^ +(\S+) +(?:would change|changed) (\S+)  +(.*?)(?:  +[0-9.]+ s)?$", re.MULTILINE
)
POOL = {FIRST: "192.168.177.12/24", SECOND: "192.168.178.12/24"}
"""What the second node gets."""

BOTH_FREE = f"""
rm -f /etc/netplan/[4-9]*
netplan apply
for interface in {FIRST} {SECOND}; do ip address flush dev $interface scope global; done
"""


@pytest.fixture(scope="module")
def laptop(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    lab.up(2, fresh=True)
    yield CommandLine(lab, tmp_path_factory.mktemp("laptop"))


@pytest.fixture
def node(laptop: CommandLine) -> LabNode:
    """The second node; neither of them has an address on the link."""
    laptop.settings = {}
    for one in laptop.lab.nodes:
        root(one, BOTH_FREE)
    return laptop.lab.nodes[1]


def write(node: LabNode, layout: Layout) -> None:
    for path, text in layout.files.items():
        file = node.root / path.lstrip("/")
        file.write_text(text)
        file.chmod(0o600)


def unchanged(node: LabNode, layout: Layout) -> bool:
    return all((node.root / p.lstrip("/")).read_text() == t for p, t in layout.files.items())


def changes(done: subprocess.CompletedProcess[str]) -> set[tuple[str, ...]]:
    """Return node, resource and what of it, of all that a run changed or would change."""
    assert done.returncode == 0, done.stdout + done.stderr
    return {match.groups() for match in LINE.finditer(done.stdout)}


def run_as_foretold(laptop: CommandLine) -> set[tuple[str, ...]]:
    """Run the role after its check, and again; return what it changed."""
    foretold = changes(laptop(*NETWORK, "--check"))
    assert changes(laptop(*NETWORK)) == foretold
    assert changes(laptop(*NETWORK)) == set()
    return foretold


def addresses(node: LabNode) -> dict[str, list[str]]:
    """Return interface to its IPv4 addresses, link-local ones left out."""
    rows = json.loads(root(node, "ip -j -4 address show scope global"))
    return {
        row["ifname"]: [f"{i['local']}/{i['prefixlen']}" for i in row["addr_info"]]
        for row in rows
        if row["ifname"] in (FIRST, SECOND)
    }


def test_our_file_alone(laptop, node):
    changed = run_as_foretold(laptop)
    assert {(name, what) for name, what, _ in changed} == {
        (one.name, f"Netplan:{paths.NETPLAN}") for one in laptop.lab.nodes
    }
    assert addresses(node) == {name: [address] for name, address in POOL.items()}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_addresses_of_others_stay(laptop, node, layout):
    """P01: the user's file was overwritten, and `--check` foretold one change of two."""
    write(node, layout)
    root(node, "netplan apply")
    changed = run_as_foretold(laptop)
    assert unchanged(node, layout)
    assert addresses(node) == {name: [a] for name, a in (POOL | layout.given).items()}
    ours = set(POOL) - set(layout.given)
    told = "".join(what for name, _, what in changed if name == node.name)
    assert bool(told) == bool(ours)
    assert all(layout.places[name] in told for name in layout.places if ours)


def test_addresses_that_are_not_in_force_yet(laptop, node):
    layout = LAYOUTS["block lists"]
    write(node, layout)
    ((_, _, what),) = {change for change in run_as_foretold(laptop) if change[0] == node.name}
    assert f"{FIRST} none → 192.168.100.10/24" in what
    assert addresses(node) == {name: [address] for name, address in layout.given.items()}
    assert not (node.root / paths.NETPLAN.lstrip("/")).exists()


def test_our_file_of_another_name_is_replaced(laptop, node):
    """Until now it had the playbook's name."""
    laptop.settings = {"network": {"netplan_file": PLAYBOOK}}
    run_as_foretold(laptop)
    assert (node.root / PLAYBOOK.lstrip("/")).exists()
    laptop.settings = {}
    changed = run_as_foretold(laptop)
    assert {what for _, what, _ in changed} == {f"Netplan:{paths.NETPLAN}", f"File:{PLAYBOOK}"}
    assert addresses(node) == {name: [address] for name, address in POOL.items()}


def test_what_is_refused_is_refused_before_anything_is_changed(laptop, node):
    layout = LAYOUTS["block lists"]
    write(node, layout)
    root(node, "netplan apply")
    laptop.settings = {"network": {"existing_addresses": "refuse"}}
    for words in (NETWORK, (*NETWORK, "--check")):
        done = laptop(*words)
        assert done.returncode == 1
        assert layout.places[FIRST] in done.stdout + done.stderr
        assert not (node.root / paths.NETPLAN.lstrip("/")).exists()
    assert unchanged(node, layout)
    assert addresses(node) == {name: [address] for name, address in layout.given.items()}


def test_revert_leaves_the_files_of_others(laptop, node):
    """P01: `revert` says which command brings the old addresses into force."""
    layout = LAYOUTS["one interface without an address"]
    write(node, layout)
    root(node, "netplan apply")
    run_as_foretold(laptop)
    runs = json.loads(laptop("history", "--json").stdout)["runs"]
    made = next(run["run"] for run in runs if run["changed"])
    done = laptop("revert", made)
    assert done.returncode == 0, done.stderr
    told = re.search(r"exec -b -l NODE -- netplan apply", re.sub(r"\s+", " ", done.stdout))
    assert told, done.stdout
    assert not (node.root / paths.NETPLAN.lstrip("/")).exists()
    assert unchanged(node, layout)
    applied = laptop("exec", "-b", "-l", node.name, "--", "netplan", "apply")
    assert applied.returncode == 0, applied.stderr
    assert addresses(node) == {name: [address] for name, address in layout.given.items()}
