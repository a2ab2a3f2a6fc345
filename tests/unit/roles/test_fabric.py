"""The link proven with traffic: which packets, and what their loss means."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from role_samples import a_spark, together

from spark_cluster.engine import link_check
from spark_cluster.errors import VerificationFailed
from spark_cluster.runner.session import Output

BW = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      3739900          0.00               {gbits}                0.186973
---------------------------------------------------------------------------------------
"""


class Node:
    """A node's agent: what `status` says of a command, and which commands there were."""

    def __init__(self, status, output="") -> None:
        self.status, self.output, self.ran = status, output, []

    def run(self, argv, *, timeout=60.0):
        self.ran.append(argv)
        return Output(self.status(argv), self.output, "")

    def submit(self, op, *, argv=(), commands=None, timeout=60.0):
        if op == "gather":
            told = {name: vars(self.run(argv)) for name, argv in commands.items()}
            return SimpleNamespace(wait=lambda: {"commands": told})
        done = self.run(argv)
        return SimpleNamespace(wait=lambda: {"status": done.status})


@pytest.fixture
def pair():
    return together(a_spark(), a_spark(1))


def size(argv):
    return int(argv[argv.index("-s") + 1]) + link_check.HEADERS


def test_a_full_packet_that_may_not_be_cut(pair):
    argv = link_check.ping_argv(link_check.hops(pair)[0], 9000)
    assert argv[argv.index("-M") + 1] == "do"
    assert argv[argv.index("-s") + 1] == "8972"
    assert argv[-3:] == ["-I", "192.168.177.11", "192.168.177.12"]


def verify(node, hops):
    return link_check.verify(hops, {"spark1": node})


def test_all_well(pair):
    node = Node(lambda _: 0)
    assert verify(node, link_check.hops(pair)[:2]) == []
    assert len(node.ran) == 4, "a small and a full-size packet over each twin"


def test_large_packets_are_lost(pair):
    node = Node(lambda argv: int(size(argv) > 1500))
    (failure,) = verify(node, link_check.hops(pair)[:1])
    assert "packets of 9000 bytes do not get from spark1 enp1s0f1np1" in failure.message
    assert "MTU" in failure.hint


def test_all_packets_are_lost(pair):
    node = Node(lambda _: 1, "1 packets transmitted, 0 received, 100% packet loss\n")
    failures = verify(node, link_check.hops(pair)[:2])
    assert [f.message.rpartition(": ")[2] for f in failures] == [
        "1 packets transmitted, 0 received, 100% packet loss"
    ] * 2
    assert failures[0].where == "spark1"


def test_a_node_without_ping(pair):
    session = SimpleNamespace(
        submit=lambda op, *, commands, timeout: SimpleNamespace(
            wait=lambda: {"commands": dict.fromkeys(commands)}
        )
    )
    (failure,) = verify(session, link_check.hops(pair)[:1])
    assert failure.message.endswith("there is no ping on the node")


def test_the_first_packet_may_be_lost(pair):
    tries = iter([0, 1, 0, 0])
    assert verify(Node(lambda _: next(tries)), link_check.hops(pair)[:1]) == []


def test_bandwidth(pair, monkeypatch):
    monkeypatch.setattr(link_check.time, "sleep", lambda _: None)
    server, client = Node(lambda _: 0), Node(lambda _: 0, BW.format(gbits="97.86"))
    hop = link_check.hops(pair)[0]
    assert link_check.measure(server, client, hop) == 97.86
    assert client.ran == [[*server.ran[0], "192.168.177.12"]]
    assert server.ran[0][:5] == ["ib_write_bw", "-d", "rocep1s0f1", "-x", "3"]


def test_bandwidth_that_cannot_be_measured(pair, monkeypatch):
    monkeypatch.setattr(link_check.time, "sleep", lambda _: None)
    hop = link_check.hops(pair)[0]
    with pytest.raises(VerificationFailed, match="Couldn't allocate MR"):
        link_check.measure(Node(lambda _: 0), Node(lambda _: 1, "Couldn't allocate MR\n"), hop)


@pytest.mark.parametrize(
    ("gbits", "verdict"), [(111.7, "good"), (92.0, "good"), (60.0, "low"), (13.0, "degraded")]
)
def test_verdicts(pair, gbits, verdict):
    assert link_check.Bandwidth(link_check.hops(pair)[0], gbits).verdict == verdict
    assert link_check.parse_bandwidth(BW.format(gbits=gbits)) == gbits
    assert link_check.parse_bandwidth("nothing") is None
