"""The agent's parts in this process: disk full, masking, faults of our own, the overlay."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.agent.apply import apply
from spark_cluster.agent.host import Host, explain
from spark_cluster.agent.masking import MASK, mask, secrets_in
from spark_cluster.agent.overlay import Overlay
from spark_cluster.resources import Command, File
from spark_cluster.resources.base import Secret, to_wire

pytestmark = pytest.mark.usefixtures("time_limit")


def results(root, *resources, **options):
    events = []
    reply = apply(resources, Host(root=root, run_id="r", **options), events.append)
    return reply["ok"], [e for e in events if e["event"] == "result"]


# -- errors of the operating system ----------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_says_where_and_how_much(tmp_path, code):
    text = explain(OSError(code, os.strerror(code), str(tmp_path / "none" / "file")))
    assert text.startswith(f"no space left on the disk of {tmp_path} (")
    assert text.endswith(" KiB free)")
    assert "no space left on the disk of /" in explain(OSError(code, os.strerror(code)))


def test_other_errors_name_the_file():
    assert explain(OSError(errno.EACCES, "Permission denied", "/etc/x")) == (
        "/etc/x: permission denied"
    )
    assert explain(OSError("odd")) == "odd"


def test_a_disk_that_is_full_fails_one_file_and_leaves_nothing_half_done(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def full(_handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ok, (result,) = results(tmp_path, File("/a", content="new"), File("/b", content="x"))
    monkeypatch.undo()
    assert not ok
    assert result["verdict"] == "failed"
    assert "no space left on the disk of" in result["error"]
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["a"]


def test_a_fault_of_our_own_is_told_with_its_resource(tmp_path, monkeypatch):
    def broken(_self, _host):
        return {}["what nobody thought of"]

    monkeypatch.setattr(Command, "observe", broken)
    ok, (result,) = results(tmp_path, Command("x", ("true",)))
    assert not ok
    assert result["id"] == "Command:x"
    assert "KeyError: 'what nobody thought of' (test_agent_parts.py:" in result["error"]
    assert "report it" in result["hint"]


# -- masking ---------------------------------------------------------------------------------------


def test_masking():
    message = {
        "event": "result",
        "verdict": "ok",
        "id": "File:/ok",
        "error": "the ok key: ok",
        "changes": {"key": ["ok", None], "n": [1, True]},
    }
    assert mask(message, {"ok"}) == {
        "event": "result",
        "verdict": "ok",
        "id": "File:/ok",
        "error": "the *** key: ***",
        "changes": {"key": ["***", None], "n": [1, True]},
    }
    assert mask("abcd abc", ["abc", "abcd"]) == "*** ***", "the longest first"
    assert mask(message, ["", ""]) == message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abcdef"), inner),
    max_leaves=20,
)


@given(json_values, st.text("xyz", min_size=1, max_size=3))
def test_no_text_holds_the_secret_afterwards(value, secret):
    masked = mask(value, [secret])
    texts = list(_texts(masked))
    assert not any(secret in text.replace(MASK, " ") for text in texts)


def _texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def test_secrets_of_a_document():
    command = Command("x", ("true",), env={"A": Secret("one"), "B": "plain"}, stdin=Secret("two"))
    request = {"op": "apply", "resources": [to_wire(command), to_wire(File("/a", content="three"))]}
    assert secrets_in(json.loads(json.dumps(request))) == {"one", "two"}


# -- the overlay -----------------------------------------------------------------------------------


def test_the_first_maker_is_named():
    overlay = Overlay()
    overlay.claim(("path:/a", "user:x"), "one")
    overlay.claim(("path:/a",), "two")
    assert overlay.maker("path:/a") == "one"
    assert overlay.maker("path:/b") is None
    host = Host(root=Path("/none"), overlay=overlay)
    assert host.pending("path:/a") is None, "without check mode nothing is pending"
