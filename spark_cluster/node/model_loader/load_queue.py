"""The queue of models that have been asked for, one load at a time, and the answers meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from spark_cluster.node.model_loader.policy import USUAL_S, Failure, retry_after


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
