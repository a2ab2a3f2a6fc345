"""Judge whether an engine's server lives: one pure function, for the laptop and for the nodes.

Readiness, `status`, `doctor`, `bench`, the short load, supervision and the model loader bring what
they have looked at (the container, /health, a completion) and decide by the state that comes back.
Standard library only: it travels with the programs of units.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_cluster.node.containers import ContainerState

MANY_RESTARTS = 3
"""Restarts after which a server that takes no requests is failing, not loading. Docker waits longer
each time; after a reboot one or two are usual, until Ray's head is there."""

HEALTH_S = 5.0
"""Seconds for the answer of /health: as long as the proxy waits for it. An engine that hangs is not
dead."""

HEALTH_UNDER_LOAD_S = 10.0
"""The same after requests that kept the server busy."""


class Life(Enum):
    """The states of a server."""

    UNSEEN = "unseen"
    """The node or its runtime did not answer: nothing is concluded."""
    ABSENT = "absent"
    """There is no such program."""
    UNLOADED = "unloaded"
    """It is made, and started by the model loader when it is asked for."""
    ENDED = "ended"
    """Its process has ended, or ends again and again before it takes requests."""
    DEAD = "dead"
    """Its API says by /health that the engine has died."""
    LOADING = "loading"
    """Its process runs and takes no requests yet."""
    FAILING = "failing"
    """It takes requests, and /health or a completion fails: its engine may have died."""
    BUSY = "busy"
    """No completion in time, or none while others are answered: that says nothing of its engine."""
    OVERLOADED = "overloaded"
    """It puts a completion off: too many requests for now, or no engine behind it for good."""
    REFUSING = "refusing"
    """It answers a completion, and not with one: another key, another program."""
    SERVING = "serving"
    """Nothing that was looked at speaks against it."""


@dataclass(frozen=True)
class State:
    """The verdict on a server.

    Attributes:
        reason: why it does not serve, as a predicate (`is exited`) or a clause (`/health does not
            return 200 (500)`); empty where it serves.
    """

    life: Life
    reason: str = ""

    @property
    def serves(self) -> bool:
        return self.life is Life.SERVING

    @property
    def gone(self) -> bool:
        """True where there is no engine any more."""
        return self.life in (Life.ABSENT, Life.ENDED, Life.DEAD)

    def of(self, subject: str, prefix: str = "") -> str:
        """Return the reason as a sentence about a server.

        Args:
            subject: the server in words.
            prefix: what stands in its place before a clause.

        >>> State(Life.ENDED, "is exited").of("the server")
        'the server is exited'
        >>> State(Life.FAILING, "/health is bad").of("the replica", "the replica: ")
        'the replica: /health is bad'
        """
        if self.life in (Life.UNSEEN, Life.ABSENT, Life.UNLOADED, Life.ENDED, Life.LOADING):
            return f"{subject} {self.reason}"
        return f"{prefix}{self.reason}"


@dataclass(frozen=True)
class Completion:
    """The answer to a request that only a working engine can answer.

    Attributes:
        status: of HTTP; 0 without an answer.
        text: the beginning of the answer.
        why: why there is no answer. With status 200: the reply was something else.
        late: it was not awaited any longer, or other requests were answered meanwhile: that says
            nothing of the engine.
    """

    status: int
    text: str = ""
    why: str = ""
    late: bool = False

    @property
    def came(self) -> bool:
        """True for an answer, whatever it says."""
        return self.status == 200 and not self.why

    @property
    def fault(self) -> str:
        """Why there is none, in words."""
        return self.why or (f"status {self.status}" if self.status else "no answer in time")


def judge(
    container: ContainerState | None,
    health: int | None = None,
    completion: Completion | None = None,
    *,
    died: int | None = None,
    loading: int | None = None,
) -> State:
    """Return the state of a server by what was looked at; None is what was not.

    Args:
        container: its container or unit, `unknown` where its node does not answer.
        health: HTTP status of its /health; 0 where nothing takes connections.
        completion: the answer to a request.
        died: the status of /health with which this engine says that it has died
            (`Engine.died`); None where there is no such status.
        loading: the same while it loads (`Engine.loading`).
    """
    if container is not None and not container.running:
        return _without_process(container)
    if health is not None and health in (0, loading):
        often = container.restarts if container is not None else 0
        if often >= MANY_RESTARTS:
            return State(Life.ENDED, f"has been restarted {often} times and takes no requests")
        return State(Life.LOADING, "takes no requests yet: it is loading")
    if health is not None and health != 200:
        life = Life.DEAD if health == died else Life.FAILING
        return State(life, f"/health does not return 200 ({health})")
    if completion is None or completion.came:
        return State(Life.SERVING)
    return State(_of_completion(completion), completion.fault)


FAILS = (0, 500)
"""Status of a completion, at once, where the API has ended or its engine has died."""


def _without_process(container: ContainerState) -> State:
    if container.status == "unknown":
        why = container.error or "its runtime does not answer"
        return State(Life.UNSEEN, f"was not seen: {why}")
    if container.status == "absent":
        return State(Life.ABSENT, "is gone")
    if container.unloaded:
        return State(Life.UNLOADED, "is loaded on request, and is not loaded now")
    return State(Life.ENDED, f"is {container.in_words}")


def _of_completion(completion: Completion) -> Life:
    if completion.late:
        return Life.BUSY
    if completion.status in FAILS:
        return Life.FAILING
    if completion.status == 429 or completion.status > 500:
        return Life.OVERLOADED
    return Life.REFUSING
