"""Benchmark runs on real vLLM with real llama-benchy: cut, stopped, and with a server that ends."""

import signal
from collections.abc import Iterator

import pytest
import readme
from bench_results import attached, bench_user, cells, record, results
from commandline import CommandLine, until

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with bench_user(lab, tmp_path_factory.mktemp("bench"), "small") as made:
        yield made


def test_a_run_survives_the_laptop_and_its_server(user, spark1):
    """The laptop is killed after the first cell, then the server, then it is stopped."""
    run = user.start(
        *readme.words("spark-cluster bench run dual", {"dual": "small"}), "--out", "one", "--keep"
    )
    until(lambda: results(spark1), what="the first result")
    run.process.send_signal(signal.SIGKILL)
    run.process.communicate()
    until(lambda: len(results(spark1)) > 1, what="the node goes on by itself")
    assert user.json("bench", "fetch", "one")["cells"] > 1

    user("bench", "stop", "one")
    until(lambda: user.json("bench", "status", "one")["measuring"] == "", what="the end")
    user("bench", "fetch", "one")
    assert cells(user, "one")

    spark1.run(["docker", "kill", "spark-vllm"])
    attached(user, "one", 4)


def test_the_record_says_what_was_measured_and_on_what(user):
    told = record(user.home / "one")
    measured = [cell for cell in told["cells"] if cell["status"] == "ok"]
    assert measured  # a busy machine may drop the others
    assert all(cell["metrics"]["tg_tps"]["mean"] > 0 for cell in measured)
    (setup,) = told["setups"]
    assert setup["versions"]["vllm"].startswith("0.")
    assert "--max-model-len" in setup["flags"]
    phases = {(reading["phase"], reading["node"]) for reading in setup["vram"]}
    assert {("load_peak", "spark1"), ("ready", "spark1"), ("after", "spark1")} <= phases
    held = [r for r in setup["vram"] if r["phase"] == "ready" and r["node"] == "spark1"]
    assert held[0]["processes"]
    assert 0 < told["round_trip_ms"] < 1000
    assert setup["versions"]["torch"]
    (node,) = told["nodes"]
    assert (node["environment"]["HF_HUB_OFFLINE"], node["firmware"]) == ("1", "28.45.4028")
    logs = {path: (user.home / "one" / path).read_text() for path in setup["logs"]}
    assert any("Application startup complete" in text for text in logs.values())
    assert all(len(text) <= 1 << 20 for text in logs.values())
    assert (user.home / "one/telemetry.parquet").stat().st_size > 1000


def test_nothing_of_it_runs_on(user, spark1):
    argv = ["sh", "-c", "pgrep -af '[b]ench.measure|[l]lama_benchy|[n]ode.telemetry' || true"]
    until(lambda: spark1.run(argv).stdout == "", what="the processes' end")
    assert user.json("bench", "status", "one")["measuring"] == ""
