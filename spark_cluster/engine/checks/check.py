"""A check of a running server: what is asked, what is expected, and the function that looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_cluster.config.model_kind import Rung
from spark_cluster.engine.client import Client


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        id: as `verify --only` takes it.
        rung: of readiness that it belongs to; a rung holds when all its checks do.
        title: in a table.
        request: what is asked, for people.
        expected: what the answer must be, for people.
        run: asks and looks; returns what was found in one line. Raises VerificationFailed, and
            NotApplicable where the server cannot do what it is about.
        streamed: whether the answer is streamed.
    """

    id: str
    rung: Rung
    title: str
    request: str
    expected: str
    run: Callable[[Client], str]
    streamed: bool = False
