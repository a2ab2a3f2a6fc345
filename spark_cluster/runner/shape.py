"""The shape of a JSON value that a node has sent, checked before anything else reads it.

A shape is one of these:

- `str`, `bool`, `int` (64 bits), `float` (any finite number), `None`, `dict` (any object);
- `ANYTHING`, any JSON value that is not nested deeper than DEEPEST;
- a `Number` within limits, a `Choice` of words, a `Pair` of any values;
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

ANYTHING = object


class Misfit(ValueError):
    """A value that does not have its shape: where, what was found, and what was expected."""


@dataclass(frozen=True)
class Maybe:
    """The shape of a key that may be missing."""

    shape: Shape


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`."""

    kind: type[int] | type[float]
    low: float = -MOST
    high: float = MOST

    def __str__(self) -> str:
        name = "a whole number" if self.kind is int else "a number"
        limits = f" from {self.low:g} to {self.high:g}"
        return name if (self.low, self.high) == (-MOST, MOST) else name + limits

    def fits(self, value: object) -> bool:
        kinds = (int,) if self.kind is int else (int, float)
        return type(value) in kinds and self.low <= value <= self.high  # type: ignore[operator]


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " or ".join(self.words)

    def fits(self, value: object) -> bool:
        return value in self.words


@dataclass(frozen=True)
class Pair:
    """A list of two values of any kind: what was, and what is then."""

    def __str__(self) -> str:
        return "a list of two values"

    def fits(self, value: object) -> bool:
        return isinstance(value, list) and len(value) == 2 and _is_shallow(value)


@dataclass(frozen=True)
class _Plain:
    """A value of one type, or any value."""

    kind: Any
    name: str

    def __str__(self) -> str:
        return self.name

    def fits(self, value: object) -> bool:
        return isinstance(value, self.kind) and _is_shallow(value)


_PLAIN: Mapping[Any, Any] = {
    str: _Plain(str, "a text"),
    bool: _Plain(bool, "true or false"),
    int: Number(int),
    float: Number(float),
    dict: _Plain(dict, "an object"),
    None: _Plain(type(None), "null"),
    ANYTHING: _Plain(object, f"at most {DEEPEST} levels of finite numbers, texts and lists"),
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
        plain = shape if isinstance(shape, (Number, Choice, Pair)) else _PLAIN.get(shape)
        if plain is None:
            _check_by(shape, value, at)
        elif not plain.fits(value):
            raise _misfit(value, at, str(plain))


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
