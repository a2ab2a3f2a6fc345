"""The sampler of a node: one JSON line an interval, to standard output or to a file.

It runs for as long as its output is read, in a file until SIGTERM, and leaves no process behind.
Nothing in it waits for the GPU's driver or for the server: what does not answer is null, and
`notes` says why. The GPU is read by `nvidia_smi`; /proc, /sys and the engine's metrics are read
here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

from spark_cluster.node import own_program
from spark_cluster.node.http import ask
from spark_cluster.node.nvidia_smi import AppsReader, GpuReader
from spark_cluster.node.output import TEXT_LIMIT

PROGRAM = "spark_cluster.node.telemetry"

FORMAT = 1
"""Of a line; a reader refuses others."""

FILE_LIMIT = TEXT_LIMIT
"""Bytes of a file after which it is kept as FILE.1, and a new one is begun: three hours."""

KEPT_FILES = 8
"""Files that are kept, the newest and FILE.1 to FILE.7: a day."""

LEAST_EVERY_S = 0.1


@dataclass(frozen=True)
class SamplerSettings:
    """The sampler's settings.

    Attributes:
        every: seconds between two lines.
        slowly: seconds between two readings of what costs more: the memory of processes (17 ms of
            a core for a call of nvidia-smi) and the errors of HCAs.
        metrics: URL of the engine's `/metrics`; empty for none.
        file: where the lines go; empty is standard output.
        root: where the node's file system begins; "/" but in tests.
    """

    every: float = 1.0
    slowly: float = 5.0
    metrics: str = ""
    file: str = ""
    root: str = "/"

    @property
    def word(self) -> str:
        """As `main` takes them."""
        return json.dumps(asdict(self))


def main(word: str) -> NoReturn:
    """Sample until the output is closed, or SIGTERM comes."""
    settings = SamplerSettings(**json.loads(word))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ended)
    out = TelemetryFile(Path(settings.file)) if settings.file else Pipe(1)
    sampler = Sampler(settings)
    try:
        with contextlib.suppress(BrokenPipeError):  # whoever read it is gone
            _run(sampler, out, settings)
    except _End:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        sampler.end()
    os._exit(0)  # the thread that asks the server may wait for it


class _End(BaseException):
    """The sampler is told to end."""


def _ended(_number: int, _frame: object) -> NoReturn:
    raise _End


def _run(sampler: Sampler, out: Pipe | TelemetryFile, settings: SamplerSettings) -> None:
    every = max(settings.every, LEAST_EVERY_S)
    while True:
        # On whole seconds of the clock, so that the lines of several nodes belong together.
        pause = every - time.time() % every
        time.sleep(pause if pause > every / 10 else pause + every)
        out.write(json.dumps(sampler.sample(), separators=(",", ":")) + "\n")


class Sampler:
    """All readers of a node."""

    def __init__(self, settings: SamplerSettings) -> None:
        self._slowly = max(settings.every, settings.slowly)
        self._system = SystemReader(Path(settings.root))
        self._gpu = GpuReader(max(settings.every, LEAST_EVERY_S))
        self._apps = AppsReader(self._slowly)
        self._engine = EngineReader(settings.metrics, settings.every)
        self._slow_at = float("-inf")

    def sample(self) -> dict[str, Any]:
        """Return the state of now; what is not known is None, also `processes` where they were not
        asked this time."""
        gpu, processes = self._gpu.now(), self._apps.now()
        engine, why = self._engine.now()
        sample: dict[str, Any] = {
            "format": FORMAT,
            "time": round(time.time(), 3),
            "clock": round(time.monotonic(), 3),
            "gpu": gpu,
            "memory": self._system.memory(),
            "network": self._system.network(),
            "rdma": self._system.rdma(),
            "engine": engine,
            "processes": processes,
        }
        if time.monotonic() - self._slow_at >= self._slowly:
            self._slow_at = time.monotonic()
            sample["rdma_errors"] = self._system.rdma_errors()
        notes = list(dict.fromkeys(filter(None, (self._gpu.note, self._apps.note, why))))
        if notes:
            sample["notes"] = notes
        return sample

    def end(self) -> None:
        """End the processes that it has started."""
        self._gpu.end()
        self._apps.end()


class Pipe:
    """Standard output; a line for which the reader has no room is dropped.

    Raises (when written to):
        BrokenPipeError: no one reads it any more.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._rest = b""
        self._room = select.poll()
        self._room.register(handle, select.POLLOUT)

    def write(self, line: str) -> None:
        self._flush()
        if not self._rest:
            self._rest = line.encode()
            self._flush()

    def _flush(self) -> None:
        """Write what there is room for: a whole page, as poll(2) says of a pipe."""
        while self._rest:
            events = self._room.poll(0)
            if not events:
                return
            self._rest = self._rest[os.write(self._handle, self._rest[: select.PIPE_BUF]) :]


class TelemetryFile:
    """A file of lines and those before it, the last one FILE.1; with a full disk lines are
    dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn = False

    def write(self, line: str) -> None:
        data = ("\n" if self._torn else "") + line
        with contextlib.suppress(OSError):
            if self._size() + len(data) > FILE_LIMIT:
                self._begin_new()
            self._torn = True  # until all of it is there
            with self._path.open("a", encoding="utf-8") as out:
                out.write(data)
            self._torn = False

    def _begin_new(self) -> None:
        older = (self._path.with_name(f"{self._path.name}.{n}") for n in range(1, KEPT_FILES))
        files = [self._path, *older]
        for number in range(KEPT_FILES - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                files[number - 1].replace(files[number])

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0


def start_unit(word: str, name: str, longest_s: str) -> None:
    """Start a sampler that writes a file, in a transient unit; nothing where it runs already.

    Args:
        word: its settings.
        name: of the unit, with `.service`.
        longest_s: seconds after which systemd ends it, if no one has.
    """
    if subprocess.run(["systemctl", "is-active", "--quiet", name], check=False).returncode == 0:
        return
    properties = {
        "Description": "spark-cluster: telemetry",
        "RuntimeMaxSec": longest_s,
        "TimeoutStopSec": "10",
        "Environment": f"PATH={os.environ['PATH']}",
    }
    sampler = own_program.argv(PROGRAM, word)
    sys.exit(subprocess.run(own_program.in_unit(name, sampler, properties), check=False).returncode)


# Memory, network and RDMA counters of a node, from /proc and /sys: cheap enough for each second.
#
# Counters are handed on as they are, growing; the reader makes rates of them, so that a line that
# is lost costs no bytes.

WORD = 4
"""Bytes of a unit of port_rcv_data and port_xmit_data. Source: linux-abi-infiniband."""

RESCAN_S = 30.0
"""Seconds after which HCAs are looked for again."""

VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "tap", "tun", "wg", "dummy")
"""Beginnings of names of interfaces that are no link to another machine."""

PAGE = os.sysconf("SC_PAGE_SIZE")

ERRORS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "rx_icrc_encapsulated",
)
"""Of hw_counters, errors of a RoCE link: packets that were lost, sent again or damaged, and a
receiver that was not ready (rnr_nak_retry_err). The choice is this project's; the names' source:
nvidia-docs-rdma-counters."""


@dataclass(frozen=True)
class HcaCounters:
    """The counters of an RDMA device's first port.

    Attributes:
        folder: its folder in /sys/class/infiniband.
        interface: its network interface; None without one.
    """

    folder: Path
    interface: str | None

    def read(self) -> dict[str, Any]:
        """Return its interface, and the bytes received and sent."""
        names = {"rx": "port_rcv_data", "tx": "port_xmit_data"}
        found = {way: _value(self.folder / "ports/1/counters" / n) for way, n in names.items()}
        moved = {way: None if words is None else words * WORD for way, words in found.items()}
        return {"interface": self.interface, **moved}

    def errors(self) -> int | None:
        """Return the sum of ERRORS; None without any of them."""
        found = (_value(self.folder / "ports/1/hw_counters" / name) for name in ERRORS)
        values = [value for value in found if value is not None]
        return sum(values) if values else None


class SystemReader:
    """Memory, swap, network and RDMA of a node.

    Args:
        root: where its file system begins; "/" but in tests.
    """

    def __init__(self, root: Path) -> None:
        self._proc = root / "proc"
        self._folder = root / "sys/class/infiniband"
        self._hcas: dict[str, HcaCounters] = {}
        self._scanned = float("-inf")

    def memory(self) -> dict[str, int | None]:
        """Return MemTotal, MemAvailable and swap in use, KiB, and bytes swapped since boot."""
        found = _fields(_content(self._proc / "meminfo") or b"")
        total, free = found.get(b"SwapTotal:"), found.get(b"SwapFree:")
        moved = _fields(_content(self._proc / "vmstat") or b"", (b"pswpin", b"pswpout"))
        return {
            "total_kib": found.get(b"MemTotal:"),
            "available_kib": found.get(b"MemAvailable:"),
            "swap_used_kib": None if total is None or free is None else total - free,
            "swapped_bytes": sum(moved.values()) * PAGE if moved else None,
        }

    def network(self) -> dict[str, tuple[int, int]] | None:
        """Return the bytes received and sent of each interface that is no virtual one."""
        text = _content(self._proc / "net/dev")
        if text is None:
            return None
        found = {}
        for line in text.decode(errors="replace").split("\n")[2:]:
            name, colon, tail = line.partition(":")
            words = tail.split()
            name = name.strip()
            if colon and len(words) > 8 and not name.startswith(VIRTUAL):
                found[name] = (int(words[0]), int(words[8]))
        return found

    def rdma(self) -> dict[str, dict[str, Any]] | None:
        """Return the counters of each HCA; None without any."""
        if time.monotonic() - self._scanned > RESCAN_S:
            self._scan()
        return {name: hca.read() for name, hca in self._hcas.items()} or None

    def rdma_errors(self) -> dict[str, int | None] | None:
        """Return the number of errors of each HCA; None without any HCA."""
        return {name: hca.errors() for name, hca in self._hcas.items()} or None

    def _scan(self) -> None:
        self._scanned = time.monotonic()
        folders = {name: self._folder / name for name in _names(self._folder)}
        self._hcas = {
            name: HcaCounters(folder, next(iter(_names(folder / "device/net")), None))
            for name, folder in folders.items()
        }


def _content(path: Path) -> bytes | None:
    """Return the content of a small file; None when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _value(path: Path) -> int | None:
    """Return a file's content as a number; None where it is none."""
    try:
        return int(_content(path) or b"")
    except ValueError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


def _fields(text: bytes, wanted: tuple[bytes, ...] = ()) -> dict[bytes, int]:
    """Return the first number of each line by its first word; of some lines only with `wanted`."""
    found = {}
    for line in text.split(b"\n"):
        if wanted and not line.startswith(wanted):
            continue
        words = line.split(None, 2)
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


# The engine's own figures from its `/metrics` page: requests, KV cache, tokens, acceptance.
#
# The page is text in Prometheus' format (source: prometheus-format). A name that a version of the
# engine does not have is None, never a fault.

NAMES: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "generation_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total",),
}
"""Field to its names, the newest first: older versions of vLLM say `gpu_cache_usage_perc`. It is a
share of 1, whatever the name says. Sources: vllm-source, sglang-docs-metrics. Of vLLM those of
0.32, v1/metrics/loggers.py and v1/spec_decode/metrics.py."""

WANTED = frozenset(name for names in NAMES.values() for name in names)
PREFIXES = tuple({f"{name.partition(':')[0]}:" for name in WANTED})
MOST = frozenset({"kv_usage"})
"""Of several engines (data parallel) the largest counts; of all other fields the sum."""

ASK_S = 3.0
"""Seconds for an answer, all of it."""

SILENT_S = 5.0
"""Seconds until a server that is not there, or does not answer, is asked again."""

FRESH_S = 3.0
"""Seconds for which an answer is the state of now."""


def samples(text: str) -> Iterator[tuple[str, float]]:
    r"""Yield name and value of the lines that are wanted; labels are left out.

    >>> list(samples('# TYPE x gauge\nvllm:num_requests_running{engine="0",m="a} b"} 4.0\n'))
    [('vllm:num_requests_running', 4.0)]
    """
    for line in text.split("\n"):
        if not line.startswith(PREFIXES):
            continue
        name, brace, tail = line.partition("{")
        if not brace:
            name, _, tail = line.partition(" ")
        if name not in WANTED:
            continue
        # After the labels, whose values may hold braces and spaces: a value, perhaps a time.
        words = (tail.rpartition("}")[2] if brace else tail).split()
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            yield name, value


def figures(text: str) -> dict[str, float | None] | None:
    """Return each field of NAMES from a page; None when the page has none of them."""
    found: dict[str, list[float]] = {}
    for name, value in samples(text):
        found.setdefault(name, []).append(value)
    if not found:
        return None
    result: dict[str, float | None] = {}
    for field, names in NAMES.items():
        values = next((found[name] for name in names if name in found), None)
        total = None if values is None else max(values) if field in MOST else sum(values)
        result[field] = total
    return result


class EngineReader:
    """Asks a `/metrics` page in a thread of its own, so that no one waits for the server.

    Args:
        url: of the page; empty asks nothing.
        every: seconds between two questions.
    """

    def __init__(self, url: str, every: float) -> None:
        self._url = url
        self._every = every
        self._names: tuple[str, ...] | None = ()  # None: only the whole page has figures
        self._state: tuple[float, dict[str, float | None] | None, str] = (0.0, None, "")
        if url:
            threading.Thread(target=self._read, name="metrics", daemon=True).start()

    def now(self) -> tuple[dict[str, float | None] | None, str]:
        """Return the figures of now, and why there are none (empty where no server listens)."""
        at, found, why = self._state
        if found is not None and time.monotonic() - at > FRESH_S + self._every:
            return None, why
        return found, why

    def _read(self) -> None:
        while True:
            began = time.monotonic()
            found, why = self.ask()
            self._state = (time.monotonic(), found, why)
            wait = self._every if found is not None else max(self._every, SILENT_S)
            time.sleep(max(0.05, wait - (time.monotonic() - began)))

    def ask(self) -> tuple[dict[str, float | None] | None, str]:
        """Ask once: for the whole page at first, then only for the names that it has.

        A page of a few names is a tenth of the work for the server. Where it then is empty (vLLM
        with `--api-server-count`: that registry does not know names), the whole is asked for.
        """
        for names in (self._names, ()) if self._names else ((),):
            query = urlencode([("name[]", name) for name in names])
            url = f"{self._url}?{query}" if query else self._url
            reply: dict[str, Any] = ask({"url": url, "timeout": ASK_S})
            if reply.get("status") != 200:
                return None, _why(reply)
            page = str(reply.get("body", ""))
            found = figures(page)
            if found is not None:
                if self._names and not names:  # the page of names was empty
                    self._names = None
                elif self._names is not None:
                    self._names = tuple(sorted({name for name, _ in samples(page)}))
                return found, ""
        return None, "its /metrics page has no figures of vLLM or SGLang"


def _why(reply: Mapping[str, Any]) -> str:
    status, reason = reply.get("status"), str(reply.get("reason", ""))
    if status:
        return f"/metrics answers with status {status}"
    return "" if "refused" in reason.lower() else f"/metrics: {reason[:200]}"
