"""What is unloaded for which model, the queue, and what users are told meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.node import model_loader
from spark_cluster.node.model_loader import Failure, LoadedModel, Queue, make_room, retry_after

OLD = LoadedModel("old", 10, requests=0, idle_s=300, loaded_s=900)
NEWER = LoadedModel("newer", 10, requests=0, idle_s=100, loaded_s=900)


@pytest.mark.parametrize(
    ("available", "loaded", "unload"),
    [
        (20, [NEWER, OLD], ()),
        (12, [NEWER, OLD], ("old",)),
        (2, [NEWER, OLD], ("old", "newer")),
        (12, [LoadedModel("just loaded", 10, 0, 5, 5), NEWER], ("newer",)),
        (12, [LoadedModel("busy", 10, 3, 0, 900), NEWER], ("newer",)),
    ],
)
def test_the_least_recently_used_go_and_no_more_than_needed(available, loaded, unload):
    assert make_room(20, available, loaded, 60).unload == unload


def test_one_with_requests_stays_and_is_waited_for():
    room = make_room(20, 12, [LoadedModel("a", 10, 2, 0, 900), LoadedModel("b", 10, 0, 9, 9)], 60)
    assert (room.unload, room.later) == ((), True)
    assert room.why_not == "a has 2 requests; b was loaded 9 s ago"


def test_memory_that_another_program_has_is_not_waited_for():
    room = make_room(40, 12, [OLD, NEWER], 60)
    assert (room.unload, room.later) == ((), False)
    assert "it needs 40.0 GiB, and with every other model unloaded 32.0 are" in room.why_not


def test_a_load_that_failed_is_tried_again_later_each_time():
    pauses = [Failure("x", at=0, count=n).pause(10) for n in (1, 2, 3, 50)]
    assert pauses == [50, 110, 230, 890]
    assert Failure("x", at=0).pause(1000) == 0


def test_retry_after_has_limits():
    assert [retry_after(*times) for times in ((10, 40), (100, 40), (0, 400))] == [30, 2, 60]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_model_waits_once_in_the_order_in_which_they_were_asked_for():
    clock = Clock()
    queue = Queue(clock)
    assert queue.ask("a").text == "it is going to be loaded"
    assert queue.ask("b").text == queue.ask("b").text == "it is going to be loaded, 1 before it"
    assert queue.take(0) == "a"
    queue.doing("its server reads the model")
    clock.now = 30
    told = queue.ask("a")
    assert told.text == "it has been loading for 30 s: its server reads the model"
    assert told.retry_s == 60
    queue.done()
    assert queue.take(0) == "b"
    assert queue.take(0) == ""


def test_the_next_load_is_expected_to_take_as_long_as_the_last_one():
    clock = Clock()
    queue = Queue(clock)
    queue.ask("a")
    queue.take(0)
    clock.now = 20
    queue.done()
    assert queue.ask("a").retry_s == 20


def test_a_failure_is_told_and_not_tried_again_at_once():
    clock = Clock()
    queue = Queue(clock)
    queue.ask("a")
    queue.take(0)
    queue.done("its server has ended")
    told = queue.ask("a")
    assert told.text.startswith("it could not be loaded: its server has ended; it is tried again")
    assert queue.take(0) == ""
    clock.now = 61
    assert queue.ask("a").text == "it is going to be loaded"
    assert queue.take(0) == "a"
    queue.done("again")
    assert "in 120 s" in queue.ask("a").text


def test_the_proxy_says_who_has_requests():
    assert model_loader.uses(Path(__file__).with_name("stat.csv").read_text()) == {
        "spark-vllm-a": model_loader.Use(requests=2, idle_s=0, up=True),
        "spark-vllm-b": model_loader.Use(requests=1, idle_s=None),
    }
    assert model_loader.uses("") == model_loader.uses("Unknown command.\n") == {}
