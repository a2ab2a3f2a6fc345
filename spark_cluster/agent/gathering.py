"""Read commands, files and local HTTP services of a node, in parallel: none that hangs may hold up
the others."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

from spark_cluster.node import own_program, processes, safe_paths, telemetry
from spark_cluster.node.host import Host
from spark_cluster.node.output import TEXT_LIMIT, shortened
from spark_cluster.node.processes import Cancelled, TooLong
from spark_cluster.node.values import ResourceError

FILE_S = 5.0
"""Seconds that reading one file, or the files of one glob, may take."""

PIECE = 64 * 1024
"""Bytes of one reading: the kernel answers one of 4 MiB or more of /proc/sys with ENOMEM."""

HTTP_S = 5.0
"""Seconds that an HTTP request may take, unless it says otherwise."""

Answer = dict[str, Any]


class Gathering:
    """The reading of everything for one request.

    Args:
        timeout: seconds that each command may take; one that has to be killed takes the graces of
            agent/processes.py longer.
        links: files that a glob matches are read through links and whatever they are; without it
            only regular ones with one name, FOREIGN_FILES at most, for folders in which other
            users can write. One that is too large, or too much with those before it, is None.
    """

    def __init__(self, host: Host, timeout: float, *, links: bool = True) -> None:
        self._host = host
        self._timeout = timeout
        self._links = links
        self._found: dict[str, dict[str, Any]] = {}

    def all(
        self,
        commands: Mapping[str, Sequence[Any]],
        files: Mapping[str, str],
        trees: Mapping[str, str],
        requests: Mapping[str, Mapping[str, Any]],
    ) -> Answer:
        """Read it all; None for what is not there or does not answer, `late` for why not."""
        self._found = {
            "commands": dict.fromkeys(commands),
            "files": dict.fromkeys(files),
            "trees": {name: {} for name in trees},
            "requests": {},
            "late": {},
        }
        jobs = {name: partial(self._command, name, argv) for name, argv in commands.items()}
        jobs |= {name: partial(self._request, name, asked) for name, asked in requests.items()}
        threads = {name: threading.Thread(target=job, daemon=True) for name, job in jobs.items()}
        for thread in threads.values():
            thread.start()
        self._read(
            [*(("files", *f) for f in files.items()), *(("trees", *t) for t in trees.items())]
        )
        graces = processes.TERM_GRACE + processes.KILL_GRACE + processes.DRAIN_S
        until = time.monotonic() + self._timeout + graces + FILE_S
        for name, thread in threads.items():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():  # not even its start came to an end
                what = commands[name][0] if name in commands else requests[name]["url"]
                self._found["late"].setdefault(name, f"{what}: it hangs")
        return {kind: dict(found) for kind, found in self._found.items()}

    def _command(self, name: str, argv: Sequence[Any]) -> None:
        choices = argv if argv and isinstance(argv[0], list) else [argv]
        until = time.monotonic() + self._timeout
        left = self._timeout
        for choice in choices:
            try:
                done = self._host.run(choice, timeout=left)
            except TooLong as error:
                self._found["late"][name] = error.message
                return
            except (ResourceError, OSError):
                continue
            except Cancelled:
                return
            said = {"stdout": done.stdout, "stderr": done.stderr}
            self._found["commands"][name] = {"status": done.status, **said}
            if done.status == 0 and done.stdout:
                return
            left = max(0.1, until - time.monotonic())

    def _request(self, name: str, request: Mapping[str, Any]) -> None:
        from spark_cluster.node.http import ask  # late: ssl and email are a third of all imports

        limit_s = min(self._timeout, request.get("timeout", HTTP_S))
        self._found["requests"][name] = ask({**request, "timeout": limit_s}, self._host.root)

    def _read(self, wanted: Sequence[tuple[str, str, str]]) -> None:
        """Read files in a thread of their own; one that hangs is left behind with its thread."""
        waiting = deque(wanted)
        while waiting:
            reader = _Reader(self, waiting)
            while reader.is_alive():
                reader.join(0.1)
                if reader.is_alive() and time.monotonic() - reader.since > FILE_S:
                    _, name, path = reader.at
                    self._found["late"][name] = f"{path}: reading it hangs"
                    reader.is_left = True
                    break

    def take(self, kind: str, name: str, path: str, goes_on: Callable[[], bool]) -> None:
        """Read one file, or the files of one glob while it `goes_on`."""
        read: Callable[[Host, str], Any] = _text
        if kind == "trees":
            read = _tree if self._links else partial(_foreign, goes_on=goes_on)
        self._found[kind][name] = read(self._host, path)


class _Reader(threading.Thread):
    """Reads what is waiting, one after the other."""

    def __init__(self, gathering: Gathering, waiting: deque[tuple[str, str, str]]) -> None:
        super().__init__(daemon=True)
        self._gathering = gathering
        self._waiting = waiting
        self.since = time.monotonic()
        self.at = ("", "", "")
        self.is_left = False
        self.start()

    def run(self) -> None:
        while True:
            try:
                item = self._waiting.popleft()
            except IndexError:
                return
            self.at, self.since = item, time.monotonic()
            self._gathering.take(*item, lambda: not self.is_left)


def _text(host: Host, path: str) -> str | None:
    try:
        with host.path(path).open("rb") as source:
            data = _start(source)
    except OSError:
        return None
    return shortened(data.decode(errors="replace"), TEXT_LIMIT)


def _start(source: BinaryIO) -> bytes:
    """Read up to a byte more than is sent."""
    data = bytearray()
    while len(data) <= TEXT_LIMIT and (piece := source.read(PIECE)):
        data += piece
    return bytes(data[: TEXT_LIMIT + 1])


def _tree(host: Host, pattern: str) -> dict[str, str]:
    """Every readable file that matches a glob, path to text (sysfs has one value a file)."""
    found = {}
    for path in sorted(host.root.glob(pattern.lstrip("/"))):
        text = _text(host, str(path.relative_to(host.root)))
        if text is not None:
            found["/" + str(path.relative_to(host.root))] = text
    return found


FOREIGN_FILES = 10_000
"""Files of a folder of another user's that are looked at."""

FOREIGN_BYTES = 96 << 20
"""Bytes of their texts together, as they are sent: a message may have a third more."""


def _foreign(host: Host, pattern: str, *, goes_on: Callable[[], bool]) -> dict[str, str | None]:
    """The regular files that match a glob in a folder in which another user can put anything."""
    found: dict[str, str | None] = {}
    left = FOREIGN_BYTES
    matches = itertools.islice(host.root.glob(pattern.lstrip("/")), FOREIGN_FILES)
    for path in sorted(matches):
        if not goes_on():
            break
        try:
            with safe_paths.file_in(path) as source:
                about = os.fstat(source.fileno())
                if about.st_nlink != 1:  # of a file that this user may be unable to read
                    continue
                is_small = about.st_size <= min(TEXT_LIMIT, left)
                text = _start(source).decode(errors="replace") if is_small else None
        except (OSError, ResourceError):
            continue
        size = len(json.dumps(text))
        if size > left:
            text, size = None, 0
        left -= size
        found["/" + str(path.relative_to(host.root))] = text
    return found


# The sampler of telemetry as the agent starts it: for the laptop, or in a unit of its own.

UNIT = re.compile(r"spark-cluster-telemetry-[A-Za-z0-9_-]{1,100}")

LONGEST_S = 7 * 24 * 3600.0
"""Seconds after which systemd ends a sampler that no one ended."""


def argv(host: Host, request: Mapping[str, Any]) -> list[str]:
    """Return the command of a sampler that prints lines, and ends when this agent does."""
    root = str(host.root)
    return telemetry.argv(telemetry.settings_of(request, parent=os.getpid(), root=root))


def start_unit(host: Host, request: Mapping[str, Any]) -> dict[str, Any]:
    """Start a sampler that writes a file, in a transient unit; nothing where it runs already.

    Args:
        request: `unit`, its name without `.service`, the settings, `file` among them, and perhaps
            `longest`, seconds after which it ends.

    Returns:
        `started`, False where the unit was there.

    Raises:
        ResourceError: systemd does not start it, or the name is no unit's of ours.
    """
    name = str(request.get("unit", ""))
    if UNIT.fullmatch(name) is None:
        raise ResourceError(f"{name!r} is not a name for a unit of telemetry")
    if host.run(["systemctl", "is-active", "--quiet", f"{name}.service"]).status == 0:
        return {"started": False}
    longest = min(float(request.get("longest", LONGEST_S)), LONGEST_S)
    properties = {
        "Description": "spark-cluster: telemetry",
        "RuntimeMaxSec": f"{longest:.0f}",
        "TimeoutStopSec": "10",
        "Environment": f"PATH={host.search_path}",
    }
    settings = telemetry.settings_of(request, root=str(host.root))
    start = own_program.in_unit(f"{name}.service", telemetry.argv(settings), properties)
    host.run(start).check("starting the unit for telemetry")
    return {"started": True}
