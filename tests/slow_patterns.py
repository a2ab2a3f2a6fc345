"""Texts that make a regular expression slow, made of the expression itself.

For each part that may repeat: what it matches many times, after what stands before it, with and
without what stands around; none of them ends as the expression wants it.
"""

import re
import time
from collections.abc import Iterator
from re import _constants as ops
from re import _parser as parser
from typing import Any

SIZES = (20, 24, 28, 36, 44, 52, 60, 100, 300, 600, 1500)
"""Characters, few first: what grows exponentially is found before it takes a day."""
REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
LIMIT_S = 0.05
"""Of the processor; without a fault a search of so short a text takes a few milliseconds."""
MANY = 20
"""A part that may repeat more often than this is tried."""
OF_CLASS = {"DIGIT": "1", "NOT_DIGIT": "x", "SPACE": " ", "NOT_SPACE": "x", "WORD": "a"}
OF_CLASS["NOT_WORD"] = "-"

Part = tuple[Any, Any]


def seconds(pattern: str, begin: str = "") -> tuple[float, str]:
    """Return the longest search of a pattern that was found, and the text; the first beyond
    LIMIT_S ends it.

    Args:
        begin: of each text, such as a literal without which it is not searched.
    """
    compiled, longest = re.compile(pattern), (0.0, "")
    repeated = list(_repeated(parser.parse(pattern), ""))
    for size in SIZES:
        for text in _texts(repeated, size):
            begun = time.process_time()
            compiled.search(f"{begin} {text}\0")
            longest = max(longest, (time.process_time() - begun, text[:80]))
            if longest[0] > LIMIT_S:
                return longest
    return longest


def _texts(repeated: list[tuple[str, str]], size: int) -> set[str]:
    found = set[str]()
    for before, item in repeated:
        units = [item, before + item, before, f"{before}{item} ", f"{before}{item * MANY}\0"]
        units += [item + other for _, other in repeated[:6]]
        found |= {(before + unit * size)[:size] for unit in units if unit}
        found |= {(unit * size)[:size] for unit in units}
    return found


def _repeated(parsed: Any, before: str) -> Iterator[tuple[str, str]]:
    """Yield each part that repeats, as short as it can be and longer, and what precedes it."""
    for op, value in parsed:
        if op in REPEATS:
            if value[1] is ops.MAXREPEAT or value[1] > MANY:
                yield from ((before, _sample(value[2], least) or "a") for least in (0, 1))
            yield from _repeated(value[2], before)
        elif op in (ops.SUBPATTERN, ops.ASSERT, ops.ASSERT_NOT, ops.ATOMIC_GROUP):
            yield from _repeated(value if op is ops.ATOMIC_GROUP else value[-1], before)
        elif op is ops.BRANCH:
            for branch in value[1]:
                yield from _repeated(branch, before)
        before += _sample([(op, value)], 0)


def _sample(parsed: Any, least: int) -> str:
    """Return a text that matches; what may repeat is there `least` times at least."""
    return "".join(_one(op, value, least) for op, value in parsed)


def _one(op: Any, value: Any, least: int) -> str:
    if op is ops.LITERAL:
        return chr(value)
    if op in (ops.NOT_LITERAL, ops.ANY):
        return "b" if value == ord("a") else "a"
    if op is ops.IN:
        return _of_class(value)
    if op in REPEATS:
        return _sample(value[2], least) * max(value[0], least)
    if op is ops.SUBPATTERN:
        return _sample(value[-1], least)
    if op is ops.ATOMIC_GROUP:
        return _sample(value, least)
    return _sample(value[1][0], least) if op is ops.BRANCH else ""


def _of_class(items: list[Part]) -> str:
    excluded = items[0][0] is ops.NEGATE
    known = [_of_item(*item) for item in items[excluded:]]
    if not excluded:
        return known[0]
    return next(one for one in "a 1x-.(:~" if one not in known)


def _of_item(op: Any, value: Any) -> str:
    if op is ops.CATEGORY:
        return OF_CLASS[str(value).removeprefix("CATEGORY_")]
    return chr(value[0] if op is ops.RANGE else value)
