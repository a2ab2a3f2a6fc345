"""A test that hangs fails, says where each of its threads was, and lets the suite go on."""

import sys
import threading
from types import SimpleNamespace

import hang_limit
import pytest


class Item:
    """A test with these markers."""

    def __init__(self, *markers: str) -> None:
        self.markers = markers
        self.config = SimpleNamespace(getoption=lambda _name, default: default)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.markers


def test_a_test_that_hangs_is_ended(monkeypatch, tmp_path):
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
