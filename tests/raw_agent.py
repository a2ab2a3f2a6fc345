"""A real agent as a process of its own, with shorter limits, and nobody who kills it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from fork_server import server
from waiting import HANG_S

from spark_cluster.agent import frames

REPOSITORY = Path(__file__).parents[1]

LIMITS = {
    "main.ALIVE_EVERY": 0.1,
    "main.GONE_AFTER": 2.0,
    "main.LOOK_EVERY": 0.1,
    "main.LEAVE_S": 3.0,
    "processes.TERM_GRACE": 0.3,
    "processes.KILL_GRACE": 0.3,
}


class RawAgent:
    """An agent whose laptop is the test, which gives a sign of life until it shall be silent.

    Args:
        root: where the node's file system begins.
        first: code that it runs before it starts.
        limits: constants of the agent's modules, `main.GONE_AFTER` for one.
    """

    def __init__(self, root: Path, first: str = "", **limits: float) -> None:
        self.root = root
        values = {**LIMITS, **{k.replace("__", "."): v for k, v in limits.items()}}
        text = (
            f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
            "from spark_cluster.agent import main, operations\n"
            "from spark_cluster.node import processes, units\n"
            + "".join(f"{name} = {value!r}\n" for name, value in values.items())
            + first
            + f"main.main(sys.stdin.buffer, [], {str(root)!r})\n"
        )
        self.process = server().start(text, stderr="ours")
        self._silent = threading.Event()
        self._sending = threading.Lock()
        threading.Thread(target=self._stay_alive, daemon=True).start()

    def _stay_alive(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended, or its input was closed
            while not self._silent.wait(0.2):
                self.send("alive")

    def send(self, op: str, **what: Any) -> None:
        assert self.process.stdin is not None
        with self._sending:
            self.process.stdin.write(frames.pack({"op": op, **what}))
            self.process.stdin.flush()

    def fall_silent(self) -> None:
        """Say nothing any more by itself."""
        self._silent.set()

    def next(self, event: str) -> dict[str, Any]:
        """The next event of this kind; signs of life are answered on the way."""
        assert self.process.stdout is not None
        while (found := frames.read(self.process.stdout)) is not None:
            if found["event"] == event:
                return found
            if found["event"] == "alive":
                self.send("alive")
        raise AssertionError(f"the agent ended without {event}")

    def lock(self) -> None:
        self.send("lock", req=1000, owner={"run": "r1"})
        assert "locked_by" not in self.next("done")
        assert not self.lock_is_free()

    def lock_is_free(self) -> bool:
        handle = os.open(self.root / "run/spark-cluster/locks/run", os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(handle)

    def hang_up(self) -> None:
        """End its input, as sshd does when the connection is cut."""
        assert self.process.stdin is not None
        self.fall_silent()
        with self._sending:
            self.process.stdin.close()

    def drain(self) -> None:
        """Read what it says to the end, and answer nothing."""
        assert self.process.stdout is not None
        self.process.stdout.read()

    def ends(self) -> int:
        """Its exit status, once it has ended by itself."""
        return self.process.wait(timeout=HANG_S)

    def peak_mib(self) -> float:
        """The most memory that it has had, MiB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024

    def close(self) -> None:
        """End what a failed test left."""
        self.fall_silent()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()


def document(*resources: Any) -> list[dict[str, Any]]:
    """Resources as they travel."""
    from spark_cluster.runner.delivery import document as packed

    return json.loads(json.dumps(packed(resources).resources))
