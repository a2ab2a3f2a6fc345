"""Breakages as far as they need no node: their list, what is kept, what netplan files become."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doctor_cases import NOT_PRODUCED

from spark_cluster.doctor import examine
from spark_cluster.errors import Failed, UsageError
from spark_cluster_lab import breakage
from spark_cluster_lab.breakages import link
from spark_cluster_lab.breakages.model import Breakage, give_back, keep

NETPLAN = Path(__file__).with_name("both_linked.yaml").read_text()


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """A node that is a folder, with what was run in it."""
    ran: list[list[str]] = []

    def run(argv: list[str], *, check: bool = True) -> Any:
        ran.append(argv)
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    return SimpleNamespace(name="spark2", root=tmp_path, run=run, ran=ran, lab=None)


def test_every_check_can_be_tried_or_has_a_reason():
    produced = {c for b in breakage.BREAKAGES.values() for c in b.checks}
    checks = {check.id for check in examine.ALL} | {examine.ID}
    assert produced | set(NOT_PRODUCED) == checks
    assert not produced & set(NOT_PRODUCED)


def test_names():
    assert breakage.find("mtu").node == "spark2"
    with pytest.raises(UsageError, match="no breakage is called mtuu") as error:
        breakage.find("mtuu")
    assert error.value.hint == "did you mean mtu?"


def test_a_node_keeps_what_is_replaced(node):
    (node.root / "etc").mkdir()
    (node.root / "etc/hosts").write_text("old\n")
    (node.root / "etc/hosts").chmod(0o640)
    keep(node, "x", "/etc/hosts").write_text("new\n")
    keep(node, "x", "/usr/local/sbin/tool").write_text("tool\n")
    give_back(node, "x")
    assert (node.root / "etc/hosts").read_text() == "old\n"
    assert (node.root / "etc/hosts").stat().st_mode & 0o777 == 0o640
    assert not (node.root / "usr/local/sbin/tool").exists()


def test_breaking_twice_and_repairing_twice(node):
    calls: list[str] = []
    one = Breakage("x", "", (), lambda _: calls.append("act"), lambda _: calls.append("undo"))
    assert (one.break_(node), one.break_(node), one.is_in(node)) == (True, False, True)
    assert (one.repair(node), one.repair(node), one.is_in(node)) == (True, False, False)
    assert calls == ["act", "undo"]


def test_what_cannot_be_broken_is_left_alone(node):
    with pytest.raises(Failed, match="nothing of the link is configured yet"):
        breakage.find("mtu").break_(node)
    assert not breakage.find("mtu").is_in(node)


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("one-subnet", "addresses: [192.168.177.120/24]", "192.168.178"),
        ("twin-without-address", "addresses: []", "192.168.178"),
        ("mtu", "mtu: 1500", "9000"),
        ("other-subnet", "addresses: [10.77.0.12/24]", "192.168.177"),
    ],
)
def test_edits_of_netplan(node, name, has, lacks):
    path = node.root / link.NETPLAN.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text(NETPLAN)
    breakage.find(name).break_(node)
    assert has in path.read_text()
    assert lacks not in path.read_text()
    assert "netplan apply" in node.ran[-1][2]
    breakage.find(name).repair(node)
    assert path.read_text() == NETPLAN


@pytest.mark.parametrize("name", ["docker-off", "docker-group", "earlyoom-off"])
def test_a_unit_that_is_not_there_cannot_be_broken(node, name):
    """What would undo it fails too: the error names the unit, and nothing counts as broken."""

    def run(argv: list[str], *, check: bool = True) -> Any:
        show = "systemctl show" in " ".join(argv)
        return SimpleNamespace(returncode=int(not show), stdout="not-found\n", stderr="no unit")

    node.run = run
    with pytest.raises(Failed, match=r"there is no (docker|earlyoom)\.service"):
        breakage.find(name).break_(node)
    assert not breakage.find(name).is_in(node)
