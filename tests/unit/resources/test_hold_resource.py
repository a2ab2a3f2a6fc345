"""Hold, against an apt-mark that keeps real state in a file."""

import pytest

from spark_cluster.resources import Hold, Package
from spark_cluster.resources import package as module


@pytest.fixture
def apt(node, monkeypatch):
    node.install("apt")
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    with node.state("apt") as state:
        state["mirror"] = state["lists"] = {"driver": ["580"], "updater": ["1"], "kernel": ["7.0"]}
        state["installed"] = {"driver": {"status": "ii", "version": "580"}}
    return node


def held(apt):
    with apt.state("apt") as state:
        return state["held"]


def test_held_installed_or_not_and_then_left(apt):
    hold = Hold("driver", also=("updater",))
    apt.must_change(hold)
    assert held(apt) == ["driver", "updater"]
    apt.must_be_ok(hold)
    assert [c for c in apt.calls("apt") if "hold" in c] == [
        ["apt-mark", "hold", "driver", "updater"]
    ]


def test_drift_is_repaired_and_others_are_left(apt):
    apt.apply(Hold("driver", also=("updater",)))
    with apt.state("apt") as state:
        state["held"] = ["kernel", "updater"]
    assert apt.apply(Hold("driver", also=("updater",))).verdict == "change"
    assert held(apt) == ["driver", "kernel", "updater"]
    assert apt.calls("apt")[-2][2:] == ["driver"]


def test_released(apt):
    apt.apply(Hold("driver"))
    free = Hold("driver", held=False)
    assert apt.check(free).verdict == "change"
    assert [apt.apply(free).verdict for _ in "ab"] == ["change", "ok"]
    assert held(apt) == []
    assert apt.apply(Hold("nobody-knows-it", held=False)).verdict == "ok"


def test_a_package_that_apt_does_not_know(apt):
    result = apt.apply(Hold("mlnx-fw-updater"))
    assert "apt knows no package mlnx-fw-updater" in result.error
    assert "if_known=True" in result.error
    assert apt.apply(Hold("mlnx-fw-updater", if_known=True)).verdict == "ok"
    result = apt.check(
        Package("driver", version="581", makes=("package:mlnx-fw-updater",)),
        Hold("mlnx-fw-updater"),
    )
    assert (result.verdict, result.reason) == ("unknown", "after: Package:driver")


def test_lock_is_waited_for(apt, monkeypatch):
    with apt.state("apt") as state:
        state["locked"] = 2
    assert apt.apply(Hold("driver")).verdict == "change"
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.0)
    with apt.state("apt") as state:
        state["locked"] = 99
    result = apt.apply(Hold("updater"))
    assert " s for a lock: dpkg: error: dpkg frontend lock was locked" in result.error


def test_not_debian(node):
    node.bin.mkdir()
    host = node.host()
    host.search_path = str(node.bin)
    assert "no apt-mark" in node.apply(Hold("driver"), host=host).error
