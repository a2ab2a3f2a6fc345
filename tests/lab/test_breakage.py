"""Breakages as far as they need no node: their list, what is kept, what netplan files become."""

from __future__ import annotations

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
from spark_cluster_lab.standins import fwupdmgr, hardware, ibdev2netdev, rdma, swapoff
from spark_cluster_lab.standins.state import DEFAULTS, load, save
from spark_cluster_lab.standins.sysfs import gid_table

NETPLAN = """\
network:
  version: 2
  ethernets:
    enp1s0f1np1:
      addresses: [192.168.177.12/24]
      mtu: 9000
      dhcp4: false
    enP2p1s0f1np1:
      addresses: [192.168.178.12/24]
      mtu: 9000
      dhcp4: false
"""


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """A node that is a folder, with what was run in it."""
    ran: list[list[str]] = []

    def run(argv: list[str], *, check: bool = True) -> Any:
        ran.append(argv)
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    return SimpleNamespace(name="spark2", root=tmp_path, run=run, ran=ran, lab=None)


def test_every_check_can_be_tried_or_has_a_reason() -> None:
    produced = {c for b in breakage.BREAKAGES.values() for c in b.checks}
    checks = {check.id for check in examine.ALL} | {examine.ID}
    assert produced | set(NOT_PRODUCED) == checks
    assert not produced & set(NOT_PRODUCED)


def test_names() -> None:
    assert breakage.find("mtu").node == "spark2"
    with pytest.raises(UsageError, match="no breakage is called mtuu") as error:
        breakage.find("mtuu")
    assert error.value.hint == "did you mean mtu?"


def test_a_node_keeps_what_is_replaced(node: Any) -> None:
    (node.root / "etc").mkdir()
    (node.root / "etc/hosts").write_text("old\n")
    (node.root / "etc/hosts").chmod(0o640)
    keep(node, "x", "/etc/hosts").write_text("new\n")
    keep(node, "x", "/usr/local/sbin/tool").write_text("tool\n")
    give_back(node, "x")
    assert (node.root / "etc/hosts").read_text() == "old\n"
    assert (node.root / "etc/hosts").stat().st_mode & 0o777 == 0o640
    assert not (node.root / "usr/local/sbin/tool").exists()


def test_breaking_twice_and_repairing_twice(node: Any) -> None:
    calls: list[str] = []
    one = Breakage("x", "", (), lambda _: calls.append("act"), lambda _: calls.append("undo"))
    assert (one.break_(node), one.break_(node), one.is_in(node)) == (True, False, True)
    assert (one.repair(node), one.repair(node), one.is_in(node)) == (True, False, False)
    assert calls == ["act", "undo"]


def test_what_cannot_be_broken_is_left_alone(node: Any) -> None:
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
def test_edits_of_netplan(node: Any, name: str, has: str, lacks: str) -> None:
    path = node.root / link.NETPLAN.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text(NETPLAN)
    breakage.find(name).break_(node)
    assert has in path.read_text()
    assert lacks not in path.read_text()
    assert "netplan apply" in node.ran[-1][2]
    breakage.find(name).repair(node)
    assert path.read_text() == NETPLAN


# --- the stand-ins that breakages need --------------------------------------------------------


def test_a_connectx_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (ibdev2netdev, rdma):
        monkeypatch.setattr(module, "load", lambda: DEFAULTS | {"connectx_present": False})
        assert module.main(["link"]) == 0
    assert capsys.readouterr().out == ""


def test_gid_tables_without_roce_v2() -> None:
    kinds = {kind for _, kind in gid_table("4e:bb:47:00:01:01", ["10.0.0.1"], roce_v2=False)}
    assert kinds == {"IB/RoCE v1", ""}


def test_meminfo_has_what_is_added() -> None:
    real = "MemTotal: 1 kB\nCmaTotal:       0 kB\n"
    shown = hardware.meminfo(DEFAULTS | {"meminfo": {"CmaTotal": 64, "CmaFree": 70}}, real, 0)
    assert shown.splitlines()[1:] == ["CmaTotal:             64 kB", "CmaFree:              70 kB"]


def test_swaps() -> None:
    assert len(hardware.swaps(dict(DEFAULTS)).splitlines()) == 2
    assert len(hardware.swaps(DEFAULTS | {"swap_total_kb": 0}).splitlines()) == 1


def test_swapoff_knows_the_nodes_own_swap_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    monkeypatch.setattr(swapoff, "save", lambda changes: save(changes, state))
    monkeypatch.setattr(swapoff, "load", lambda: dict(DEFAULTS))
    monkeypatch.setattr(swapoff, "ask_for_refresh", lambda: None)
    assert swapoff.main(["/dev/sda2"]) == 4
    assert not state.exists()
    assert swapoff.main(["/swap.img"]) == 0
    assert state.read_text() == '{"swap_total_kb": 0}'
    assert "failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "changes", "status", "said"),
    [
        (["get-devices", "--json"], {}, 0, '"Version": "28.45.4028"'),
        (["get-history", "--json"], {}, 2, "No history"),
        (["get-history"], {"firmware_update_error": "expected 0x1 and got 0x0"}, 0,
         "Update State:       Failed"),
        (["get-history", "--json"], {"firmware_update_error": "expected"}, 0, '"UpdateState": 3'),
        (["get-updates", "--json"], {}, 2, "No updatable devices"),
        (["get-updates", "--json"], {"firmware_offers": {"USB-PD": "0x2"}}, 0, '"Version": "0x2"'),
        (["update", "--json"], {}, 2, "No updatable devices"),
    ],
)  # fmt: skip
def test_fwupdmgr(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    changes: dict[str, Any],
    status: int,
    said: str,
) -> None:
    monkeypatch.setattr(fwupdmgr, "load", lambda: DEFAULTS | changes)
    assert fwupdmgr.main(argv) == status
    assert said in capsys.readouterr().out


def test_fwupdmgr_flashes_as_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    save({"firmware_offers": {"USB-PD": "0x2", "Embedded Controller": "0x9"}}, state)
    monkeypatch.setattr(fwupdmgr, "load", lambda: load(state))
    monkeypatch.setattr(fwupdmgr, "save", lambda changes: save(changes, state))
    usb = fwupdmgr.identifier("USB-PD")
    assert fwupdmgr.main(["update", usb, "--assume-yes", "--json"]) == 0
    versions = {device["Name"]: device["Version"] for device in fwupdmgr.devices(load(state))}
    assert versions["USB-PD"] == "0x2"
    assert versions["Embedded Controller"] == fwupdmgr.VERSIONS["Embedded Controller"]
    assert list(load(state)["firmware_offers"]) == ["Embedded Controller"]
    assert fwupdmgr.main(["update", usb]) == 2
