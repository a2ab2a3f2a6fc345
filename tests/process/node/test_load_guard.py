"""The guard of a node's memory while weights load: the real program, over a scratch root."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import each_row
from factories import put
from health_server import HealthServer
from waiting import FAR_S, until

from spark_cluster.models.memory_share import RESERVE_GIB
from spark_cluster.node import load_watch, own_program
from spark_cluster.node.load_watch import FLOOR_KIB, GuardSettings, Reason, parse

GIB = 2**20
DOCKER = Path(__file__).with_name("guarded_docker.sh").read_text()
SYSTEMCTL = Path(__file__).with_name("guarded_systemctl.sh").read_text()
PRESSURE = (
    "some avg10=61.02 avg60=1.00 avg300=0.00 total=9\n"
    "full avg10=42.17 avg60=0.50 avg300=0.00 total=7\n"
)


class Spark:
    """A node on which a server loads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        put(root / "bin/docker", DOCKER.format(root=root), 0o755)
        put(root / "bin/systemctl", SYSTEMCTL.format(root=root), 0o755)
        put(root / "proc/pressure/memory", PRESSURE)
        put(root / "running", "4f2a\n")
        (root / "proc/sys/vm").mkdir(parents=True)
        self.has(available=100, free=90)
        self.guards: list[subprocess.Popen[str]] = []

    def has(self, *, available: float, free: float, swap: float = 15.9) -> None:
        rows = {"MemTotal": 121.7, "MemAvailable": available, "MemFree": free, "SwapFree": swap}
        text = "".join(f"{name}: {round(gib * GIB)} kB\n" for name, gib in rows.items())
        put(self.root / "proc/meminfo.new", text)
        (self.root / "proc/meminfo.new").rename(self.root / "proc/meminfo")

    def collapses(self, guard: subprocess.Popen[str]) -> None:
        """Have hardly any memory left, until the guard has ended."""
        self.has(available=2.4, free=0.9)
        until(ended(guard))

    def guard(self, limit_s: float = FAR_S, **more: Any) -> subprocess.Popen[str]:
        told = GuardSettings(
            "spark-vllm", ("spark-vllm", "spark-ray"), limit_s, root=str(self.root)
        )
        text = json.dumps({**told.__dict__, **more})
        process = subprocess.Popen(
            own_program.argv(load_watch.__name__, text),
            env={"PATH": f"{self.root}/bin:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.guards.append(process)
        return process

    @property
    def asked(self) -> list[str]:
        path = self.root / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def dropped(self) -> bool:
        """Whether caches were dropped and memory compacted since this was last asked."""
        files = [self.root / "proc/sys/vm" / name for name in ("drop_caches", "compact_memory")]
        done = [path.exists() and path.read_text() for path in files]
        if done == ["3", "1"]:
            for path in files:
                path.unlink()
            return True
        return False

    @property
    def reason(self) -> Reason | None:
        path = self.root / load_watch.reason_file("spark-vllm").lstrip("/")
        return parse(path.read_text()) if path.exists() else None


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Spark]:
    node = Spark(tmp_path)
    yield node
    for one in node.guards:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)  # what it has started, too
        one.communicate()


def ended(process: subprocess.Popen[str]) -> Callable[[], bool]:
    return lambda: process.poll() is not None


def test_a_load_is_ended_before_the_node_freezes_and_the_reason_stays(spark):
    """P06: memory collapses within seconds, and nothing on the laptop is quick enough."""
    guard = spark.guard()
    until(lambda: bool(spark.asked))
    spark.collapses(guard)
    assert "stop -t 0 spark-vllm spark-ray" in spark.asked
    reason = spark.reason
    gib = [round(kib / GIB, 1) for kib in (reason.available_kib, reason.free_kib)]
    assert (gib, reason.pressure) == ([2.4, 0.9], 42.17)
    shown = str(reason)
    assert "2.4 GiB were available at " in shown
    assert "(0.9 GiB free, 15.9 GiB of swap free, memory pressure 42.17 %)" in shown
    assert "less than the 3.5 GiB below which" in shown
    assert guard.returncode == 0


def test_units_of_a_virtual_environment_are_not_started_again(spark):
    """P06: the stop comes first, so that systemd's restart does not follow the kill."""
    put(spark.root / "etc/systemd/system/spark-vllm.service", "")
    put(spark.root / "unit-state", "activating\n")
    guard = spark.guard()
    until(lambda: bool(spark.asked))
    spark.collapses(guard)
    acts = [line for line in spark.asked if line.startswith(("stop", "kill"))]
    assert acts == [
        "stop --no-block spark-vllm.service",
        "kill --signal=SIGKILL spark-vllm.service",
        "stop -t 0 spark-ray",
    ]


def test_caches_are_dropped_while_little_is_free_and_not_before(spark):
    """P06: the page cache of the checkpoint that streams in leaves no contiguous memory."""
    spark.guard()
    until(lambda: len(spark.asked) > 2)
    assert not spark.dropped
    spark.has(available=60, free=7.9)
    until(lambda: spark.dropped)
    until(lambda: spark.dropped)  # again, after a pause
    assert spark.reason is None


@pytest.mark.parametrize("why", ["the programs have ended", "the limit has passed", "ready"])
def test_it_ends_by_itself(spark, why):
    """P06: no process is left when the load ends, whatever became of the laptop."""
    more: dict[str, Any] = {}
    server = HealthServer()
    if why == "ready":
        more["health"] = f"{server.url}/health"
    if why == "the limit has passed":
        more["limit_s"] = 0.3
    guard = spark.guard(**more)
    if why == "the programs have ended":
        until(lambda: bool(spark.asked))
        assert guard.poll() is None
        (spark.root / "running").unlink()
    until(ended(guard))
    server.close()
    assert guard.returncode == 0
    assert not any(line.startswith("stop") for line in spark.asked)
    assert spark.reason is None


def test_a_docker_that_hangs_keeps_it_from_nothing(spark):
    """P06: memory is looked at while Docker, systemd and the kernel take their time."""
    hang = f"if test -e {spark.root}/running; then exec sleep {FAR_S}; fi"
    shown = f"! test -e {spark.root}/running || cat {spark.root}/running"
    script = DOCKER.format(root=spark.root)
    assert shown in script
    put(spark.root / "bin/docker", script.replace(shown, hang), 0o755)
    os.mkfifo(spark.root / "proc/sys/vm/drop_caches")  # a write never returns
    guard = spark.guard()
    until(lambda: bool(spark.asked))
    spark.has(available=60, free=1)
    until(lambda: len(list(Path(f"/proc/{guard.pid}/task").iterdir())) == 3)
    spark.has(available=2.4, free=0.9)
    until(lambda: "stop -t 0 spark-vllm spark-ray" in spark.asked)
    until(ended(guard))


def test_a_load_that_does_not_end_is_ended_again(spark):
    """P06: where memory is short a command may fail."""
    fails = f"test -e {spark.root}/failed || {{ touch {spark.root}/failed; exit 1; }}"
    script = DOCKER.format(root=spark.root).replace("stop*) ", f"stop*) {fails}; ")
    put(spark.root / "bin/docker", script, 0o755)
    guard = spark.guard()
    spark.collapses(guard)
    assert spark.asked.count("stop -t 0 spark-vllm spark-ray") == 2


def test_an_order_to_end_does_not_interrupt_the_end_of_a_load(spark):
    """P06: `up` ends the guard as soon as it reads the reason."""
    gate = spark.root / "gate"
    script = f'echo "$@" >> {spark.root}/asked; until test -e {gate}; do sleep 0.02; done'
    put(
        spark.root / "bin/docker",
        f"#!/bin/sh\ncase $1 in stop) {script}; touch {spark.root}/stopped ;; "
        f"*) test -e {spark.root}/stopped || echo 1 ;; esac\n",
        0o755,
    )
    guard = spark.guard()
    spark.has(available=2.4, free=0.9)
    until(lambda: bool(spark.asked))
    guard.send_signal(signal.SIGTERM)
    gate.touch()
    until(ended(guard))
    assert (spark.root / "stopped").exists()


@each_row(__file__, "wrong_reasons.json", "reasons")
def test_a_reason_that_is_none(text):
    assert parse(text) is None
    assert parse("[" * 100_000) is None


def test_the_floor_is_between_what_the_plan_leaves_and_where_ssh_stops():
    """P06: a load that goes as planned is never ended."""
    assert load_watch.SSH_STOPS_KIB < FLOOR_KIB < RESERVE_GIB * GIB


def test_a_guard_is_a_unit_of_its_own_that_is_not_killed_for_memory():
    command = load_watch.start(GuardSettings("spark-vllm", ("spark-vllm",), 600.0), "/usr/bin")
    assert "--unit=spark-cluster-load-guard-spark-vllm.service" in command
    assert {
        "--property=OOMScoreAdjust=-1000",
        "--property=RuntimeMaxSec=660",
        "--property=KillMode=mixed",
    } <= {*command}
    assert command[command.index("--") + 1] == sys.executable


def test_pressure(spark):
    assert load_watch.pressure(spark.root) == 42.17
    for text in ("", "some avg10=1.00 avg60=0\n", "full avg10=nan avg60=0\n"):
        put(spark.root / "proc/pressure/memory", text)
        assert load_watch.pressure(spark.root) is None
    (spark.root / "proc/pressure/memory").unlink()
    assert load_watch.pressure(spark.root) is None
