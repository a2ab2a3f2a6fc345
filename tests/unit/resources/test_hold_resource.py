"""Hold, against an apt-mark that keeps real state in a file."""

import pytest

from spark_cluster.resources import Hold
from spark_cluster.resources import package as module


@pytest.fixture
def apt(node, monkeypatch):
    node.install("apt")
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    with node.state("apt") as state:
        state["mirror"] = state["lists"] = {"driver": ["580"], "updater": ["1"], "kernel": ["7.0"]}
        state["installed"] = {"driver": {"status": "ii", "version": "580"}}
    return node


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
