"""A limit on the time of every test, so that one that hangs does not hang the suite."""

import faulthandler
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from waiting import HANG_S

LAB_HANG_S = 1800.0
"""Seconds that one step of a lab test may take: the lab may be built in it, an engine loads."""

SOAK_HANG_S = 4 * 3600.0
"""Seconds that one step of a campaign may take."""


def hang_limit(item: pytest.Item) -> float:
    """Return the seconds after which a step of this test (set-up, call, teardown) is ended."""
    many_examples = item.config.getoption("--hypothesis-profile", default=None) == "soak"
    if many_examples or item.get_closest_marker("soak"):
        return SOAK_HANG_S
    loads = item.get_closest_marker("lab") or item.get_closest_marker("gpu")
    return LAB_HANG_S if loads else HANG_S


@contextmanager
def ended_when_it_hangs(item: pytest.Item) -> Iterator[None]:
    """Fail a test that hangs, with the stack of every thread, instead of the whole suite."""
    limit = hang_limit(item)

    def too_long(_signal: int, _frame: object) -> None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        pytest.fail(f"hangs: not done after {limit:g} s")  # no Exception: nothing swallows it

    old = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, limit, 60.0)  # again, where the test's own end hangs too
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with ended_when_it_hangs(item):
        return (yield)


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup
