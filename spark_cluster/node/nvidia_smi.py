"""Questions to nvidia-smi on a node, the parsers of its answers, and readers that go on asking."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

FIGURES = {
    "utilization.gpu": "utilisation",
    "clocks.sm": "sm_clock_mhz",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
}
"""Field of `--query-gpu` to our name; percent, MHz, W, degrees Celsius."""

THROTTLE = {
    reason: f"clocks_event_reasons.{reason}"
    for reason in ("sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown")
}
"""Reasons for which the driver lowers the clocks, and their fields. Source: nvidia-docs-smi."""

APPS = (
    "nvidia-smi",
    "--query-compute-apps=pid,process_name,used_gpu_memory",
    "--format=csv,noheader,nounits",
)
"""To be asked on the host: inside a container the list is empty (PID namespace)."""

_INVALID = re.compile(r'^Field "([^"]+)" is not a valid field to query', re.MULTILINE)


def processes(text: str) -> list[tuple[int, str, int | None]]:
    """Return pid, name and MiB (None when it is not told) of each line of APPS."""
    # No CSV reader: nvidia-smi quotes nothing, and a name may have commas and quotes in it.
    rows = re.findall(r"^[ \t]*([0-9]{1,10})[ \t]*,(.*),([^,\n]*)$", text, re.MULTILINE)
    found = []
    for pid, name, used in rows:
        mib = re.fullmatch(r"\s*([0-9]{1,10})(?:\s*MiB)?\s*", used)
        found.append((int(pid), name.strip(), int(mib[1]) if mib else None))
    return found


def number(cell: str) -> float | None:
    """The figure of a cell; None for `[N/A]` and whatever else is none."""
    found = re.match(r"-?[0-9]{1,15}(\.[0-9]+)?(?![0-9])", cell)
    return float(found[0]) if found else None


def invalid(text: str) -> set[str]:
    """Return the fields that this nvidia-smi does not know, if that is what it says."""
    return set(_INVALID.findall(text))


# Readers of the GPU's state: a long-running one every second, and one now and then for the
# memory of processes.
#
# A call of nvidia-smi takes 17 ms of a core (driver 580.159 on an H100), once a second would be
# more than all else together; one that loops takes under 1 ms a round. In a loop `--query-compute-
# apps` prints nothing while no process holds memory, which a hang would look like: it is asked
# again.
#
# Each is read in a thread of its own, so that what hangs in the driver holds up this thread only,
# and none is started next to one that the kernel does not let go of.

FIELDS = (*FIGURES, *THROTTLE.values())

SILENT_S = 10.0
"""Seconds (and two intervals) without a word after which nvidia-smi is taken to hang."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Seconds until nvidia-smi is started again: at first, and at most."""

END_S = 1.0
"""Seconds that it may take to end, by SIGTERM and then by SIGKILL; what the kernel holds even so
is left."""

READ = 64 * 1024
"""Characters of a line, and of the output, that are kept."""


class SmiReader(ABC):
    """Reads nvidia-smi in a thread, and starts it again with growing pauses.

    Attributes:
        note: why there is no answer; empty while there is one.
    """

    silent: str
    """What is noted of one that hangs."""

    def __init__(self, limit_s: float) -> None:
        self.note = ""
        self.limit_s = limit_s
        self._pause = FIRST_PAUSE_S
        self._process: subprocess.Popen[str] | None = None
        self._heard = 0.0
        self._hangs_since: float | None = None
        self._over = threading.Event()
        self._starting = threading.Lock()
        threading.Thread(target=self._run, name="nvidia-smi", daemon=True).start()

    @property
    @abstractmethod
    def argv(self) -> tuple[str, ...]:
        """The command."""

    @abstractmethod
    def take(self, line: str) -> bool:
        """Take a line; False for one that is no answer, which may say why it ends."""

    @abstractmethod
    def ended(self, status: int, said: str) -> float | None:
        """Note the end of one that did not hang; return the seconds to the next start, or None for
        one that failed, after which the pauses grow."""

    def look(self) -> None:
        """Note one that hangs and have it ended; never waits."""
        process, now = self._process, time.monotonic()
        if process is None or now - self._heard <= self.limit_s:
            return
        self.note = self.silent.format(self.limit_s)
        if self._hangs_since is None:
            self._hangs_since = now
            process.terminate()
        elif now - self._hangs_since > END_S:
            process.kill()

    def worked(self) -> None:
        """Note that it answered."""
        self.note, self._pause = "", FIRST_PAUSE_S

    def end(self) -> None:
        """End it for good."""
        self._over.set()
        if self._starting.acquire(timeout=END_S):
            self._starting.release()
        if (process := self._process) is not None:
            for stop in (process.terminate, process.kill):
                stop()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
                    return

    def _run(self) -> None:
        while not self._over.is_set():
            again_in_s = self._read()
            if again_in_s is None:
                again_in_s, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_S)
            self._over.wait(again_in_s)

    def _read(self) -> float | None:
        """Start it, and hand on what it prints until it ends."""
        with self._starting:
            if self._over.is_set():
                return None
            try:
                process = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                )
            except OSError as error:
                self.note = f"{self.argv[0]}: {error.strerror or error}"
                return None
            self._heard, self._hangs_since = time.monotonic(), None
            self._process = process
        said = ""
        with process:
            assert process.stdout is not None  # noqa: S101  (a pipe)
            while line := process.stdout.readline(READ):
                self._heard = time.monotonic()
                said = said if self.take(line) else (said + line)[-READ:]
        self._process = None
        return self.ended(process.returncode, said) if self._hangs_since is None else None


class GpuReader(SmiReader):
    """The GPU's figures from one nvidia-smi that prints a line every interval.

    Args:
        every: seconds between two lines.
    """

    silent = "nvidia-smi has printed nothing for {:g} s"

    def __init__(self, every: float) -> None:
        self._every = every
        self._fields = list(FIELDS)
        self._latest: tuple[float, dict[str, Any] | None] = (0.0, None)
        super().__init__(max(SILENT_S, 2 * every))

    @property
    def argv(self) -> tuple[str, ...]:
        """The command; a Spark has one GPU, and of several the first counts."""
        query, milliseconds = ",".join(self._fields), str(round(self._every * 1000))
        form = "--format=csv,noheader,nounits"
        return ("nvidia-smi", "-i", "0", f"--query-gpu={query}", form, "-lms", milliseconds)

    def now(self) -> dict[str, Any] | None:
        """Return the latest figures; None when there are none of the last seconds."""
        self.look()
        at, figures = self._latest
        return figures if time.monotonic() - at < 2.5 * self._every + 0.5 else None

    def take(self, line: str) -> bool:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(self._fields):
            return False
        values = dict(zip(self._fields, cells, strict=True))
        figures: dict[str, Any] = {
            name: number(values.get(field, "")) for field, name in FIGURES.items()
        }
        reasons = {reason: values.get(field, "") for reason, field in THROTTLE.items()}
        known = [r for r, state in reasons.items() if state in ("Active", "Not Active")]
        figures["throttle"] = [r for r in known if reasons[r] == "Active"] if known else None
        self._latest = (time.monotonic(), figures)
        self.worked()
        return True

    def ended(self, status: int, said: str) -> float | None:
        unknown = invalid(said) & set(self._fields)
        if unknown and len(unknown) < len(self._fields):  # a driver that does not have the field
            self._fields = [field for field in self._fields if field not in unknown]
            return 0.0
        self.note = f"nvidia-smi ended: {' '.join(said.split())[:200] or f'status {status}'}"
        return None


class AppsReader(SmiReader):
    """The memory of processes, by a nvidia-smi every so many seconds.

    Args:
        every: seconds.
    """

    silent = "nvidia-smi has not answered for {:g} s"
    argv = APPS

    def __init__(self, every: float) -> None:
        self._every = every
        self._answer: list[tuple[int, str, int | None]] | None = None
        super().__init__(SILENT_S)

    def now(self) -> list[tuple[int, str, int | None]] | None:
        """Return (pid, name, MiB) of each process when there is a new answer, otherwise None."""
        self.look()
        answer, self._answer = self._answer, None
        return answer

    def take(self, _line: str) -> bool:
        return False

    def ended(self, status: int, said: str) -> float | None:
        if status:
            self.note = f"nvidia-smi: {' '.join(said.split())[:200] or f'status {status}'}"
            return None
        self._answer = processes(said)
        self.worked()
        return self._every
