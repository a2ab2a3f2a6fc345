"""Jobs in parallel, a thread each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

from spark_cluster.errors import SparkClusterError

T = TypeVar("T")


def in_parallel(jobs: Mapping[str, Callable[[], T]]) -> dict[str, T | SparkClusterError]:
    """Run one job a node, each in its own thread; a node's error is its result.

    An interrupt (Ctrl-C) comes through at once; so does an error that is our own fault.
    """
    if len(jobs) == 1:  # no thread needed, and a simpler traceback
        ((name, job),) = jobs.items()
        return {name: _outcome(job)}
    futures = {name: start(job) for name, job in jobs.items()}
    return {name: future.result() for name, future in futures.items()}


def all_of(jobs: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Run jobs as `in_parallel` does; once all have ended, the first node's error is raised.

    Raises:
        SparkClusterError: that error.
    """
    found: dict[str, T] = {}
    for name, outcome in in_parallel(jobs).items():
        if isinstance(outcome, SparkClusterError):
            raise outcome
        found[name] = outcome
    return found


def start(job: Callable[[], T]) -> Future[T | SparkClusterError]:
    """Run a job in a thread that an interrupted program does not wait for; the project in use is
    that of the caller.
    """
    future: Future[T | SparkClusterError] = Future()

    def work() -> None:
        try:
            future.set_result(_outcome(job))
        except BaseException as error:  # noqa: BLE001  (handed to who waits)
            future.set_exception(error)

    threading.Thread(target=copy_context().run, args=(work,), daemon=True).start()
    return future


def _outcome(job: Callable[[], T]) -> T | SparkClusterError:
    try:
        return job()
    except SparkClusterError as error:
        return error
