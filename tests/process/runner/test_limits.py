"""The laptop's side: what is no agent or gets nowhere is given up, contents travel in pieces."""

import contextlib
import threading
import time
from functools import partial

import pipe_channel
import pytest
from cases import each_case
from hung_processes import peak_mib
from pipe_channel import PipeChannel
from small_server import answering
from test_agent_over_pipe import apply, verdicts
from waiting import FAR_S, HANG_S, until

from spark_cluster.agent import frames, messages
from spark_cluster.errors import Failed, Unreachable
from spark_cluster.resources import Command, File, LaptopFile
from spark_cluster.runner import session as sessions
from spark_cluster.runner import wire
from spark_cluster.runner.delivery import document
from spark_cluster.runner.node_connection import why_no_agent
from spark_cluster.runner.session import Session


@pytest.fixture
def fake():
    """`fake(text)`: a session with a Python program in the agent's place."""
    started = []

    def start(text, **options):
        channel = PipeChannel(["python3", "-c", text])
        started.append(Session("spark1", channel, as_root=False, **options))
        return started[-1]

    yield start
    for session in started:
        session._channel._process.kill()
        session.close()


# -- what is no agent, or one that has ended ------------------------------------------------------


ALIVE = frames.pack({"event": "alive"})


@each_case(__file__, "no_agents.json")
def test_the_end_of_what_is_no_agent_is_told_each_request(fake, monkeypatch, case):
    said = case["said"]
    monkeypatch.setattr(sessions, "START_WITHIN", 0.5 if said.startswith("no message") else FAR_S)
    monkeypatch.setattr(sessions, "LOST_AFTER", 0.5 if said == "no sign of life" else FAR_S)
    session = fake(f"import os, sys, time\nalive = {ALIVE!r}\n{case['text']}")
    with pytest.raises(Unreachable, match=said):
        session.run(["true"])
    with pytest.raises(Unreachable):
        session.run(["true"])


def test_content_for_an_agent_that_is_gone(fake):
    need = frames.pack({"event": "need", "req": 1, "sha256": "00", "from": 0, "size": 300_000})
    text = f"import os,time\nos.read(0, 1); os.close(0); os.write(1, {need!r}); time.sleep(1)"
    session = fake(text)
    with pytest.raises(Unreachable):
        session.request("apply", blobs={"00": b"x" * 300_000}, resources=[])


def test_too_old_a_python(fake):
    event = frames.pack({"event": "too_old", "python": "3.8.10"})
    session = fake(f"import os,sys; os.write(1, {event!r}); sys.stdin.read()")
    with pytest.raises(Failed, match=r"Python 3\.8\.10 is too old") as caught:
        session.run(["true"])
    assert "3.10" in caught.value.hint


@each_case(__file__, "silent_agents.json")
def test_why_an_agent_never_spoke(fake, monkeypatch, case):
    """The texts as sudo and shells print them, from an agent's own standard error."""
    monkeypatch.setattr(sessions, "START_WITHIN", FAR_S)
    status = case["status"]
    end = "sys.stdin.read()" if status is None else f"sys.exit({status})"
    session = fake(
        f"import sys; sys.stderr.write({case['said']!r}); sys.stderr.flush(); {end}",
        explain=partial(why_no_agent, "spark1", "nvidia"),
    )
    with pytest.raises(Failed) as caught:
        session.run(["true"])
    assert case["message"] in caught.value.message
    assert case["hint"] in caught.value.hint
    assert caught.value.where == "spark1"


@pytest.mark.parametrize("said", ["python3 ", "sudo ", "x", "x\n", "python3 not foun "])
def test_all_that_a_node_may_say_is_read_in_a_moment(said):
    text = said * (wire.SAID_BYTES // len(said))
    begun = time.process_time()
    why_no_agent("spark1", "nvidia", text, None)
    assert time.process_time() - begun < 5


# -- an agent that lives and gets nowhere --------------------------------------------------------


def test_the_limit_of_a_step_is_the_longest_that_a_resource_names():
    packed = document([Command("a", ("true",), timeout_s=20_000), File("/x", content="")])
    assert packed.longest_step_s == 20_000
    assert messages.limit_of("apply", None, packed.longest_step_s) > 20_000
    assert messages.limit_of("apply", None, 0.0) > 4 * 3600
    assert messages.limit_of("run", 30.0, 0.0) == 30.0 + messages.OVERDUE_S
    assert messages.limit_of("stream", None, 0.0) == float("inf")


def test_an_agent_that_takes_nothing_more_is_lost(fake, monkeypatch):
    """Its pipe is full, and it never reads: the request cannot be sent, nor an answer come."""
    monkeypatch.setattr(wire, "TAKES_NOTHING_S", 0.3)
    monkeypatch.setattr(sessions, "START_WITHIN", 0.5)
    monkeypatch.setattr(pipe_channel, "ENDS_WITHIN_S", 0.1)
    session = fake("import time; time.sleep(600)")
    with pytest.raises(Unreachable):
        session.run(["cat"], stdin="x" * 1_000_000)


def test_an_agent_that_takes_a_byte_now_and_then_is_lost(fake, monkeypatch):
    monkeypatch.setattr(wire, "TAKES_NOTHING_S", 0.3)
    monkeypatch.setattr(wire, "SLOWEST", 1 << 40)
    alive = frames.pack({"event": "alive"})
    session = fake(
        f"import os,time\nwhile os.read(0, 5000): os.write(1, {alive!r}); time.sleep(0.1)\n"
    )
    with pytest.raises(Unreachable, match=r"the node has read only [0-9]+ bytes in "):
        session.run(["cat"], stdin="x" * 10_000_000)


def test_a_request_that_is_too_long_is_refused_where_it_is_made(agent, monkeypatch):
    monkeypatch.setattr(frames, "LIMIT", 1 << 20)
    with pytest.raises(Failed, match="`run` is too large to be sent: 2 MiB, of which 1 MiB can"):
        agent().run(["cat"], stdin="x" * (2 << 20))


def test_an_answer_that_is_too_long_is_said_by_the_agent(agent, tmp_path):
    """Many files at their limit are more than one frame; the conversation goes on."""
    session = agent()
    root = tmp_path / "spark1"
    with (root / "nul").open("wb") as out:
        out.truncate(8 << 20)
    with pytest.raises(Failed, match=r"the answer is too long: .* can be sent at once"):
        session.request("gather", files={str(n): "/nul" for n in range(4)})
    assert session.run(["true"]).status == 0


# -- contents ------------------------------------------------------------------------------------


def test_a_file_longer_than_a_message_can_be_is_sent_in_bounded_memory(agent, tmp_path):
    size = frames.LIMIT + (9 << 20)
    source = tmp_path / "weights"
    with source.open("wb") as out:
        for number in range(5):  # not a piece like the one before it
            out.seek(number * (25 << 20) + number)
            out.write(b"%d" % number)
        out.truncate(size)
    session = agent()
    session.run(["true"])
    before = peak_mib(session._channel._process.pid)
    weights = File("/weights", content=LaptopFile(source))
    assert verdicts(apply(session, weights)) == ["change"]
    sent = tmp_path / "spark1/weights"
    assert sent.stat().st_size == size
    assert LaptopFile(sent).blob() == LaptopFile(source).blob()
    assert peak_mib(session._channel._process.pid) - before < 100
    assert verdicts(apply(session, weights)) == ["ok"]
    assert peak_mib(session._channel._process.pid) - before < 100


@pytest.mark.parametrize("change", ["shorter", "gone", "other"])
def test_a_file_that_changes_while_it_is_sent(agent, tmp_path, change):
    source = tmp_path / "weights"
    source.write_bytes(b"x" * 3_000_000)
    packed = document([File("/weights", content=LaptopFile(source))])
    if change == "shorter":
        source.write_bytes(b"x" * 2_000_000)
    elif change == "gone":
        source.unlink()
    else:
        source.write_bytes(b"y" * 3_000_000)
    events = []
    pending = agent().submit("apply", resources=packed.resources, run="r1")
    assert pending.wait(events.append, packed.blobs)["ok"] is False
    said = f"{events[-1]['error']} {events[-1]['hint']}"
    assert "run again" in said
    assert [p.name for p in (tmp_path / "spark1").iterdir() if "weights" in p.name] == []


def test_a_small_file_of_the_laptop_travels_with_its_document(agent, tmp_path):
    source = tmp_path / "small"
    source.write_bytes(b"\0\xff")
    packed = document([File("/small", content=LaptopFile(source))])
    assert packed.blobs == {}
    assert verdicts(apply(agent(), File("/small", content=LaptopFile(source)))) == ["change"]
    assert (tmp_path / "spark1/small").read_bytes() == b"\0\xff"


def test_a_file_of_the_laptop_that_is_not_there(tmp_path):
    with pytest.raises(Failed, match="none: No such file") as caught:
        document([File("/x", content=LaptopFile(tmp_path / "none"))])
    assert "sent to a node" in caught.value.hint


# -- streams -------------------------------------------------------------------------------------


def test_a_stream_waits_for_a_slow_reader_and_loses_nothing(agent, monkeypatch):
    monkeypatch.setattr(sessions, "UNREAD_BYTES", 4 << 20)
    session = agent()
    came, go_on = [], threading.Event()

    def show(event):
        came.append(event["text"])
        go_on.wait()

    script = "yes xxxxxxx | head -c 20000000; exit 7"
    pending = session.submit("stream", argv=["sh", "-c", script])
    replies = []
    thread = threading.Thread(target=lambda: replies.append(pending.wait(show)), daemon=True)
    thread.start()
    waiting = until(lambda: settled(pending.mailbox), what="the agent's waiting")
    assert waiting <= 2 << 20, "the rest is not on the laptop"
    session.request("gather")  # the conversation is not held up by it
    go_on.set()
    thread.join(HANG_S)
    assert replies[0]["status"] == 7
    assert sum(map(len, came)) == 20_000_000


def settled(mailbox):
    """Return how many characters wait, once they get no more."""
    before = mailbox.qsize()
    time.sleep(0.5)
    waiting = list(mailbox.queue)
    return sum(len(e["text"]) for e, _ in waiting) if before == len(waiting) else 0


# -- HTTP from a node ----------------------------------------------------------------------------


def endless(request):
    request.send_response(200)
    request.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(100_000):
            request.wfile.write(b"x" * 65536)


def test_an_http_answer_that_never_ends_is_cut(agent):
    session = agent()
    with answering(endless) as port:
        said = session.http(f"http://127.0.0.1:{port}/", timeout=FAR_S / 4)
    assert (said.status, said.reason) == (0, "the answer (status 200) has more than 16 MiB")
    assert peak_mib(session._channel._process.pid) < 150
