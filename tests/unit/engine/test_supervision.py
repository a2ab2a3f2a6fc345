"""What a head reports of its supervision; its files are foreign input."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from spark_cluster.engine import supervision

KEPT = {
    "state": {"phase": "waiting", "reason": "it died", "restarts": [1.0], "due": 11.0},
    "problems": ["10.0.0.5 is none of this node's addresses any more"],
    "events": [{"at": 1.0, "text": "serving"}, {"at": 2, "text": "waiting (stopped): it died"}],
}


def report(state: str | None, *, installed: bool = True) -> supervision.Supervision:
    """Return what is read from a head with these files."""
    kept = {"state": state, "config": "{}" if installed else None}
    printed = {"active": "active\n", "enabled": "enabled\n"}

    def request(op: str, commands: dict[str, list[str]], files: Any) -> dict[str, Any]:
        assert (op, set(files)) == ("gather", set(kept))
        done = {name: {"status": 0, "stdout": printed[name], "stderr": ""} for name in commands}
        return {"commands": done, "files": kept}

    session: Any = SimpleNamespace(request=request)
    return supervision.report(session)


def test_what_it_did_and_waits_for():
    found = report(json.dumps(KEPT)).to_dict()
    assert (found["installed"], found["active"], found["at_boot"]) == (True, "active", True)
    assert (found["phase"], found["reason"], found["due"]) == ("waiting", "it died", 11.0)
    assert found["problems"] == KEPT["problems"]
    assert found["events"] == KEPT["events"]


def test_where_it_is_not_installed():
    found = report(None, installed=False)
    assert (found.installed, found.state.phase, found.events) == (False, "idle", ())


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "7", '{"state": [], "problems": 7, "events": [7, {}, {"at": "x"}]}']
)
def test_a_damaged_file(text):
    found = report(text)
    assert (found.state.phase, found.problems, found.events) == ("idle", (), ())


@pytest.mark.parametrize("number", ["1" + "0" * 400, "9" * 5000, "1e999", "-1e300", "NaN"])
def test_numbers_that_no_clock_shows(number):
    text = json.dumps(KEPT).replace("11.0", number).replace("1.0", number)
    found = report(text)
    assert 0 <= found.events[0].at <= 2**32
    assert found.to_dict()["phase"] == "waiting"
