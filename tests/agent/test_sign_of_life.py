"""The agent asks for the laptop's sign of life also while it has much to tell."""

import io
import os

from spark_cluster.agent import main


def test_a_stream_of_events_is_no_sign_of_the_laptop(tmp_path, monkeypatch):
    reading, writing = os.pipe()
    agent = main.Agent(io.BytesIO(), writing, tmp_path)
    clock = agent.heard
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
