"""A dashboard of two nodes whose samples are made up, as a program: `replayed.py RUNS`.

It prints its address, and serves until it is interrupted.
"""

import json
import math
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.sampling import Lost, Update
from spark_cluster.bench.telemetry import TelemetryRow
from spark_cluster.dashboard.server import CommandQuestions, Feed, listen, serve
from spark_cluster.errors import Unreachable

BEGAN = datetime(2026, 11, 1, 12, tzinfo=UTC)
NAMES = ["spark1", "spark2"]
SAMPLES = 600


def sample(node: str, second: int) -> TelemetryRow:
    """A model that is loaded in the first two minutes, and serves afterwards."""
    load = min(1.0, second / 120)
    serving = second > 150 and second % 200 > 40
    wave = 0.5 + 0.5 * math.sin(second / 23)
    ours = round(58_000 * load)
    found = [ProcessMemory(pid=812, name="VLLM::Worker_TP", used_mib=ours)]
    if second < 400:
        found.append(ProcessMemory(pid=77, name="/usr/bin/<b>python3</b>", used_mib=6_000))
    return TelemetryRow(
        BEGAN + timedelta(seconds=second), node,
        sm_clock_mhz=2400.0 if serving else 800.0, power_w=20 + 40 * serving * wave,
        temperature_c=45 + 15 * load, throttle="sw_thermal_slowdown" if second == SAMPLES else "",
        mem_available_mib=112_000 - ours, mem_total_mib=124_500,
        rdma_rx_bytes_s=3e9 * serving * wave, rdma_tx_bytes_s=2.8e9 * serving * wave,
        net_rx_bytes_s=1e5, net_tx_bytes_s=2e5, utilisation=90 * serving * wave,
        link_rx_bytes_s=0.0, link_tx_bytes_s=0.0, processes=tuple(found),
        running=int(4 * serving) if node == "spark1" else None,
        waiting=int(2 * serving * wave) if node == "spark1" else None,
        kv_usage=0.4 * serving * wave if node == "spark1" else None,
        generation_tps=180 * serving * wave if node == "spark1" else None,
        prompt_tps=900 * serving * (1 - wave) if node == "spark1" else None,
    )  # fmt: skip


class Replay:
    """Ten minutes at once, then the loss of a node; the other one goes on."""

    def __init__(self) -> None:
        rows = [sample(name, second) for second in range(SAMPLES + 1) for name in NAMES]
        self._left: list[Update] = list(reversed(rows))
        self._left.insert(0, Lost("spark2", Unreachable("no route to <i>host</i>")))

    def next(self, timeout: float) -> Update:
        """Return the next sample."""
        if self._left:
            return self._left.pop()
        time.sleep(timeout)
        return sample("spark1", SAMPLES)


def answers() -> dict[str, Any]:
    """What each command prints: `data/dashboard_answers.json`."""
    found = json.loads((Path(__file__).parent / "data/dashboard_answers.json").read_text())
    lines = (f"\x1b[37mline {number}\x1b[39m of the <u>log</u>\n" for number in range(200))
    found["logs"]["logs"][0]["text"] = "".join(lines)
    return found


ANSWER = "import json, sys; a = json.loads(sys.argv[1]); print(json.dumps(a[sys.argv[5]]))"
"""Words of a command: these answers, `-i lab --json`, the command."""

if __name__ == "__main__":
    words = (sys.executable, "-I", "-S", "-c", ANSWER, json.dumps(answers()))
    try:
        serve(
            listen(0),
            Feed(NAMES, 1.0),
            Replay(),
            questions=CommandQuestions(("-i", "lab"), words),
            runs=Path(sys.argv[1]),
            tell=lambda address: print(address, flush=True),
        )
    except KeyboardInterrupt:
        sys.exit(130)
