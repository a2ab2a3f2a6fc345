"""The operation `load_guard` on a scratch node whose systemd really runs and ends units."""

import json
from typing import Any

import pytest
from factories import put

from spark_cluster.agent import operations
from spark_cluster.agent.messages import check, reply_to
from spark_cluster.node import load_watch
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError

BLOCKS = "Node 0, zone Normal 0 1\n"
TOLD = {"server": "spark-vllm", "programs": ["spark-vllm", "spark-ray"], "limit_s": 600}


@pytest.fixture
def host(systemd: Any) -> Host:
    put(systemd.root / "proc/meminfo", "MemAvailable: 99999999 kB\nMemFree: 99999999 kB\n")
    put(systemd.root / "proc/buddyinfo", BLOCKS)
    put(systemd.root / "proc/pressure/memory", "full avg10=7.50 avg60=0.00 avg300=0.00 total=1\n")
    return Host(root=systemd.root)


def ask(host: Host, what: str, **told: Any) -> dict[str, Any]:
    request = {"op": "load_guard", "what": what, **told}
    reply = operations.act(host, request)
    check(reply, reply_to("load_guard", request))
    return reply


def test_memory_is_prepared(host):
    """P07: caches are dropped and memory is compacted; what comes of it is told."""
    (host.root / "proc/sys/vm").mkdir(parents=True)
    told = ask(host, "prepare")
    assert (told["pressure"], told["buddyinfo"], told["problem"]) == (7.5, BLOCKS, "")
    assert (host.root / "proc/sys/vm/drop_caches").read_text() == "3"
    assert (host.root / "proc/sys/vm/compact_memory").read_text() == "1"


def test_a_kernel_that_refuses_is_told(host):
    """P07: a start goes on, and the user knows that the caches are still there."""
    (host.root / "proc/buddyinfo").unlink()
    told = ask(host, "prepare")
    assert told["buddyinfo"] == ""
    assert "/proc/sys/vm/drop_caches: No such file or directory" in told["problem"]


def test_a_guard_is_a_unit_of_which_nothing_stays(host, systemd):
    """P06: the next run takes the place of a guard that an earlier one has left."""
    ask(host, "begin", **TOLD)
    (unit,) = systemd.units()
    assert unit["argv"][-2] == f"{load_watch.__name__}:main"
    settings = json.loads(unit["argv"][-1])
    assert settings == {**TOLD, "health": "", "root": str(host.root)}
    reason = put(host.root / load_watch.reason_file("spark-vllm").lstrip("/"), "{}")
    ask(host, "begin", **TOLD)
    assert systemd.units()[0]["starts"] == 2
    assert not reason.exists()
    put(reason, "{}")
    ask(host, "end", server="spark-vllm")
    assert not reason.parent.exists()


def test_without_systemd_there_is_no_guard(host, systemd):
    (host.root / "run/systemd/system").rmdir()
    ask(host, "begin", **TOLD)
    assert systemd.units() == []


@pytest.mark.parametrize("name", ["", "../x", "a b", "x/y", "-x", "spark-vllm\n"])
def test_names_are_those_of_programs(host, name):
    """P06: the name of a server names a unit and a file."""
    for told in ({**TOLD, "server": name}, {**TOLD, "programs": [name]}):
        with pytest.raises(ResourceError, match="is not the name of one of our programs"):
            ask(host, "begin", **told)
    with pytest.raises(ResourceError, match="is not the name of one of our programs"):
        ask(host, "end", server=name)
