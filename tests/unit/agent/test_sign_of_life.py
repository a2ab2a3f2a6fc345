"""The agent asks for the laptop's sign of life also while it has much to tell."""

import io
import os
import threading

from waiting import until

from spark_cluster.agent import main


def test_a_stream_of_events_is_no_sign_of_the_laptop(tmp_path, monkeypatch):
    reading, writing = os.pipe()
    agent = main.Agent(io.BytesIO(), writing, tmp_path)
    clock = agent.heard = 1000.0  # whole seconds: a sum of them is exact
    monkeypatch.setattr(main.time, "monotonic", lambda: clock)
    for _ in range(30):  # a line of progress each second
        clock += 1.0
        agent.writer.send({"event": "progress"})
        if agent.asks_for_life():
            break
    assert clock - agent.heard == main.ALIVE_EVERY < main.GONE_AFTER
    agent.heard = clock
    assert not agent.asks_for_life(), "the laptop has answered"
    os.close(reading)
    os.close(writing)


def test_a_writer_that_waits_for_the_laptop_keeps_no_one_from_giving_it_up():
    """The pipe is full: who writes waits, the sign of life does not, and `broken` ends the wait."""
    reading, writing = os.pipe()
    writer = main.Writer(writing)
    waiting = threading.Thread(target=writer.send, args=({"event": "x" * 1_000_000},))
    waiting.start()
    os.read(reading, 1)  # it is being written
    until(writer._lock.locked)
    writer.alive()  # returns
    assert waiting.is_alive()
    writer.broken.set()
    waiting.join()
    writer.send({"event": "later"})  # into nothing, and without waiting
    os.close(reading)
    os.close(writing)


def test_a_reader_who_is_gone_breaks_the_writer():
    reading, writing = os.pipe()
    writer = main.Writer(writing)
    os.close(reading)
    writer.send({"event": "x"})
    assert writer.broken.is_set()
    os.close(writing)


def test_each_part_of_a_long_message_is_a_sign_of_life(tmp_path, monkeypatch):
    """A content of many megabytes over a slow line: its frame is long on its way."""
    moments = iter(range(100))
    monkeypatch.setattr(main, "PART", 10)
    agent = main.Agent(io.BytesIO(b"x" * 25), 1, tmp_path)
    monkeypatch.setattr(main.time, "monotonic", lambda: next(moments))
    assert agent.read(100) == b"x" * 25
    assert next(moments) == 3
