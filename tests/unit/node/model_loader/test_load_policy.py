"""What is unloaded for which model, the queue, and what users are told meanwhile."""

from pathlib import Path

from cases import each_row

from spark_cluster.node import model_loader
from spark_cluster.node.model_loader import Failure, LoadedModel, Queue, make_room, retry_after


@each_row(__file__, "room.json", "rooms")
def test_the_least_recently_used_go_and_no_more_than_needed(needed, available, loaded, expected):
    """One with requests, or that was loaded just now, stays and is waited for; memory that another
    program has is not."""
    room = make_room(needed, available, [LoadedModel(*one) for one in loaded], 60)
    assert (list(room.unload), room.later) == (expected["unload"], expected.get("later", False))
    assert expected.get("why", "") in room.why_not


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
