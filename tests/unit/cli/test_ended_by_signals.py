"""What signals that come together do to a command that ends by the first of them."""

import signal
import sys
import threading

import pytest

from spark_cluster.cli.app import ended_by_signals

ALL = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]


def come(number: signal.Signals) -> None:
    """To this thread: another one of the process could take it later."""
    signal.pthread_kill(threading.get_ident(), number)


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.signal(number, signal.default_int_handler) for number in ALL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_that_come_together_end_it_once_and_without_a_word(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with pytest.raises(KeyboardInterrupt), ended_by_signals(signal.SIGINT):
        signal.pthread_sigmask(signal.SIG_BLOCK, ALL)
        for number in ALL:
            come(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL)
    for number in ALL:  # the command closes what is open
        come(number)
    assert printed == []


def test_once_it_ends_a_second_block_does_not_listen_again():
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        come(signal.SIGTERM)
    with ended_by_signals():
        come(signal.SIGTERM)


def test_without_a_signal_the_handlers_are_as_before():
    with ended_by_signals(signal.SIGINT):
        assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler
    assert {signal.getsignal(number) for number in ALL} == {signal.default_int_handler}
