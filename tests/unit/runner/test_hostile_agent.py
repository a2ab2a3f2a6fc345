"""A node that lies or hangs: whatever it sends, each request ends with an error that names it."""

import importlib
import queue
import threading

import pytest
from cases import cases
from hostile.agent import DEEP, Frame, Played, ended, raw, said
from waiting import HANG_S, until

from spark_cluster.agent import frames, messages
from spark_cluster.agent.operations import ACTIONS_OF, OPERATIONS, AgentNode, Laptop, carry_out
from spark_cluster.errors import SparkClusterError
from spark_cluster.runner import session as sessions
from spark_cluster.runner.session import Session

DONE = {"event": "done", "req": 1}
MACHINE = {
    "python": "3.12.3", "cpus": 20, "arch": "aarch64", "kernel": "6.11", "hostname": "spark1",
    "disk_total": 1, "disk_free": 1,
}  # fmt: skip
NOTHING = {"commands": {}, "files": {}, "trees": {}, "requests": {}, "late": {}}
NONSENSE = {
    "JSON nested too deeply": [raw(DEEP)],
    "a list": [raw(b"[]")],
    "no text": [raw(b"\xff\xfe")],
    "nothing at all": [raw(b"")],
    "an object that is cut": [raw(b'{"event": "done", "req": 1')],
    **{name: said(*messages) for name, messages in cases(__file__, "nonsense.json").items()},
}


@pytest.fixture
def short_limits(monkeypatch):
    monkeypatch.setattr(messages, "OVERDUE_S", 0.2)
    monkeypatch.setattr(messages, "USUAL_S", 0.2)
    monkeypatch.setattr(messages, "LONGEST_STEP_S", 0.2)


def error_of(channel, op="gather", **what):
    """The error that a request ends with; nothing of it is left."""
    session, found = Session("spark1", channel), []

    def ask():
        try:
            found.append(session.request(op, **what))
        except Exception as error:  # noqa: BLE001  (it is what is looked at)
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HANG_S / 4)
    assert not thread.is_alive(), "it waits for ever"
    assert ended(session)
    (error,) = found
    assert isinstance(error, SparkClusterError), repr(error)
    assert error.where == "spark1"
    return error


@pytest.mark.parametrize(
    ("printed", "quoted"),
    [
        (
            b"This account is currently not available.\n",
            "'This account is currently not available.'",
        ),
        (b"Welcome\r\nto DGX OS \xff\n" + b"x" * 99_999, "'Welcome'"),
        (b"x" * 99_999, f"'{'x' * 200}'"),
        (b"hi" + frames.pack({"event": "alive"}), "'hi'"),
        (b"\x1b[31mred\x1b[0m\n", "a frame of"),
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
    ],
)
def test_what_a_login_shell_prints_is_quoted(printed, quoted):
    channel = Played([Frame(printed, 1)], "alive")
    error = error_of(channel, commands={"ss": ["ss", "-H"]})
    assert "not the agent's protocol" in error.message
    assert quoted in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize("name", NONSENSE)
def test_what_is_not_the_protocol_ends_the_session_at_once(name, deaths):
    channel = Played(NONSENSE[name], "alive")
    error = error_of(channel, commands={"ss": ["ss", "-H"]})
    assert "not the agent's protocol" in error.message
    assert error.hint
    assert deaths == []


@pytest.mark.parametrize(
    "name", ["../../etc/cron.d/x.json", "/x.json", "a/b.json", "x", "a b.json"]
)
def test_a_name_that_no_tuned_file_has_is_not_the_protocol(name):
    """Paths on the other nodes are made of it, where root writes."""
    entry = {"model": "m", "tp": 2, "file": name, "image": "ab"}
    reply = {**DONE, "launches": [], "compiled": {}, "tuned": [entry]}
    error = error_of(Played(said(reply), "alive"), "caches", what="state", folder="/x")
    assert "not the agent's protocol" in error.message


def test_the_error_says_what_was_found_and_what_was_expected():
    done = {"ss": {"status": "0", "stdout": "", "stderr": ""}}
    frames = said({**DONE, **NOTHING, "machine": MACHINE, "commands": done})
    error = error_of(Played(frames), commands={"ss": ["ss"]})
    assert 'in the reply to `gather` commands.ss.status is "0", expected a whole' in error.message


def test_a_frame_that_drips_ends_the_session(monkeypatch, deaths):
    monkeypatch.setattr(sessions, "FRAME_S", 0.2)
    error = error_of(Played(said({"event": "alive"}), "drip"), "stream", argv=["true"])
    assert "bytes of a message of 134217732 have come in " in error.message
    assert deaths == []


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("x", {"UNREAD_MESSAGES": 50}),
        ("x" * 10_000, {"UNREAD_BYTES": 500_000}),
    ],
)
def test_a_node_that_floods_does_not_fill_the_memory(monkeypatch, text, limits):
    """While the terminal shows something, or its user thinks, nobody takes what comes."""
    for name, limit in limits.items():
        monkeypatch.setattr(sessions, name, limit)
    flood = [{"event": "output", "req": 1, "text": text}] * 1000
    session = Session("spark1", Played(said(*flood), "alive"))
    pending = session.submit("stream", argv=["true"])
    until(lambda: pending.mailbox.qsize() > 45)
    assert ended(session)
    assert pending.mailbox.qsize() <= 60
    shown = []
    with pytest.raises(SparkClusterError, match="faster than they are read") as caught:
        pending.wait(shown.append)
    assert caught.value.where == "spark1"
    assert len(shown) >= 45, "what came before is shown"


@pytest.mark.parametrize("ending", ["alive", "drip", "chatter"])
@pytest.mark.parametrize("op", ["run", "gather", "http", "lock", "apply", "revert"])
def test_the_limit_of_a_request_holds_whatever_comes(short_limits, ending, op):
    what = {"timeout": 0.2} if op in ("run", "gather", "http") else {}
    error = error_of(Played([], ending), op, **what)
    assert f"`{op}` got no answer for " in error.message


def test_each_operation_has_its_reply_here():
    """What is not listed is not checked: a new operation says what it returns."""
    assert {*messages.REPLIES, *messages.ACTIONS, "gather", "history"} == {*OPERATIONS}


@pytest.mark.parametrize("op", ACTIONS_OF)
def test_an_operation_has_the_actions_that_are_listed_here(op, tmp_path):
    module = importlib.import_module(f"spark_cluster.agent.{ACTIONS_OF[op]}")
    assert {*messages.ACTIONS[op]} <= {*module.ACTIONS[op]}
    laptop = Laptop(print, lambda _: (), str, queue.Queue())
    reply = carry_out(AgentNode(tmp_path), {"op": op, "what": "dance"}, laptop)
    assert reply == {"error": f"this agent's `{op}` has no action 'dance'", "hint": ""}
