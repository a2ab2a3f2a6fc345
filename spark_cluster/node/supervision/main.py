"""The program of the unit `spark-cluster-supervise`: look, decide, act, and keep what is known."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.node import durable, locks
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.health import Completion, judge
from spark_cluster.node.supervision import look as looking
from spark_cluster.node.supervision.policy import (
    START,
    STOP,
    Limits,
    Look,
    SupervisionState,
    decide,
)

EVENTS = 50
"""Events that are kept for `supervise status`."""

LOST = "{} is none of this node's addresses any more: run `spark-cluster up` again"


@dataclass
class Supervisor:
    """Looks after the server of this node.

    Args:
        config: what the role `supervise` wrote.
        folder: where the state is kept.
    """

    config: Mapping[str, Any]
    folder: Path

    def __post_init__(self) -> None:
        self.limits = Limits(**self.config["limits"])
        kept = durable.read_object(self._file)
        self.state = SupervisionState.from_dict(kept.get("state"))
        self.need_mib = kept["need_mib"] if isinstance(kept.get("need_mib"), int) else 0
        events = kept.get("events")
        self.events: list[Any] = events[-EVENTS:] if isinstance(events, list) else []
        self.problems: list[str] = []
        self._tokens: float | None = None
        self._guarded = False
        self._written = ""

    def look_once(self, now: float) -> str:
        """Look, decide and act; return what was done (START, STOP or nothing)."""
        with self._alone() as free:
            server = looking.program(self.config["server"], self.config) if free else looking.UNSEEN
        if server.status == "unknown":  # a run is at work, or Docker does not answer (yet)
            return ""
        look = self._look(server)  # without the lock: an answer may take its time
        after, action = decide(self.state, look, now, self.limits)
        if self._guarded and after.phase != "loading":
            looking.end_guard(self.config["server"], self.config)
            self._guarded = False
        if not action:
            self._take(after, action, now)
            return ""
        with self._alone() as free:
            again = looking.program(self.config["server"], self.config) if free else looking.UNSEEN
            if again != server:  # a run, or the runtime, has done something meanwhile
                return ""
            # First: after a power cut in the middle, a stop must not look like one by hand.
            self._take(after, action, now)
            self._act(server, action)
        return action

    def _take(self, after: SupervisionState, action: str, now: float) -> None:
        before, self.state = self.state, after
        self._tell(before, action, now)
        self._keep()

    def _look(self, server: ContainerState) -> Look:
        name = self.config["server"]
        ray = looking.program(self.config["ray"], self.config)
        lost = looking.lost_of_ray(ray)
        self.problems = [LOST.format(a) for a in (*lost, *looking.lost_of_endpoint(self.config))]
        state = judge(server, None, self._completion(server) if server.kept_up else None)
        if state.serves and self.state.phase != "serving":
            programs = [(name, server), (self.config["ray"], ray)]
            self.need_mib = looking.held_mib([(n, one) for n, one in programs if one.id])
        return Look(
            server,
            state,
            ended="" if server.kept_up or not server.id else looking.load_ended_for(name),
            obstacle="" if server.kept_up else self._obstacle(server, lost),
            boot=looking.boot(),
        )

    def _completion(self, server: ContainerState) -> Completion:
        """Ask for a completion; one that does not come while others do is late."""
        found = looking.answer(server, self.limits.answer_s)
        # After each answer too: the tokens of our own question say nothing of other requests.
        before, tokens = self._tokens, looking.tokens(server)
        if tokens is None:
            return found
        self._tokens = tokens
        if found.came or found.status or before is None or tokens <= before:
            return found
        return Completion(0, why=f"busy with other requests: {found.why}", late=True)

    def _obstacle(self, server: ContainerState, lost: list[str]) -> str:
        if self.state.phase != "waiting":
            return ""
        return (
            "; ".join(map(LOST.format, lost))
            or looking.ray_obstacle(server, self.config)
            or looking.memory_obstacle(self.need_mib, self.config["title"])
        )

    def _act(self, server: ContainerState, action: str) -> None:
        name = self.config["server"]
        start = ["docker", "start", name]
        if server.runtime == "venv":
            start = ["systemctl", "start", f"{name}.service"]
        argv = looking.stop(name, server.runtime) if action == STOP else start
        looking.end_guard(name, self.config)
        if action == START:
            looking.prepare_memory(self.config)
        done = looking.output(argv, looking.ACT_S)
        if action == START and done is not None:
            programs = (name, self.config["ray"])
            looking.guard_load(name, programs, self.limits.load_s, self.config)
            self._guarded = True
        if done is None:
            self._event(time.time(), f"{' '.join(argv)} failed")
            self._keep()

    def _tell(self, before: SupervisionState, action: str, now: float) -> None:
        """Print a change; the journal has it, and `supervise status` shows the last ones."""
        after = self.state
        if before.phase == after.phase and (before.reason == after.reason or not after.reason):
            return
        done = {START: " (started)", STOP: " (stopped)"}.get(action, "")
        if after.misses:
            done = f", {after.misses} of {self.limits.misses} looks without an answer"
        self._event(now, f"{after.phase}{done}" + (f": {after.reason}" if after.reason else ""))

    def _event(self, now: float, text: str) -> None:
        self.events = [*self.events, {"at": round(now, 3), "text": text}][-EVENTS:]
        print(text, flush=True)

    # -- files ---------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self.folder / "state.json"

    def _keep(self) -> None:
        document = {
            "state": self.state.to_dict(),
            "need_mib": self.need_mib,
            "problems": self.problems,
            "events": self.events,
        }
        text = json.dumps(document, indent=1) + "\n"
        if text != self._written:
            durable.make_folder(self.folder)
            durable.write_file(self._file, text.encode())
            self._written = text

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the node's lock; False where a run has it, such as `up` or `down`."""
        lock = locks.NodeLock(Path(self.config["lock"]))
        owner = {"run": "supervision", "command": "supervise", "user": "the node itself"}
        try:
            lock.take({**owner, "since": time.time()})
        except locks.Locked:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def main(config: str) -> int:
    """Look again and again, until the unit is stopped."""
    read = json.loads(Path(config).read_text())
    supervisor = Supervisor(read, Path(read["folder"]))
    while True:
        began = time.monotonic()
        try:
            supervisor.look_once(time.time())
        except (OSError, subprocess.SubprocessError) as error:  # a full disk: the next look may do
            print(f"this look failed: {error}", flush=True)
        time.sleep(max(1.0, supervisor.limits.look_s - (time.monotonic() - began)))
