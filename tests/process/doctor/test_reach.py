"""A node that does not answer over SSH."""

from __future__ import annotations

import pytest

from spark_cluster.doctor import examine
from spark_cluster.errors import Failed, Unreachable

SILENT = Unreachable("10.0.0.2:22 did not answer within 10 s", hint="check that it is on")


@pytest.mark.parametrize(
    ("address", "pings", "cause"),
    [
        ("10.0.0.2", True, "its memory is exhausted"),
        ("10.0.0.2", False, "it is off"),
        ("100.101.102.103", None, "Tailscale SSH takes port 22"),
        ("spark2.local", None, ""),
    ],
)
def test_why(address: str, pings: bool | None, cause: str) -> None:
    result = examine.unreached("spark2", address, SILENT, pings)
    assert (result.id, result.status) == ("system.reachable", "fail")
    assert cause in result.cause
    assert "did not answer within 10 s" in result.found
    assert result.fix


def test_what_is_worth_a_ping() -> None:
    assert examine.worth_a_ping(SILENT)
    assert not examine.worth_a_ping(Unreachable("THE HOST KEY HAS CHANGED: x came"))
    assert not examine.worth_a_ping(Failed("sudo asks for the password"))


def test_pings_of_this_machine() -> None:
    assert examine.pings("127.0.0.1") in (True, None)


def test_reached() -> None:
    assert examine.reached("spark1", 0.31).found == "answered in 0.3 s"
