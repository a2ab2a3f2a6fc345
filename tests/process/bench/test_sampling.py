"""The nodes live: rows as they come, nodes that are lost and come back, what is drawn."""

import io
from datetime import UTC, datetime
from unittest import mock

import pytest
from cases import cases
from factories import TWO_NODES, make_inventory
from telemetry_node import nvidia_smi, put_system
from waiting import until

from spark_cluster.bench import sampling
from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.sampling import LiveState, Lost, Sampling, metrics_url, warnings
from spark_cluster.bench.telemetry import TelemetryRow
from spark_cluster.cli.terminal import Console
from spark_cluster.cli.top import line, picture
from spark_cluster.errors import Failed, Unreachable
from spark_cluster.runner.dialer import Dialer

NOON = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
LONG_NAME = "ray::RayWorkerWrapper.__ray_call__" * 3
FULL = {
    **cases(__file__, "full_row.json"),
    "processes": (ProcessMemory(pid=2065247, name=LONG_NAME, used_mib=102843),),
}


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
    told = [live.take(lost(text=text)) for text in ("no answer", "no answer", "else")]
    assert told == [True, False, True]
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
def nodes(piped_nodes, monkeypatch):
    """Two nodes with real agents."""
    monkeypatch.setattr(sampling, "PAUSES", (0.05, 0.2))
    for name in ("spark1", "spark2"):
        put_system(piped_nodes[name].root)
        nvidia_smi(piped_nodes[name].root)
    return piped_nodes


@pytest.fixture
def inventory(tmp_path):
    return make_inventory(tmp_path, TWO_NODES)


@pytest.fixture
def sampled(nodes, inventory):
    """Samplers on both, which end with the test."""
    return Sampling(list(inventory.nodes.values()), Dialer(), every=0.1)


def first(sampled, wanted):
    """The first update that fits."""

    def look():
        update = sampled.next(0.1)
        return update if update is not None and wanted(update) else None

    return until(look, every_s=0)


def test_a_node_that_is_away_comes_back(nodes, sampled):
    nodes["spark2"].away = 1
    with sampled:
        told = first(sampled, lambda u: isinstance(u, Lost))
        assert (told.node, told.for_good) == ("spark2", False)
        assert first(sampled, lambda u: isinstance(u, TelemetryRow) and u.node == "spark2")


def test_a_connection_that_is_cut_is_made_again(nodes, sampled):
    with sampled:
        assert first(sampled, lambda u: u.node == "spark1").sm_clock_mhz == 2411.0
        nodes["spark1"].lose()
        assert first(sampled, lambda u: isinstance(u, Lost)).node == "spark1"
        assert first(sampled, lambda u: isinstance(u, TelemetryRow) and u.node == "spark1")


def test_what_connecting_again_does_not_help(nodes, sampled):
    error = Failed("sudo asks for a password", where="spark2")
    nodes["spark2"].session = mock.Mock(side_effect=error)
    with sampled:
        assert first(sampled, lambda u: isinstance(u, Lost)).for_good


def test_a_fault_of_ours_comes_through(nodes, sampled):
    nodes["spark2"].session = mock.Mock(side_effect=ZeroDivisionError())
    with sampled, pytest.raises(ZeroDivisionError):
        first(sampled, lambda _: False)


def test_the_engines_page(inventory):
    assert metrics_url(inventory.serve) == "http://127.0.0.1:8000/metrics"
    proxied = inventory.serve.model_copy(update={"bind": "management"})
    assert metrics_url(proxied) == "http://127.0.0.1:18000/metrics"
