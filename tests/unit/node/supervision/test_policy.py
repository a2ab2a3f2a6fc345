"""What the supervision decides from one look to the next; pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_cluster.node.containers import ContainerState
from spark_cluster.node.health import Life, State
from spark_cluster.node.supervisor import (
    START,
    STOP,
    Limits,
    Look,
    SupervisionState,
    decide,
)

LIMITS = Limits(misses=3, load_s=100, crashes=3, pause_s=10, longest_pause_s=40, restarts=3)
GOOD = Look(ContainerState(id="one", started="t0"), State(Life.SERVING), boot="b0")
SILENT = replace(GOOD, state=State(Life.FAILING, "timeout"))


def seen(look: Look, *, boot: str = "b0", ended: str = "", **server: Any) -> Look:
    """Return a look with another program."""
    return replace(look, server=replace(look.server, **server), boot=boot, ended=ended)


GONE = replace(seen(SILENT, status="exited", error="it failed"), state=State(Life.ENDED, "exited"))
BY_HAND = seen(GONE, error="")


def after(
    *looks: Look, state: SupervisionState | None = None, every: float = 15.0
) -> tuple[SupervisionState, str]:
    """Return the state and the action after looks, one every 15 seconds."""
    state, action, now = state or SupervisionState(boot="b0"), "", 1000.0
    for look in looks:
        state, action = decide(state, look, now, LIMITS)
        now += every
    return state, action


def test_without_a_server_nothing_is_done():
    state, action = after(Look(ContainerState("absent"), State(Life.ABSENT), boot="b0"))
    assert (state.phase, action) == ("idle", "")


def test_a_server_that_loads_is_left_alone():
    state, action = after(SILENT, SILENT, SILENT, SILENT)
    assert (state.phase, state.since, action) == ("loading", 1000.0, "")


def test_one_that_answers_serves():
    assert after(SILENT, GOOD)[0].phase == "serving"


def test_it_is_stopped_after_three_misses_and_not_before():
    state, action = after(GOOD, SILENT, SILENT)
    assert (state.phase, state.misses, action) == ("serving", 2, "")
    state, action = after(GOOD, SILENT, SILENT, SILENT)
    assert (state.phase, action) == ("waiting", STOP)
    assert state.reason == "3 times no answer: timeout"


def test_an_answer_in_between_forgives():
    assert after(GOOD, SILENT, SILENT, GOOD, SILENT, SILENT)[0].phase == "serving"


def test_one_that_writes_tokens_is_busy_not_dead():
    busy = replace(SILENT, state=State(Life.BUSY, "timeout"))
    assert after(GOOD, *[busy] * 9)[0].phase == "serving"
    assert after(GOOD, busy, SILENT, SILENT, SILENT)[1] == STOP


def test_one_that_puts_requests_off_for_good_is_dead():
    """A proxy or an API without its engine answers 503 as long as it runs."""
    off = replace(SILENT, state=State(Life.OVERLOADED, "status 503"))
    assert after(GOOD, off, off, off)[1] == STOP


def test_it_is_started_after_its_pause():
    state, action = after(GOOD, SILENT, SILENT, SILENT, GONE)
    assert (state.phase, action) == ("loading", START)


def test_a_pause_is_waited_for():
    state, _ = after(GOOD, SILENT, SILENT, SILENT)
    assert decide(state, GONE, state.due - 1, LIMITS)[1] == ""
    assert decide(state, GONE, state.due, LIMITS)[1] == START


def test_an_obstacle_is_waited_for_without_end_and_is_the_reason():
    held = replace(GONE, obstacle="memory is still held by PID 7")
    state, action = after(GOOD, SILENT, SILENT, SILENT, *[held] * 50)
    assert (state.phase, action, state.reason) == ("waiting", "", "memory is still held by PID 7")
    assert len(state.restarts) == 1, "waiting for memory is no restart"


def test_one_that_died_is_started_at_once_again():
    state, action = after(GOOD, GONE)
    assert (state.phase, action) == ("waiting", STOP)
    assert "it died" in state.reason


def test_one_that_was_stopped_by_hand_stays_stopped():
    state, action = after(GOOD, *[BY_HAND] * 5)
    assert (state.phase, action) == ("stopped", "")
    assert after(GOOD, BY_HAND, SILENT)[0].phase == "loading"


def test_our_own_stop_is_none_by_hand():
    stopped = BY_HAND
    assert after(GOOD, SILENT, SILENT, SILENT, stopped)[1] == START


def test_one_whose_load_was_ended_for_memory_was_not_stopped_by_hand():
    """P06: Docker shows the same for both."""
    ended = seen(BY_HAND, ended="3.4 GiB were available")
    state, action = after(GOOD, SILENT, SILENT, SILENT, GONE, ended)
    assert (state.phase, action, state.reason) == ("waiting", STOP, "3.4 GiB were available")
    state, action = after(BY_HAND, state=replace(state, due=0.0))
    assert (state.phase, action) == ("loading", START)


def test_what_the_runtime_started_again_is_loading():
    state, action = after(GOOD, seen(SILENT, started="t1", restarts=1))
    assert (state.phase, action) == ("loading", "")


def test_a_crash_loop_is_ended():
    looks = [seen(SILENT, started=f"t{n}", restarts=n) for n in (1, 2, 3)]
    state, action = after(GOOD, *looks)
    assert (state.phase, action) == ("waiting", STOP)
    assert state.reason == "it ended 3 times before it answered"


def test_a_stop_that_failed_is_tried_again():
    state, action = after(GOOD, SILENT, SILENT, SILENT, SILENT)
    assert (state.phase, action, len(state.restarts)) == ("waiting", STOP, 1)


def test_crashes_are_counted_from_the_last_start():
    """Docker counts from 0 again after `docker start`, and goes on counting where it does not."""
    state, action = after(GOOD, *[seen(SILENT, started=f"t{n}", restarts=n) for n in (1, 2, 3)])
    assert action == STOP
    for first in (0, 3):
        looks = [seen(SILENT, started=f"u{n}", restarts=first + n) for n in (0, 1, 2)]
        last = seen(looks[-1], restarts=first + 3)
        for begin in ([seen(GONE, restarts=3)], []):  # by us, and by hand
            begun, action = after(*begin, *looks, state=replace(state, due=0.0), every=5)
            assert (begun.phase, action) == ("loading", "")
            assert decide(begun, last, 1050.0, LIMITS)[1] == STOP


def test_crashes_before_a_boot_do_not_count():
    rebooted = seen(SILENT, started="t1", boot="b1", restarts=9)
    assert after(GOOD, rebooted, rebooted)[0].phase == "loading"


def test_one_that_never_gets_ready():
    state, action = after(*[SILENT] * 8)
    assert action == STOP
    assert "no answer 100 s after its start" in state.reason


def test_pauses_grow_and_end_in_giving_up():
    state, now, pauses = SupervisionState(boot="b0"), 1000.0, []
    for _ in range(3):
        for look in (GOOD, SILENT, SILENT, SILENT):
            state, action = decide(state, look, now, LIMITS)
        assert action == STOP
        pauses.append(state.due - now)
        now = state.due
        state, action = decide(state, GONE, now, LIMITS)
        assert action == START
    for look in (GOOD, SILENT, SILENT, SILENT):
        state, action = decide(state, look, now, LIMITS)
    assert (state.phase, action) == ("gave-up", STOP)
    assert pauses == [10, 20, 40]
    assert "given up after 3 restarts within 60 minutes" in state.reason
    assert after(*[GONE] * 9, state=state)[0].phase == "gave-up"


def given_up() -> SupervisionState:
    return SupervisionState(
        "gave-up", 900.0, "it died", restarts=(997, 998, 999), program="one", boot="b0"
    )


def test_restarts_of_long_ago_do_not_count():
    state = replace(given_up(), phase="serving", started="t0")
    now = 999 + LIMITS.window_s + 1
    for look in (SILENT, SILENT, SILENT):
        state, action = decide(state, look, now, LIMITS)
    assert (state.phase, action, len(state.restarts)) == ("waiting", STOP, 1)


def test_what_was_given_up_begins_anew_with_up_by_hand_and_at_boot():
    other = seen(SILENT, id="two")
    state, _ = after(other, state=given_up())
    assert (state.phase, state.restarts) == ("loading", ())
    assert after(SILENT, state=given_up())[0].phase == "loading"
    state, action = after(seen(GONE, boot="b1"), state=given_up())
    assert (state.phase, action, state.restarts) == ("loading", START, ())


def test_after_a_power_cut_it_is_loading_and_not_dead():
    rebooted = seen(SILENT, started="t1", boot="b1")
    state, action = after(GOOD, *[rebooted] * 5)
    assert (state.phase, action) == ("loading", "")
    assert after(GOOD, rebooted, seen(GOOD, started="t1", boot="b1"))[0].phase == "serving"


def test_a_clock_that_was_set_back_delays_nothing_for_ever():
    state = SupervisionState("waiting", 9e9, due=9e9, restarts=(9e9,), program="one", boot="b0")
    state, _ = decide(state, GONE, 1000.0, LIMITS)
    assert state.due == 1000.0 + LIMITS.longest_pause_s
    assert (state.restarts, state.since) == ((), 1000.0)


def test_what_is_kept_is_read_again():
    state, _ = after(GOOD, SILENT, SILENT, SILENT)
    assert SupervisionState.from_dict(state.to_dict()) == state


@pytest.mark.parametrize("kept", [None, 7, [], {"phase": 7, "restarts": "x", "due": "y"}])
def test_what_was_damaged_is_left_out(kept):
    assert SupervisionState.from_dict(kept) == SupervisionState()
