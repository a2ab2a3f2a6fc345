"""What runs inside a transient unit: one command, its outputs to files, its status beside them.

The agent that started it may be gone long before the end, so all is said in the unit's folder:
`work` (read once and removed: it may hold secrets), `begun`, `out`, `err`, `status`. The lock on
`lock` is held while it runs, so that whoever comes later can tell running from dead.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from spark_cluster.agent.processes import as_user
from spark_cluster.resources.base import ResourceError

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
    (folder / "begun").write_text(json.dumps({"time": time.time(), "pid": os.getpid()}))
    _tell(folder / "status", _run(folder, work))


def _run(folder: Path, work: dict[str, Any]) -> dict[str, Any]:
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        try:
            process = subprocess.Popen(
                work["argv"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=work["env"],
                start_new_session=True,
                umask=0o022,
                **as_user(work["user"]),
            )
        except FileNotFoundError as error:
            return {"error": f"{error.filename}: no such command or folder"}
        except PermissionError as error:
            return {"error": f"{error.filename}: permission denied"}
        except ResourceError as error:
            return {"error": error.message}
        process.communicate(base64.b64decode(work["stdin"]))
        return {"status": process.returncode}


def _tell(path: Path, result: dict[str, Any]) -> None:
    text = json.dumps({**result, "ended": time.time()})
    with path.open("r+b") as out:
        out.write(text.ljust(ROOM).encode())
        out.flush()
        os.fsync(out.fileno())
