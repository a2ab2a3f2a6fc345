"""Package and Hold, against an apt that keeps real state in a file."""

import os
import time

import pytest

from spark_cluster.resources import Hold, Package
from spark_cluster.resources import package as module


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


def test_lists_are_refreshed_when_old_or_when_the_package_is_new(apt):
    old = time.time() - 90_000
    os.utime(apt.path("/var/lib/apt/lists/partial"), (old, old))
    apt.apply(Package("docker.io"))
    with apt.state("apt") as state:
        assert state.pop("updated")
        state["mirror"]["ray"] = ["2.60"]
    assert apt.apply(Package("ray")).verdict == "change"


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        (Package, "unattended-upgr (process 812), which holds /var/lib/dpkg/lock-frontend"),
        (Hold, "a lock: dpkg: error: dpkg frontend lock was locked"),
    ],
)
def test_lock_is_waited_for_and_its_holder_named(apt, monkeypatch, kind, held):
    with apt.state("apt") as state:
        state["locked"] = 2
    assert apt.apply(kind("docker.io")).verdict == "change"
    assert apt.progress.count(f"waiting for {held}") == (kind is Package)
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.0)
    with apt.state("apt") as state:
        state["locked"] = 99
    result = apt.apply(kind("docker-cli"))
    assert f" s for {held}" in result.error
    assert "run again" in result.error


def test_not_debian(node):
    node.bin.mkdir()
    host = node.host()
    host.search_path = str(node.bin)
    assert "no dpkg-query" in node.apply(Package("rsync"), host=host).error
    assert "no apt-mark" in node.apply(Hold("rsync"), host=host).error
