"""The nodes live: rows as they come, nodes that are lost and come back, what is drawn."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from factories import make_inventory
from piped_cluster import Dials
from telemetry_node import nvidia_smi, put_system
from waiting import until

from spark_cluster.bench import sampling
from spark_cluster.bench import sampling as sampling_module
from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.sampling import LiveState, Lost, Sampling, metrics_url, warnings
from spark_cluster.bench.telemetry import TelemetryRow
from spark_cluster.cli.terminal import Console
from spark_cluster.cli.top import line, picture
from spark_cluster.errors import Failed, Unreachable

NOON = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
TWO = """\
nodes:
  spark1: {address: 192.0.2.1, roles: [head]}
  spark2: {address: 192.0.2.2}
"""
FULL = {
    "sm_clock_mhz": 2411.0, "power_w": 45.1, "temperature_c": 62.0, "throttle": "",
    "utilisation": 96.0, "mem_available_mib": 112345, "gpu_mem_mib": 102843,
    "rdma_rx_bytes_s": 1.23e10, "rdma_tx_bytes_s": 9.98e8, "net_rx_bytes_s": 9.99e8,
    "net_tx_bytes_s": 9.99e8, "running": 10, "waiting": 100, "kv_usage": 1.0, "acceptance": 0.71,
    "prompt_tps": 12345.0, "generation_tps": 1153.2,
    "processes": (ProcessMemory(pid=2065247, name="ray::RayWorkerWrapper.__ray_call__" * 3,
                                used_mib=102843),),
}  # fmt: skip


def row(node="spark1", **more):
    return TelemetryRow(NOON, node, **more)


def drawn(live, width=80):
    out = io.StringIO()
    Console(file=out, width=width).print(picture(live))
    return out.getvalue()


def lost(node="spark1", text="no answer"):
    return Lost(node, Unreachable(text, where=node))


# -- the state ------------------------------------------------------------------------------------


def test_a_loss_is_news_once_and_a_row_ends_it(monkeypatch):
    live = LiveState(["spark1", "spark2"], 1.0)
    assert live.take(row())
    assert [live.take(lost()), live.take(lost()), live.take(lost(text="else"))] == [
        True,
        False,
        True,
    ]
    assert live.trouble(live.nodes["spark1"]) == "else; connecting again"
    live.take(row())
    assert live.trouble(live.nodes["spark1"]) == ""
    assert live.trouble(live.nodes["spark2"]) == "connecting"
    monkeypatch.setattr(sampling, "SILENT_S", -1.0)
    silent = LiveState(["spark1"], -1.0)
    silent.take(row())
    assert silent.trouble(silent.nodes["spark1"]) == "no answer for 0 s"


def test_warnings():
    assert warnings(row(throttle="hw_slowdown,sw_power_cap")) == [
        "throttled: hw_slowdown, sw_power_cap"
    ]
    assert warnings(row(utilisation=96.0, sm_clock_mhz=611.0)) == [
        "SM clock under 1.5 GHz under load"
    ]
    assert warnings(row(utilisation=0.0, sm_clock_mhz=208.0, swap_bytes_s=1.0)) == ["swapping"]


# -- what is drawn --------------------------------------------------------------------------------


def test_two_nodes_fit_80_columns():
    live = LiveState(["spark1", "a-node-with-a-long-name"], 1.0)
    live.take(row(**{**FULL, "throttle": "hw_slowdown"}))
    live.take(row("a-node-with-a-long-name", **FULL))
    text = drawn(live)
    assert max(map(len, text.splitlines())) <= 80
    for figure in ("2411!", "112345", "12.3 GB/998 MB", "2065247", "102843", "12345", "71"):
        assert figure in text, text
    assert "spark1: throttled: hw_slowdown" in text


def test_a_node_that_says_nothing_is_drawn():
    live = LiveState(["spark1", "spark2"], 1.0)
    live.take(row())
    live.take(lost("spark2", "\x1b[2Jno route"))
    text = drawn(live)
    assert "spark2: \\x1b[2Jno route; connecting again" in text
    assert "engine on" not in text


def test_a_line_of_a_node_that_knows_nothing():
    assert line(row()) == (
        "12:00:00 spark1: GPU - %, - MHz, - W, - °C, free - MiB, GPU memory - MiB, "
        "RDMA/s -/-, net/s -/-"
    )
    assert "KV 100 %, 1153 tokens/s, prompt 12345 tokens/s, acceptance 71 %" in line(row(**FULL))
    assert line(lost()) == "spark1: no answer"


# -- from the nodes -------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path, agent, monkeypatch):
    """Two nodes whose agents are children of this process; `nodes.refused` says who is away."""
    monkeypatch.setattr(sampling_module, "PAUSES", (0.05, 0.2))
    for name in ("spark1", "spark2"):
        put_system(tmp_path / name)
        nvidia_smi(tmp_path / name)

    class Nodes:
        inventory = make_inventory(tmp_path, TWO)

        def sample(self, **more):
            nodes = list(self.inventory.nodes.values())
            return Sampling(nodes, Dials(Dialled), **{"every": 0.1, **more})

    found = Nodes()
    found.refused, found.sessions = {}, []

    class Dialled:
        def __init__(self, node):
            self.name = node.name

        def session(self, _label, *, become):
            assert become
            if self.name in found.refused:
                raise found.refused[self.name]
            found.sessions.append(agent(self.name))
            return found.sessions[-1]

        def close(self):
            return None

    return found


def first(sampling, wanted):
    """The first update that fits."""

    def look():
        update = sampling.next(0.1)
        return update if update is not None and wanted(update) else None

    return until(look, every_s=0)


def test_rows_of_both(nodes):
    with nodes.sample() as sampling:
        for name in ("spark2", "spark1"):
            found = first(sampling, lambda u, n=name: u.node == n and u.rdma_rx_bytes_s is not None)
            assert isinstance(found, TelemetryRow)
            assert found.sm_clock_mhz == 2411.0
    assert len(nodes.sessions) == 2


def test_a_node_that_is_away_comes_back(nodes):
    nodes.refused["spark2"] = Unreachable("refused the connection", where="spark2")
    with nodes.sample() as sampling:
        told = first(sampling, lambda u: isinstance(u, Lost))
        assert (told.node, told.for_good) == ("spark2", False)
        del nodes.refused["spark2"]
        assert first(sampling, lambda u: isinstance(u, TelemetryRow) and u.node == "spark2")


def test_a_connection_that_is_cut_is_made_again(nodes):
    with nodes.sample() as sampling:
        assert first(sampling, lambda u: u.node == "spark1")
        cut = next(s for s in nodes.sessions if s.node == "spark1")
        cut._channel._process.kill()
        assert first(sampling, lambda u: isinstance(u, Lost)).node == "spark1"
        assert first(sampling, lambda u: isinstance(u, TelemetryRow) and u.node == "spark1")


def test_what_connecting_again_does_not_help(nodes):
    nodes.refused["spark2"] = Failed("sudo asks for a password", where="spark2")
    with nodes.sample() as sampling:
        assert first(sampling, lambda u: isinstance(u, Lost)).for_good


def test_a_fault_of_ours_comes_through(nodes):
    nodes.refused["spark2"] = ZeroDivisionError()
    with nodes.sample() as sampling, pytest.raises(ZeroDivisionError):
        first(sampling, lambda _: False)


def test_the_engines_page(nodes):
    assert metrics_url(nodes.inventory.serve) == "http://127.0.0.1:8000/metrics"
    proxied = nodes.inventory.serve.model_copy(update={"bind": "management"})
    assert metrics_url(proxied) == "http://127.0.0.1:18000/metrics"
