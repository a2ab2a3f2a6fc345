"""The messages of an agent as the laptop expects them: events, replies, and how long they may take.

The reader of a session checks every message by this before anyone sees it, so that an event or a
reply has each key in its type. What is checked is the form: that a status is a number, not that it
is true. A new operation of agent/operations.py has its reply in messages.toml, and its limit here.
Only the laptop reads this, so it is not sent (runner/wire.py).
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import contains
from pathlib import Path
from typing import Any

from spark_cluster.node.engine_caches import check_name
from spark_cluster.node.store.manifest import Manifest, check_commit
from spark_cluster.node.values import ResourceError

# The shape of a JSON value that a node has sent, checked before anything else reads it: as
# messages.toml describes it, or what a name there stands for, which is a Plain or a function that
# raises ValueError or ResourceError for a value that it cannot read.

DEEPEST = 32
"""Levels of lists and objects in a value; those of a real node have less than ten."""

MOST = float(1 << 63)
"""Largest number: what is larger is not a size, time or identifier of a node."""

Shape = Any


class Misfit(ValueError):
    """A value that does not have its shape: where, what was found, and what was expected."""


class Asked(dict[str, Shape]):
    """The shape of an object with these keys, none of which has a meaning as in messages.toml."""


@dataclass(frozen=True)
class Plain:
    """The shape of a value by itself: its name in a message, and whether a value has it."""

    name: str
    fits: Callable[[Any], bool]


def number(kind: type[int] | type[float], low: float = -MOST, high: float = MOST) -> Plain:
    """Return the shape of a number from `low` to `high`; an int is a float, too, and no bool is."""
    kinds = (int,) if kind is int else (int, float)
    name = "a whole number" if kind is int else "a number"
    if (low, high) != (-MOST, MOST):
        name += f" from {low:g} to {high:g}"
    return Plain(name, lambda value: type(value) in kinds and low <= value <= high)


def check(value: object, shape: Shape, at: str = "") -> None:
    """Check that a value has a shape.

    Args:
        at: where the value is, for the message.

    Raises:
        Misfit: it has not.
    """
    if isinstance(shape, str):
        *others, usual = shape.split(" | ")
        for name in others:
            with contextlib.suppress(Misfit):
                check(value, _NAMED[name], at)
                return
        check(value, _NAMED[usual], at)
    elif isinstance(shape, list):
        for number, one in enumerate(_is(list, value, at, "a list")):
            check(one, shape[0], f"{at}[{number}]")
    elif isinstance(shape, dict):
        _check_keys(_is(dict, value, at, "an object"), shape, f"{at}." if at else "")
    elif not isinstance(shape, Plain):
        try:
            shape(value)
        except (ResourceError, ValueError) as error:
            raise Misfit(f"{at}: {error}") from None
    elif not shape.fits(value):
        raise _misfit(value, at, shape.name)


def _check_keys(value: dict[str, Any], shape: dict[str, Shape], prefix: str) -> None:
    for key, expected in shape.items():
        if key == "*" and not isinstance(shape, Asked):
            for other, one in value.items():
                check(one, expected, f"{prefix}{other[:60]}")
            continue
        name = key if isinstance(shape, Asked) else key.removesuffix("?")
        if name in value:
            check(value[name], expected, f"{prefix}{name}")
        elif name == key:
            raise Misfit(f"{prefix}{name} is missing")


def _is(kind: type, value: object, at: str, expected: str) -> Any:
    if not isinstance(value, kind):
        raise _misfit(value, at, expected)
    return value


def _misfit(value: object, at: str, expected: str) -> Misfit:
    if isinstance(value, (list, dict)):
        found = "a list" if isinstance(value, list) else "an object"
    else:
        found = json.dumps(value)[:60]
    return Misfit(f"{at or 'it'} is {found}, expected {expected}")


def _is_shallow(value: object, levels: int = DEEPEST) -> bool:
    """Return whether a value ends within so many levels, and all its numbers are finite."""
    if isinstance(value, (list, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_shallow(one, levels - 1) for one in parts)
    return not isinstance(value, float) or math.isfinite(value)


def _is_pair(value: object) -> bool:
    """Return whether a value is a list of two values of any kind: what was, and what is then."""
    return isinstance(value, list) and len(value) == 2 and _is_shallow(value)


def _run_id(value: object) -> None:
    """Raises ValueError for what cannot be the id of a run: it names files of the laptop, too."""
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z0-9-]{1,100}", value) is None:
        raise ValueError("it is not the id of a run")


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

_NAMED: Mapping[str, Shape] = {
    "text": Plain("a text", lambda value: isinstance(value, str)),
    "flag": Plain("true or false", lambda value: isinstance(value, bool)),
    "integer": number(int),
    "number": number(float),
    "object": Plain("an object", lambda value: isinstance(value, dict) and _is_shallow(value)),
    "null": Plain("null", lambda value: value is None),
    "pair": Plain("a list of two values", _is_pair),
    "run id": _run_id,
    "commit": check_commit,
    "manifest": Manifest.from_document,
    "tuned file": check_name,
    **{name: number(int, *limits) for name, limits in _FILE["integers"].items()},
    **{name: number(float, *limits) for name, limits in _FILE["numbers"].items()},
    **{
        name: Plain(" or ".join(words), partial(contains, words))
        for name, words in _FILE["words"].items()
    },
    **_FILE["shapes"],
    "run with entries": {**_FILE["shapes"]["run"], "entries": ["entry"]},
}
"""Types and shapes by the names that `messages.toml` has for them."""

OF_AGENT: Mapping[str, Shape] = _FILE["of_agent"]
"""Events of the agent itself."""

EVENTS: Mapping[str, Shape] = {
    **OF_AGENT,
    **{name: {"req": "count", **one} for name, one in _FILE["of_request"].items()},
}

REPLIES: Mapping[str, Shape] = _FILE["replies"]
"""Operation to its reply, where it is always the same."""

ACTIONS: Mapping[str, Mapping[str, Shape]] = _FILE["actions"]
"""Operation and its `what` to the reply."""


OVERDUE_S = 60.0
"""Seconds after its own limit at which an answer is waited for no longer, alive as the agent may
be: more than it needs to end what hangs."""

USUAL_S = 300.0
"""Limit, in seconds, of a request that names none."""

LONGEST_STEP_S = 4 * 3600.0
"""Limit, in seconds, of one step of a document, unless a resource names a longer one: that of the
longest whose limit is fixed (pulling an image)."""

LONG_WORK_S = 24 * 3600.0
"""Limit, in seconds, of work that says how far it is: reading, copying and verifying models and
images. Without a word from it, the limit is that of any request."""


def reply_to(op: str, request: Mapping[str, Any]) -> Shape:
    """Return the shape of the reply to a request."""
    if op == "gather":
        return _gathered(request)
    if op == "history":
        return {"runs": ["run"]} if request.get("of") is None else "missing | run with entries"
    if op in ACTIONS:
        return ACTIONS[op].get(str(request.get("what")), {})
    return REPLIES.get(op, {})


def _gathered(request: Mapping[str, Any]) -> Shape:
    """All that was asked for has an answer, if only null."""
    kinds: dict[str, Shape] = {
        "commands": "null | done",
        "files": "null | text",
        "trees": {"*": "text" if request.get("links", True) else "null | text"},
    }
    return {
        **{kind: Asked.fromkeys(request.get(kind, ()), shape) for kind, shape in kinds.items()},
        # One that hangs is named in `late` only.
        "requests": {f"{name}?": "answer" for name in request.get("requests", ())},
        "late": {"*": "text"},
        "machine": "machine",
    }


def check_event(event: Mapping[str, Any]) -> None:
    """Check the form of a message.

    Raises:
        Misfit: it is none of an agent's, or lacks a part.
    """
    kind = event.get("event")
    shape = EVENTS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise Misfit(f"the event {str(kind)[:60]!r} is not known" if kind else "it has no `event`")
    try:
        check(event, shape)
    except Misfit as misfit:
        raise Misfit(f"in the event `{kind}` {misfit}") from None


def check_reply(event: Mapping[str, Any], op: str, shape: Shape) -> None:
    """Check the reply to a request.

    Raises:
        Misfit: it is not what the operation returns.
    """
    if "error" in event:
        return
    try:
        check(event, shape)
    except Misfit as misfit:
        raise Misfit(f"in the reply to `{op}` {misfit}") from None


def limit_of(op: str, timeout: float | None, step_s: float) -> float:
    """Seconds without a word after which a request is given up; see `Pending`."""
    if op == "stream":
        return float("inf")
    if op in ("apply", "revert"):  # each step tells its end, and may take its own time
        return max(LONGEST_STEP_S, step_s) + OVERDUE_S
    return (timeout or USUAL_S) + OVERDUE_S


def longest_of(op: str, limit: float) -> float:
    """Seconds that a request may take in all, whatever is said about it meanwhile; of `apply`,
    each of its steps."""
    return max(limit, LONG_WORK_S) if op in ("caches", "copy", "image", "store") else limit
