"""The decisions of the model loader: what is unloaded for which model, and what its users are told.

Pure: no clock, no process, no file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SHORTEST_S = 2
"""Seconds of a Retry-After at least."""

LONGEST_S = 60
"""Seconds of a Retry-After at most: a client that waits longer than a load takes is idle."""

USUAL_S = 90.0
"""Seconds of a load of which no earlier one is known."""

FIRST_PAUSE_S = 60.0
"""Seconds after a load that failed, in which it is not tried again; doubled with each failure."""

LONGEST_PAUSE_S = 900.0


@dataclass(frozen=True)
class Loaded:
    """A model that is loaded and may be unloaded.

    Attributes:
        program: name of its container.
        frees_gib: what its server gives back.
        requests: that it answers now.
        idle_s: seconds since its last request began; since its load where none came.
        loaded_s: seconds since it was loaded.
    """

    program: str
    frees_gib: float
    requests: int
    idle_s: float
    loaded_s: float

    def busy(self, stays_s: float) -> str:
        """Return why it is not unloaded now; empty when it can be."""
        if self.requests:
            return f"{self.program} has {self.requests} requests"
        if self.loaded_s < stays_s:
            return f"{self.program} was loaded {self.loaded_s:.0f} s ago"
        return ""


@dataclass(frozen=True)
class Room:
    """What is to be done for the memory of a model.

    Attributes:
        unload: programs to unload, the least recently used first.
        why_not: what stands in the way; empty when there is, or will be, enough.
        later: the others will go out of the way by themselves.
    """

    unload: tuple[str, ...] = ()
    why_not: str = ""
    later: bool = False


def make_room(
    need_gib: float, available_gib: float, loaded: Sequence[Loaded], stays_s: float
) -> Room:
    """Decide what is unloaded, so that so much memory is available: as few as will do.

    Args:
        stays_s: seconds that a model stays after it was loaded.

    >>> a, b = Loaded("a", 10, 0, 300, 900), Loaded("b", 10, 0, 100, 900)
    >>> make_room(12, 5, [b, a], 60)
    Room(unload=('a',), why_not='', later=False)
    >>> make_room(12, 5, [Loaded("a", 10, 2, 0, 900)], 60).why_not
    'a has 2 requests'
    """
    if available_gib >= need_gib:
        return Room()
    free = sorted((one for one in loaded if not one.busy(stays_s)), key=lambda one: -one.idle_s)
    chosen: list[str] = []
    for one in free:
        chosen.append(one.program)
        available_gib += one.frees_gib
        if available_gib >= need_gib:
            return Room(tuple(chosen))
    busy = [one for one in loaded if one.busy(stays_s)]
    if busy and available_gib + sum(one.frees_gib for one in busy) >= need_gib:
        return Room((), "; ".join(one.busy(stays_s) for one in busy), later=True)
    total = available_gib + sum(one.frees_gib for one in busy)
    return Room(
        (),
        f"it needs {need_gib:.1f} GiB, and with every other model unloaded {total:.1f} are "
        "available: another program has taken memory (`spark-cluster vram` names it)",
    )


@dataclass(frozen=True)
class Failure:
    """A load that failed.

    Attributes:
        why: what went wrong.
        at: when, in seconds of a clock that only goes forward.
        count: failures in a row.
    """

    why: str
    at: float
    count: int = 1

    def pause(self, now: float) -> float:
        """Return the seconds for which it is not tried again."""
        length = min(FIRST_PAUSE_S * 2.0 ** min(self.count - 1, 10), LONGEST_PAUSE_S)
        return max(0.0, self.at + length - now)


def retry_after(elapsed_s: float, usual_s: float) -> int:
    """Return the seconds after which a client is to ask again.

    >>> retry_after(10, 40), retry_after(100, 40), retry_after(0, 400)
    (30, 2, 60)
    """
    return int(min(LONGEST_S, max(SHORTEST_S, usual_s - elapsed_s)))


@dataclass(frozen=True)
class Answer:
    """What a request for a model that is not there gets: HTTP 503.

    Attributes:
        text: for a person.
        retry_s: seconds of the header Retry-After.
    """

    text: str
    retry_s: int


class Queue:
    """Each model once, in the order in which they were asked for.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._loading = ""
        self._since = 0.0
        self._doing = ""
        self._usual: dict[str, float] = {}
        self._failures: dict[str, Failure] = {}

    def ask(self, program: str) -> Answer:
        """Take a request for a model: it is queued, unless it has just failed."""
        now = self._clock()
        with self._changed:
            failure = self._failures.get(program)
            if failure is not None and (pause := failure.pause(now)) > 0:
                return Answer(
                    f"it could not be loaded: {failure.why}; it is tried again in {pause:.0f} s "
                    "at the earliest",
                    retry_after(0, pause),
                )
            if program != self._loading and program not in self._waiting:
                self._waiting.append(program)
                self._changed.notify_all()
            return self._told(program, now)

    def _told(self, program: str, now: float) -> Answer:
        usual = self._usual.get(program, USUAL_S)
        if program == self._loading:
            elapsed = now - self._since
            return Answer(
                f"it has been loading for {elapsed:.0f} s: {self._doing}",
                retry_after(elapsed, usual),
            )
        before = self._waiting.index(program) + bool(self._loading)
        ahead = f", {before} before it" if before else ""
        return Answer(f"it is going to be loaded{ahead}", retry_after(0, usual * (before + 1)))

    def take(self, limit_s: float) -> str:
        """Return the next model to load, and mark it as loading; empty after the limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, limit_s)
            if not self._waiting:
                return ""
            self._loading, self._since = self._waiting.pop(0), self._clock()
            self._doing = "begun"
            return self._loading

    def doing(self, text: str) -> None:
        """Say what is being done for the model that is loading."""
        with self._changed:
            self._doing = text

    def done(self, why_not: str = "") -> None:
        """Say that the load has ended, and why it failed if it did."""
        now = self._clock()
        with self._changed:
            program, self._loading = self._loading, ""
            if not why_not:
                self._failures.pop(program, None)
                self._usual[program] = now - self._since
                return
            before = self._failures.get(program)
            self._failures[program] = Failure(why_not, now, before.count + 1 if before else 1)

    def describe(self) -> dict[str, object]:
        """Return what is loading and what waits."""
        with self._changed:
            return {"loading": self._loading, "doing": self._doing, "waiting": [*self._waiting]}
