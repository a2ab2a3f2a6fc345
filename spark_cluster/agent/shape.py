"""The shape of a JSON value that a node has sent, checked before anything else reads it.

A shape is one of these:

- `str`, `bool`, `int` (64 bits), `float` (any finite number), `None`, `dict` (any object that is
  not nested deeper than DEEPEST);
- a `number` within limits, a `choice` of words, a `PAIR` of any values;
- `[shape]`, a list; `{str: shape}`, an object whose keys are not known;
- `{"key": shape, "other": Maybe(shape)}`, an object with these keys; the second one may be missing,
  and keys that are not named are ignored;
- `(shape, shape)`, one of them, the last one being the usual one;
- a function that raises ValueError or ResourceError for a value that it cannot read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.node.values import ResourceError

DEEPEST = 32
"""Levels of lists and objects in a value; those of a real node have less than ten."""

MOST = float(1 << 63)
"""Largest number: what is larger is not a size, time or identifier of a node."""

Shape = Any


class Misfit(ValueError):
    """A value that does not have its shape: where, what was found, and what was expected."""


@dataclass(frozen=True)
class Maybe:
    """The shape of a key that may be missing."""

    shape: Shape


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


def choice(*words: str) -> Plain:
    """Return the shape of one of some words."""
    return Plain(" or ".join(words), lambda value: value in words)


PAIR = Plain(
    "a list of two values",
    lambda value: isinstance(value, list) and len(value) == 2 and _is_shallow(value),
)
"""A list of two values of any kind: what was, and what is then."""

_PLAIN: Mapping[Any, Plain] = {
    str: Plain("a text", lambda value: isinstance(value, str)),
    bool: Plain("true or false", lambda value: isinstance(value, bool)),
    int: number(int),
    float: number(float),
    dict: Plain("an object", lambda value: isinstance(value, dict) and _is_shallow(value)),
    None: Plain("null", lambda value: value is None),
}


def check(value: object, shape: Shape, at: str = "") -> None:
    """Check that a value has a shape.

    Args:
        at: where the value is, for the message.

    Raises:
        Misfit: it has not.
    """
    if isinstance(shape, tuple):
        _check_one_of(value, shape, at)
    elif isinstance(shape, list):
        for number, one in enumerate(_is(list, value, at, "a list")):
            check(one, shape[0], f"{at}[{number}]")
    elif isinstance(shape, dict):
        _check_keys(_is(dict, value, at, "an object"), shape, at)
    else:
        plain = shape if isinstance(shape, Plain) else _PLAIN.get(shape)
        if plain is None:
            _check_by(shape, value, at)
        elif not plain.fits(value):
            raise _misfit(value, at, plain.name)


def _check_one_of(value: object, shapes: tuple[Shape, ...], at: str) -> None:
    for shape in shapes[:-1]:
        try:
            check(value, shape, at)
        except Misfit:
            continue
        return
    check(value, shapes[-1], at)


def _check_keys(value: dict[str, Any], shape: dict[Any, Shape], at: str) -> None:
    prefix = f"{at}." if at else ""
    for name, expected in shape.items():
        if name is str:
            for key, one in value.items():
                check(one, expected, f"{prefix}{key[:60]}")
            continue
        if name in value:
            usual = expected.shape if isinstance(expected, Maybe) else expected
            check(value[name], usual, f"{prefix}{name}")
        elif not isinstance(expected, Maybe):
            raise Misfit(f"{prefix}{name} is missing")


def _check_by(reader: Callable[[object], object], value: object, at: str) -> None:
    try:
        reader(value)
    except (ResourceError, ValueError) as error:
        raise Misfit(f"{at}: {error}") from None


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
