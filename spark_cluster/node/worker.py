"""The worker in a transient unit: runs one command, writes its outputs and its status to files.

The agent that started it may be gone long before the end, so all is said in the unit's folder:
`work` (read once and removed: it may hold secrets), `begun`, `out`, `err`, `status`. The lock on
`lock` is held while it runs, so that whoever comes later can tell running from dead. The limit of
the work is kept here, with or without an agent; systemd's own, a little later, is the last resort.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

from spark_cluster.node import moment
from spark_cluster.node.faults import explain, unforeseen
from spark_cluster.node.processes import Running
from spark_cluster.node.unit_output import OutputFile
from spark_cluster.node.values import ResourceError

ROOM = 4096
"""Bytes of the status file, taken at the start: a disk that gets full must not hide the end."""


def main(name: str) -> None:
    """Do the work of a unit's folder."""
    folder = Path(name)
    os.umask(0o077)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the command ends of it, and we tell how
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    work = json.loads((folder / "work").read_bytes())
    (folder / "work").unlink()
    (folder / "status").write_text(" " * ROOM)
    (folder / "begun").write_text(json.dumps({**moment.now(), "pid": os.getpid()}))
    _tell(folder / "status", _result(folder, work))
    os._exit(0)  # whatever the command left behind is systemd's to end


def _result(folder: Path, work: dict[str, Any]) -> dict[str, Any]:
    """Return how it ended; without it the watcher would take it for killed from outside."""
    try:
        return {"status": _run(folder, work)}
    except ResourceError as error:
        return {"error": error.message, "hint": error.hint}
    except OSError as error:
        return {"error": explain(error)}
    except Exception as error:  # noqa: BLE001  (told to who watches)
        text, hint = unforeseen(error)
        return {"error": text, "hint": hint}


def _run(folder: Path, work: dict[str, Any]) -> int:
    outputs = {1: OutputFile(folder / "out"), 2: OutputFile(folder / "err")}
    running = Running(
        work["argv"],
        env=work["env"],
        user=work["user"],
        timeout=work["timeout"],
        umask=0o022,
    )
    stdin = base64.b64decode(work["stdin"])
    try:
        return running.attend(
            lambda number, data: outputs[number].add(data), threading.Event(), stdin
        )
    finally:
        for output in outputs.values():
            output.close()


def _tell(path: Path, result: dict[str, Any]) -> None:
    text = json.dumps({**result, **moment.now()})
    with path.open("r+b") as out:
        out.write(text.ljust(ROOM).encode())
        out.flush()
        os.fsync(out.fileno())
