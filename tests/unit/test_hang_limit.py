"""A test that hangs fails, says where each of its threads was, and lets the suite go on."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import hang_limit
import pytest
from waiting import HANG_S, until


class Item:
    """A test with these markers."""

    def __init__(self, *markers: str) -> None:
        self.markers = markers
        self.config = SimpleNamespace(getoption=lambda _name, default: default)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.markers


def test_a_test_that_hangs_is_ended(monkeypatch, tmp_path: Path) -> None:
    never = threading.Event()

    def swallows() -> None:
        try:
            never.wait()
        except Exception:  # noqa: BLE001  (what a careless program does)
            never.wait()

    monkeypatch.setattr(hang_limit, "HANG_S", 0.05)
    with (tmp_path / "stacks").open("w+") as stacks:
        monkeypatch.setattr(sys, "__stderr__", stacks)
        caught = pytest.raises(pytest.fail.Exception, match=r"hangs: not done after 0\.05 s")
        with caught, hang_limit.ended_when_it_hangs(Item()):
            swallows()
        stacks.seek(0)
        assert "in swallows" in stacks.read()


def test_the_limits_are_far_above_what_a_test_takes() -> None:
    assert hang_limit.hang_limit(Item()) == HANG_S >= 120
    assert hang_limit.hang_limit(Item("lab")) >= 900
    assert hang_limit.hang_limit(Item("lab", "soak")) >= 3600


def test_until() -> None:
    left = iter([0, "", "found"])
    assert until(lambda: next(left)) == "found"
    with pytest.raises(AssertionError, match="the file is there: not within 0 s"):
        until(lambda: False, 0, "the file is there")
