"""Package, against an apt that keeps real state in a file."""

import os
import time

import pytest

from spark_cluster.resources import Package
from spark_cluster.resources import package as module

DOCKER = Package("docker.io", also=("docker-cli",), makes=("command:docker", "unit:docker.service"))


@pytest.fixture
def apt(node, monkeypatch):
    node.install("apt")
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    with node.state("apt") as state:
        state["mirror"] = {"docker.io": ["28.1", "26.1"], "docker-cli": ["28.1"], "rsync": ["3.4"]}
        state["lists"] = dict(state["mirror"])
        state["installed"] = {"rsync": {"status": "ii", "version": "3.2"}}
    node.path("/var/lib/apt/lists/partial").mkdir(parents=True)
    return node


def test_absent_is_installed_in_one_call_and_then_left(apt):
    apt.must_change(DOCKER)
    installs = [c for c in apt.calls("apt") if "install" in c]
    assert len(installs) == 1
    assert installs[0][-2:] == ["docker.io", "docker-cli"]
    with apt.state("apt") as state:
        assert "updated" not in state
    before = len(apt.calls("apt"))
    assert apt.apply(DOCKER).verdict == "ok"
    assert [c[0] for c in apt.calls("apt")[before:]] == ["dpkg-query"]


def test_one_of_two_missing(apt):
    apt.apply(Package("docker.io"))
    apt.must_converge(DOCKER)


@pytest.mark.parametrize("status", ["rc", "iU", "iF", "un"])
def test_half_installed_is_not_installed(apt, status):
    with apt.state("apt") as state:
        state["installed"]["rsync"]["status"] = status
    apt.must_converge(Package("rsync"))


def test_version_up_and_down(apt):
    for version in ("26.1", "28.1", "26.1"):
        pinned = Package("docker.io", version=version)
        apt.must_converge(pinned)
    result = apt.apply(Package("docker.io", version="29.0"))
    assert "apt knows no package docker.io=29.0" in result.error
    assert "versions that it knows: 26.1, 28.1" in result.error


def test_any_version_that_begins_so(apt):
    with apt.state("apt") as state:
        state["lists"]["docker.io"] = state["mirror"]["docker.io"] = [
            "29.0",
            "28.1.2",
            "28.1",
            "2.8",
        ]
    pinned = Package("docker.io", version="28.*")
    assert apt.apply(pinned).verdict == "change"
    with apt.state("apt") as state:
        assert state["installed"]["docker.io"]["version"] == "28.1.2", "the newest of them"
        state["installed"]["docker.io"]["version"] = "28.1"
    assert apt.apply(pinned).verdict == "ok"
    assert apt.apply(Package("docker.io", version="29*")).verdict == "change"
    assert (
        "apt knows no package docker.io=30*" in apt.apply(Package("docker.io", version="30*")).error
    )


def test_lists_are_refreshed_when_old_or_when_the_package_is_new(apt):
    old = time.time() - 90_000
    os.utime(apt.path("/var/lib/apt/lists/partial"), (old, old))
    apt.apply(Package("docker.io"))
    with apt.state("apt") as state:
        assert state.pop("updated")
        state["mirror"]["ray"] = ["2.60"]
    assert apt.apply(Package("ray")).verdict == "change"


def test_lists_older_than_the_mirror(apt):
    with apt.state("apt") as state:
        state["mirror"]["docker.io"] = ["28.2"]
    assert apt.apply(Package("docker.io")).verdict == "change"
    with apt.state("apt") as state:
        assert state["installed"]["docker.io"]["version"] == "28.2"


def test_no_such_package_names_what_is_near(apt):
    result = apt.apply(Package("docker-cly"))
    assert "apt knows no package docker-cly" in result.error
    assert "did you mean docker-cli" in result.error


def test_virtual_package_is_no_package(apt):
    with apt.state("apt") as state:
        state["mirror"]["mail-transport-agent"] = []
    assert (
        "apt knows no package mail-transport-agent"
        in apt.apply(Package("mail-transport-agent")).error
    )


def test_offline(apt):
    with apt.state("apt") as state:
        state["offline"] = True
    assert "the package mirror cannot be reached" in apt.apply(Package("docker.io")).error
    result = apt.apply(Package("brand-new"))
    assert "apt does not know brand-new, and its lists could not be refreshed" in result.error
    assert "Temporary failure resolving 'mirror'" in result.error


def test_lock_is_waited_for_and_its_holder_named(apt, monkeypatch):
    with apt.state("apt") as state:
        state["locked"] = 2
    assert apt.apply(Package("docker.io")).verdict == "change"
    held = "unattended-upgr (process 812), which holds /var/lib/dpkg/lock-frontend"
    assert apt.progress.count(f"waiting for {held}") == 1
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.0)
    with apt.state("apt") as state:
        state["locked"] = 99
    result = apt.apply(Package("docker-cli"))
    assert f" s for {held}" in result.error
    assert "run again" in result.error


def test_lock_of_the_lists(apt):
    with apt.state("apt") as state:
        state["locked"] = 1
        state["lists"] = {}
    assert apt.apply(Package("docker.io")).verdict == "change"


def test_interrupted_dpkg_is_repaired_and_said(apt):
    with apt.state("apt") as state:
        state["interrupted"] = True
    assert apt.apply(Package("docker.io")).verdict == "change"
    assert any("repairing with dpkg --configure -a" in line for line in apt.progress)
    with apt.state("apt") as state:
        state["interrupted"] = state["broken_for_good"] = True
    result = apt.apply(Package("docker-cli"))
    assert "repairing it failed" in result.error
    assert "nvidia-dkms" in result.error


def test_held_package_is_not_touched(apt):
    with apt.state("apt") as state:
        state["installed"]["docker.io"] = {"status": "hi", "version": "26.1"}
    assert apt.apply(Package("docker.io")).verdict == "ok"
    result = apt.apply(Package("docker.io", version="28.1"))
    assert "docker.io is held (apt-mark hold) at 26.1" in result.error
    assert "apt-mark unhold docker.io" in result.error
    assert apt.apply(Package("docker.io", state="absent")).verdict == "failed"
    pinned = Package("docker.io", version="28.1", change_held=True)
    assert [apt.apply(pinned).verdict for _ in "ab"] == ["change", "ok"]


def test_nothing_else_is_removed(apt):
    with apt.state("apt") as state:
        state["conflicts"] = {"docker.io": ["docker-ce", "containerd.io"]}
        state["needed_by"] = {"rsync": ["backup-tool"]}
        state["installed"]["backup-tool"] = {"status": "ii", "version": "1"}
    result = apt.apply(Package("docker.io"))
    assert "it would remove packages that are there: docker-ce containerd.io" in result.error
    result = apt.apply(Package("rsync", state="absent"))
    assert "removing rsync would remove backup-tool too" in result.error
    both = Package("rsync", also=("backup-tool",), state="absent")
    apt.must_converge(both)


def test_full_disk_and_a_package_that_cannot_be_configured(apt):
    with apt.state("apt") as state:
        state["full"] = True
    assert "the disk is full" in apt.apply(Package("docker.io")).error
    with apt.state("apt") as state:
        state["full"], state["unconfigurable"] = False, ["docker.io"]
    assert "docker.io is 'unpacked', not 'present'" in apt.apply(Package("docker.io")).error


def test_not_debian(node):
    node.bin.mkdir()
    host = node.host()
    host.search_path = str(node.bin)
    assert "no dpkg-query" in node.apply(Package("rsync"), host=host).error
