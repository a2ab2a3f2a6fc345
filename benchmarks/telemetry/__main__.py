"""`python -m benchmarks.telemetry`: what the sampler costs a node, in CPU time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from spark_cluster.node import own_program
from spark_cluster.node.telemetry import PROGRAM, SamplerSettings, SystemReader, figures

TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP_S = 8.0
"""Seconds until the imports are done, and the server's page is asked for by names."""

STAND_IN = """\
#!/bin/sh
case "$*" in
*compute-apps*) echo '2065247, VLLM::Worker_TP0, 102843';;
*) while :; do echo '96, 2411, 45.10, 62, Not Active, Not Active, Not Active, Active'
   sleep 1; done;;
esac
"""

SERVER = """\
import http.server, sys
from urllib.parse import parse_qs, urlsplit
page, by_name = open(sys.argv[1]).read(), sys.argv[2] == "names"
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        names = parse_qs(urlsplit(self.path).query).get("name[]", [])
        lines = page.splitlines(True) if not names or by_name else []
        text = "".join(l for l in lines if not names or l.startswith(tuple(names))).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_): pass
made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(made.server_port, flush=True)
made.serve_forever()
"""

NAMES = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
    "generation_tokens_total", "spec_decode_num_drafts_total", "num_preemptions_total",
    "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
)  # fmt: skip


def page() -> str:
    """Return a page as long as vLLM's with one model: 60 histograms of 20 buckets."""
    label = 'engine="0",model_name="google/gemma-4-26B-A4B-it"'
    lines = [f"vllm:{name}{{{label}}} 123456.0" for name in NAMES]
    for number in range(60):
        name = f"vllm:request_histogram_{number}_seconds"
        lines += [f"# HELP {name} Histogram of something.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{label},le="{edge}.0"}} 17.0' for edge in range(20)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Cost:
    """The cost of the sampler itself, without nvidia-smi and the server.

    Attributes:
        percent: of one core.
        rss_mib: resident memory.
        lines: that came.
    """

    name: str
    percent: float
    rss_mib: float
    lines: int


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, without those of its children."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def rss_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(text) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def server(kind: str, folder: Path) -> Iterator[str]:
    """A `/metrics` page in a process of its own; `names`: it heeds the names asked for."""
    path = folder / "page"
    path.write_text(page())
    argv = [sys.executable, "-c", SERVER, str(path), kind]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/metrics"
        finally:
            process.kill()


def measure(name: str, settings: SamplerSettings, seconds: float, folder: Path) -> Cost:
    """Run a sampler against this machine's /proc and /sys."""
    lines = folder / "lines"
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    with lines.open("w") as out:
        argv = own_program.argv(PROGRAM, settings.word)
        process = subprocess.Popen(argv, stdout=out, env=environment)
    try:
        time.sleep(WARM_UP_S)
        before, began = cpu_s(process.pid), time.monotonic()
        seen = lines.read_text().count("\n")
        time.sleep(seconds)
        percent = 100 * (cpu_s(process.pid) - before) / (time.monotonic() - began)
        return Cost(name, percent, rss_mib(process.pid), lines.read_text().count("\n") - seen)
    finally:
        process.terminate()
        process.wait()


def parts() -> dict[str, float]:
    """Return the microseconds of each part of a sample."""
    reader, text = SystemReader(Path("/")), page()
    jobs = {
        "memory and swap (/proc/meminfo, /proc/vmstat)": reader.memory,
        "network (/proc/net/dev)": reader.network,
        f"a whole /metrics page of {len(text) >> 10} KiB": lambda: figures(text),
    }
    return {name: 1e6 * timeit.timeit(job, number=200) / 200 for name, job in jobs.items()}


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="Seconds of each measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(seconds: float, as_json: bool) -> None:
    """Measure the CPU time of the sampler at one sample a second."""
    with tempfile.TemporaryDirectory(prefix="sctelemetry-") as name:
        folder = Path(name)
        (folder / "nvidia-smi").write_text(STAND_IN)
        (folder / "nvidia-smi").chmod(0o755)
        found = [measure("no server", SamplerSettings(), seconds, folder)]
        for kind, title in (
            ("names", "server that heeds names"),
            ("whole", "server that always sends the whole page"),
        ):
            with server(kind, folder) as url:
                found.append(measure(title, SamplerSettings(metrics=url), seconds, folder))
    if as_json:
        told = {"costs": [vars(cost) for cost in found], "parts_us": parts()}
        click.echo(json.dumps(told, indent=2))
        return
    for cost in found:
        click.echo(
            f"{cost.name:<42} {cost.percent:5.2f} % of a core, {cost.rss_mib:.0f} MiB, "
            f"{cost.lines} lines"
        )
    for title, microseconds in parts().items():
        click.echo(f"{title:<50} {microseconds:7.0f} microseconds")


if __name__ == "__main__":
    main()
