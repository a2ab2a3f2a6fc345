"""What the supervision decides from one look to the next; pure functions."""

from dataclasses import replace
from typing import Any

import pytest
from cases import each_case

from spark_cluster.node.containers import ContainerState
from spark_cluster.node.health import Life, State
from spark_cluster.node.supervisor import START, STOP, Limits, Look, SupervisionState, decide

LIMITS = Limits(misses=3, load_s=100, crashes=3, pause_s=10, longest_pause_s=40, restarts=3)
GOOD = Look(ContainerState(id="one", started="t0"), State(Life.SERVING), boot="b0")
SILENT = replace(GOOD, state=State(Life.FAILING, "timeout"))


def seen(look: Look, *, boot: str = "b0", ended: str = "", **server: Any) -> Look:
    """Return a look with another program."""
    return replace(look, server=replace(look.server, **server), boot=boot, ended=ended)


GONE = replace(seen(SILENT, status="exited", error="it failed"), state=State(Life.ENDED, "exited"))
BY_HAND = seen(GONE, error="")


def after(
    *looks: Look, state: SupervisionState | None = None, every: float = 15.0, now: float = 1000.0
) -> tuple[SupervisionState, str]:
    """Return the state and the action after looks, one every 15 seconds."""
    state, action = state or SupervisionState(boot="b0"), ""
    for look in looks:
        state, action = decide(state, look, now, LIMITS)
        now += every
    return state, action


REBOOTED = seen(SILENT, started="t1", boot="b1")
LOOKS = {
    "good": GOOD,
    "silent": SILENT,
    "busy": replace(SILENT, state=State(Life.BUSY, "timeout")),
    "puts off": replace(SILENT, state=State(Life.OVERLOADED, "status 503")),
    "gone": GONE,
    "by hand": BY_HAND,
    "held": replace(GONE, obstacle="memory is still held by PID 7"),
    "absent": Look(ContainerState("absent"), State(Life.ABSENT), boot="b0"),
    "rebooted": REBOOTED,
    "gone at boot": seen(GONE, boot="b1"),
    "another": seen(SILENT, id="two"),
    "ended for memory": seen(BY_HAND, ended="3.4 GiB were available"),
    "crashed before the boot": seen(REBOOTED, boot="b1", restarts=9),
    "good after the boot": seen(GOOD, started="t1", boot="b1"),
    **{f"crash {n}": seen(SILENT, started=f"t{n}", restarts=n) for n in (1, 2, 3)},
}


@each_case(__file__, "decisions.json")
def test_what_is_decided_after_looks(case):
    begins = SupervisionState(boot="b0", **case.get("begins", {}))
    looks = [LOOKS[name] for name in case["looks"]]
    state, action = after(*looks, state=begins, now=case.get("now", 1000.0))
    assert (state.phase, action) == (case["phase"], case["action"])
    assert case.get("reason", "") in state.reason
    assert len(state.restarts) == case.get("restarts", len(state.restarts))
    assert (state.due, state.since) == (case.get("due", state.due), case.get("since", state.since))


def test_a_pause_is_waited_for():
    state, _ = after(GOOD, SILENT, SILENT, SILENT)
    assert decide(state, GONE, state.due - 1, LIMITS)[1] == ""
    assert decide(state, GONE, state.due, LIMITS)[1] == START


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


@pytest.mark.parametrize("kept", [None, 7, [], {"phase": 7, "restarts": "x", "due": "y"}])
def test_what_was_damaged_is_left_out(kept):
    assert SupervisionState.from_dict(kept) == SupervisionState()
