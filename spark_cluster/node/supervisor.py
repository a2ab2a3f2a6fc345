"""The program of the unit `spark-cluster-supervise`: look, decide, act, and keep what is known.

The decision is one pure function (`decide`); `look` asks the node and acts on it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from spark_cluster.node import durable, local_server
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.health import MANY_RESTARTS, Completion, Life, State, judge
from spark_cluster.node.values import boot_id

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
            server = self._program(free)
        if server.status == "unknown":  # a run is at work, or Docker does not answer (yet)
            return ""
        look = self._look(server)  # without the lock: an answer may take its time
        after, action = decide(self.state, look, now, self.limits)
        if self._guarded and after.phase != "loading":
            local_server.end_guard(self.config["server"], self.config)
            self._guarded = False
        if not action:
            self._take(after, action, now)
            return ""
        with self._alone() as free:
            again = self._program(free)
            if again != server:  # a run, or the runtime, has done something meanwhile
                return ""
            # First: after a power cut in the middle, a stop must not look like one by hand.
            self._take(after, action, now)
            self._act(server, action)
        return action

    def _program(self, free: bool) -> ContainerState:
        """Return the server's program; `unknown` while a run has the lock."""
        name = self.config["server"]
        return local_server.program(name, self.config) if free else local_server.UNSEEN

    def _take(self, after: SupervisionState, action: str, now: float) -> None:
        before, self.state = self.state, after
        self._tell(before, action, now)
        self._keep()

    def _look(self, server: ContainerState) -> Look:
        name = self.config["server"]
        ray = local_server.program(self.config["ray"], self.config)
        lost = local_server.lost_of_ray(ray)
        self.problems = [
            LOST.format(a) for a in (*lost, *local_server.lost_of_endpoint(self.config))
        ]
        state = judge(server, None, self._completion(server) if server.kept_up else None)
        if state.serves and self.state.phase != "serving":
            programs = [(name, server), (self.config["ray"], ray)]
            self.need_mib = local_server.held_mib([(n, one) for n, one in programs if one.id])
        return Look(
            server,
            state,
            ended="" if server.kept_up or not server.id else local_server.load_ended_for(name),
            obstacle="" if server.kept_up else self._obstacle(server, lost),
            boot=boot_id(),
        )

    def _completion(self, server: ContainerState) -> Completion:
        """Ask for a completion; one that does not come while others do is late."""
        found = local_server.answer(server, self.limits.answer_s)
        # After each answer too: the tokens of our own question say nothing of other requests.
        before, tokens = self._tokens, local_server.tokens(server)
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
            or local_server.ray_obstacle(server, self.config)
            or local_server.memory_obstacle(self.need_mib, self.config["title"])
        )

    def _act(self, server: ContainerState, action: str) -> None:
        name = self.config["server"]
        if action == START:
            programs = (name, self.config["ray"])
            failed = local_server.start(
                name, server.runtime, programs, self.limits.load_s, self.config
            )
            self._guarded |= not failed
        else:
            failed = local_server.stop(name, server.runtime, self.config)
        if failed:
            self._event(time.time(), f"{failed} failed")
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
            "state": asdict(self.state),
            "need_mib": self.need_mib,
            "problems": self.problems,
            "events": self.events,
        }
        text = json.dumps(document, indent=1) + "\n"
        if text != self._written:
            durable.put_file(self._file, text.encode())
            self._written = text

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the node's lock; False where a run has it, such as `up` or `down`."""
        lock = durable.NodeLock(Path(self.config["lock"]))
        owner = {"run": "supervision", "command": "supervise", "user": "the node itself"}
        try:
            lock.take({**owner, "since": time.time()})
        except durable.Locked:
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


# Decide from one look at the engine's server what is to be done; no input, no output, no clock.
#
# The runtime (Docker, systemd) starts a program again whose process ends. What it does not know:
# that a server runs and answers nothing, that its memory is still held, and when to give up.

START, STOP = "start", "stop"


@dataclass(frozen=True)
class Limits:
    """Limits of supervision, in seconds where nothing else is said.

    Attributes:
        look_s: between two looks.
        answer_s: for a completion.
        misses: looks without an answer after which a server that answered counts as dead.
        load_s: until a server that was started must answer.
        crashes: times that the runtime starts a server again before it answers.
        pause_s, longest_pause_s: before a start; doubled for each one within `window_s`.
        restarts: starts within `window_s` after which it is given up.
    """

    look_s: float = 15.0
    answer_s: float = 30.0
    misses: int = 3
    load_s: float = 1800.0
    crashes: int = MANY_RESTARTS
    pause_s: float = 10.0
    longest_pause_s: float = 600.0
    restarts: int = 5
    window_s: float = 3600.0


@dataclass(frozen=True)
class Look:
    """The server at one moment.

    Attributes:
        server: its program, as its runtime tells it.
        state: whether it lives.
        ended: why its load was ended by the guard of the node's memory; empty where it was not.
        obstacle: a start has to wait for this; empty where it has not.
        boot: id of this boot of the node.
    """

    server: ContainerState
    state: State
    ended: str = ""
    obstacle: str = ""
    boot: str = ""

    @property
    def why(self) -> str:
        """Why it does not answer, in words."""
        return self.state.reason if self.server.kept_up else "its process has ended"


@dataclass(frozen=True)
class SupervisionState:
    """The memory of the supervision, kept on disk.

    Attributes:
        phase: `idle` (there is no server), `stopped` (by hand), `loading`, `serving`, `waiting`
            (for a pause or an obstacle, then it is started) or `gave-up`.
        since: when the phase began, seconds since 1970.
        reason: what went wrong last, in words.
        misses: looks without an answer, in a row.
        crashes: of the runtime when the phase began.
        restarts: when it was stopped to be started again, seconds since 1970.
        due: when it is started at the earliest.
        program, started, boot: as at the last look.
    """

    phase: str = "idle"
    since: float = 0.0
    reason: str = ""
    misses: int = 0
    crashes: int = 0
    restarts: tuple[float, ...] = field(default=())
    due: float = 0.0
    program: str = ""
    started: str = ""
    boot: str = ""

    @classmethod
    def from_dict(cls, found: Any) -> SupervisionState:
        """Read what was kept; what is not understood is left out."""
        kept: dict[str, Any] = found if isinstance(found, dict) else {}
        given: dict[str, Any] = {}
        for one in fields(cls):
            value, default = kept.get(one.name), one.default
            if one.name == "restarts":
                rows = value if isinstance(value, list) else []
                given["restarts"] = tuple(float(t) for t in rows if isinstance(t, int | float))
            elif isinstance(value, str if isinstance(default, str) else int | float):
                given[one.name] = value
        return cls(**given)


def decide(
    state: SupervisionState, look: Look, now: float, limits: Limits
) -> tuple[SupervisionState, str]:
    """Return the state after a look, and what is to be done: START, STOP or nothing."""
    state = _at_boot(_of_now(state, now, limits), look, now)
    if not look.server.id:
        return _enter(replace(SupervisionState(), boot=look.boot), "idle", now, state), ""
    if look.server.id != state.program:  # `up` or `swap` made a new one: nothing is held against it
        state = _enter(SupervisionState(program=look.server.id, boot=look.boot), "loading", now)
        state = replace(state, crashes=look.server.restarts)
    if state.phase in ("waiting", "gave-up"):
        if not look.server.kept_up:
            return _not_running(state, look, now)
        if look.server.started == state.started and not look.state.serves:
            return state, STOP  # the stop failed
    if look.state.serves:
        state = replace(state, misses=0, crashes=look.server.restarts, started=look.server.started)
        return _enter(state, "serving", now, state), ""
    if look.server.by_hand and not look.ended:
        return _enter(state, "stopped", now, state, "it was stopped by hand"), ""
    return _without_answer(state, look, now, limits)


def _without_answer(
    state: SupervisionState, look: Look, now: float, limits: Limits
) -> tuple[SupervisionState, str]:
    """Judge a server that runs, or has died, and gives no answer."""
    began_again = look.server.started != state.started
    # A start by hand or by us, and perhaps a boot, lets the runtime count from 0.
    crashes = min(state.crashes, look.server.restarts)
    state = replace(state, started=look.server.started, crashes=crashes)
    if state.phase == "serving" and not began_again:
        if not look.server.kept_up:
            return _end(state, f"it died: {look.why}", now, limits)
        misses = 0 if look.state.life is Life.BUSY else state.misses + 1
        state = replace(state, misses=misses, reason=look.why)
        if misses < limits.misses:
            return state, ""
        return _end(state, f"{misses} times no answer: {look.why}", now, limits)
    if state.phase != "loading":
        served = state.phase == "serving"  # then crashes count from its last answer
        why = f"its process began again: {look.why}" if served else look.why
        state = replace(state, crashes=state.crashes if served else look.server.restarts)
        state = _enter(state, "loading", now, reason=why)
    times = max(0, look.server.restarts - state.crashes)
    failed = look.ended
    if times >= limits.crashes:
        failed = failed or f"it ended {times} times before it answered"
    elif now - state.since > limits.load_s:
        failed = failed or f"no answer {limits.load_s:g} s after its start"
    return _end(state, failed, now, limits) if failed else (state, "")


def _not_running(state: SupervisionState, look: Look, now: float) -> tuple[SupervisionState, str]:
    if state.phase == "gave-up" or now < state.due:
        return state, ""
    if look.obstacle:
        return replace(state, reason=look.obstacle), ""
    begun = replace(_enter(state, "loading", now), crashes=look.server.restarts)
    return begun, START


def _end(
    state: SupervisionState, why: str, now: float, limits: Limits
) -> tuple[SupervisionState, str]:
    """Have it stopped, to be started after a pause; or for good, when that was tried enough."""
    count = len(state.restarts)
    if count >= limits.restarts:
        text = f"{why}; given up after {count} restarts within {limits.window_s / 60:g} minutes"
        return _enter(state, "gave-up", now, reason=text), STOP
    pause = min(limits.pause_s * 2**count, limits.longest_pause_s)
    ended = replace(state, restarts=(*state.restarts, now), due=now + pause, misses=0)
    return _enter(ended, "waiting", now, reason=why), STOP


def _enter(
    state: SupervisionState,
    phase: str,
    now: float,
    before: SupervisionState | None = None,
    reason: str = "",
) -> SupervisionState:
    """Return the state in a phase, whose beginning is kept where it was the phase before."""
    since = before.since if before is not None and before.phase == phase else now
    return replace(state, phase=phase, since=since, reason=reason)


def _of_now(state: SupervisionState, now: float, limits: Limits) -> SupervisionState:
    """Leave out what is past, and moments that a clock which was set back has put in the future."""
    recent = tuple(t for t in state.restarts if now - limits.window_s <= t <= now)
    due = min(state.due, now + limits.longest_pause_s)
    return replace(state, restarts=recent, due=due, since=min(state.since, now))


def _at_boot(state: SupervisionState, look: Look, now: float) -> SupervisionState:
    """After a reboot or a power cut a server that was given up is tried again."""
    if look.boot == state.boot:
        return state
    state = replace(state, boot=look.boot, restarts=(), misses=0)
    if state.phase == "gave-up":
        return replace(_enter(state, "waiting", now, reason=state.reason), due=now)
    if state.phase in ("serving", "loading"):
        return replace(_enter(state, "loading", now), crashes=look.server.restarts)
    return state
