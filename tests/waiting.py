"""Waiting in tests. Limits end hangs and never decide a test: far above what a busy machine takes.
Races are gated by events (a file, a line, a lock), not by pauses."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

HANG_S = 120.0
"""Seconds after which something is taken to hang."""

FAR_S = 600
"""Seconds that a process sleeps of which a test shows that nobody waits for it."""


def until(
    condition: Callable[[], T], limit_s: float = HANG_S, what: str = "", every_s: float = 0.01
) -> T:
    """Return the first true value of a condition.

    Args:
        limit_s: seconds; a hang limit.
        what: what is waited for, for the message.
        every_s: seconds between two looks.

    Raises:
        AssertionError: it did not come about within the limit.
    """
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or 'what was waited for'}: not within {limit_s:g} s")
        time.sleep(every_s)
    return found


def with_a_limit(attempt: Callable[[float], object]) -> None:
    """Try with a limit of a second, and with longer ones where the machine is too busy for what
    has to happen before it: `attempt(limit_s)` is true once it did happen."""
    for limit_s in (1.0, 10.0, 60.0):
        if attempt(limit_s):
            return
    raise AssertionError("it did not come about within a minute")
