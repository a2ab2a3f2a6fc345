"""A steady load of the lab's model, and the sampler of telemetry next to it, both measured here."""

import json
import os
import signal
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import waiting

from spark_cluster.node import own_program, telemetry

CLIENTS = 4
TOKENS = 64
"""Of each answer."""


def tokens_per_second(base: str, model: str, seconds: float) -> float:
    """Return what several clients get of a server that they keep busy for so long."""
    began = time.monotonic()

    def ask(_client: int) -> int:
        count = 0
        while time.monotonic() - began < seconds:
            count += completed(base, model)
        return count

    with ThreadPoolExecutor(CLIENTS) as pool:
        total = sum(pool.map(ask, range(CLIENTS)))
    return total / (time.monotonic() - began)


def completed(base: str, model: str) -> int:
    """Ask for an answer of TOKENS, and return how many tokens it has."""
    body = {
        "model": model, "prompt": "the spark node", "max_tokens": TOKENS, "ignore_eos": True,
        "temperature": 0,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{base}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=waiting.HANG_S) as answer:
        count: int = json.load(answer)["usage"]["completion_tokens"]
    return count


@dataclass
class Sampled:
    """What a sampler took and wrote, once it has ended.

    Attributes:
        seconds: that it ran.
        cpu_s: of the processor, with its start and the programs that it called.
    """

    seconds: float = 0.0
    cpu_s: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def sampler(folder: Path, base: str) -> Iterator[Sampled]:
    """Run the sampler of a node as `bench run` has it run, from its first line on."""
    file, result = folder / "telemetry.jsonl", Sampled()
    file.unlink(missing_ok=True)
    settings = telemetry.SamplerSettings(file=str(file), metrics=f"{base}/metrics")
    began = time.monotonic()
    process = subprocess.Popen(own_program.argv(telemetry.PROGRAM, settings.word))
    try:
        waiting.until(lambda: file.exists() and file.stat().st_size, what="the first line")
        yield result
    finally:
        process.send_signal(signal.SIGTERM)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    result.seconds = time.monotonic() - began
    result.cpu_s = used.ru_utime + used.ru_stime
    result.lines = [json.loads(line) for line in file.read_text().splitlines()]


@dataclass(frozen=True)
class Overhead:
    """Throughput without and with telemetry, in turns."""

    without: tuple[float, ...]
    with_it: tuple[float, ...]
    cpu_share: float
    lines: list[dict[str, Any]]

    @property
    def ratio(self) -> float:
        """Of the medians: with telemetry to without."""
        return statistics.median(self.with_it) / statistics.median(self.without)

    def to_dict(self) -> dict[str, Any]:
        """For people, and to be kept."""
        return {
            "clients": CLIENTS,
            "tokens_of_an_answer": TOKENS,
            "tok_s_without": [round(value, 1) for value in self.without],
            "tok_s_with": [round(value, 1) for value in self.with_it],
            "ratio_of_medians": round(self.ratio, 4),
            "sampler_share_of_a_core": round(self.cpu_share, 4),
            "samples": len(self.lines),
        }


def overhead(base: str, model: str, folder: Path, *, turns: int, seconds: float) -> Overhead:
    """Measure a load without and with telemetry, by turns that begin with either."""
    figures: dict[bool, list[float]] = {False: [], True: []}
    ran: list[Sampled] = []
    for turn in range(turns):
        for sampled in (False, True) if turn % 2 == 0 else (True, False):
            if not sampled:
                figures[False].append(tokens_per_second(base, model, seconds))
                continue
            with sampler(folder, base) as one:
                figures[True].append(tokens_per_second(base, model, seconds))
            ran.append(one)
    share = sum(one.cpu_s for one in ran) / sum(one.seconds for one in ran)
    lines = [line for one in ran for line in one.lines]
    return Overhead(tuple(figures[False]), tuple(figures[True]), share, lines)
