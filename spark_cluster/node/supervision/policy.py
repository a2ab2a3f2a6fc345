"""Decide from one look at the engine's server what is to be done; no input, no output, no clock.

The runtime (Docker, systemd) starts a program again whose process ends. What it does not know:
that a server runs and answers nothing, that its memory is still held, and when to give up.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from spark_cluster.node.containers import ContainerState
from spark_cluster.node.health import MANY_RESTARTS, Life, State

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

    def to_dict(self) -> dict[str, Any]:
        """Return it as it is kept."""
        return {**asdict(self), "restarts": list(self.restarts)}

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
