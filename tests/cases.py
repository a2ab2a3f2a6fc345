"""Cases that are data: files beside a test, each with the cases of one of its tables."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from spark_cluster.node.values import Secret


def cases(test: str, name: str, **words: str) -> Any:
    """Return what a file beside a test holds.

    Args:
        test: the test's `__file__`.
        name: of the file, from the folder of the test; its ending says whether it is TOML or JSON.
            In JSON `{"$secret": "x"}` is a `Secret`.
        words: what stands for `$NAME` in it.
    """
    text = (Path(test).parent / name).read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(f"${word}", value)
    if name.endswith(".toml"):
        return tomllib.loads(text)
    return json.loads(text, object_hook=_value)


def _value(found: dict[str, Any]) -> Any:
    return Secret(found["$secret"]) if found.keys() == {"$secret"} else found


def each_case(test: str, name: str) -> pytest.MarkDecorator:
    """Run a test for each case of a file, whose keys are their names; the argument is `case`."""
    found = cases(test, name)
    return pytest.mark.parametrize("case", list(found.values()), ids=list(found))


def holds(found: Any, expected: Any) -> bool:
    """Return whether what a case expects is so; of a dict it may leave out keys, of a list nothing.

    A fraction holds within a millionth; `{"ends": TEXT}` is any text that ends so.
    """
    if isinstance(expected, dict) and expected.keys() == {"ends"}:
        return str(found).endswith(expected["ends"])
    if isinstance(expected, dict):
        return found is not None and all(holds(found.get(key), expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(holds, found, expected))
    return bool(found == (pytest.approx(expected) if isinstance(expected, float) else expected))


def each_row(test: str, name: str, table: str) -> pytest.MarkDecorator:
    """Run a test for each row of a table in a file; the table's first row names the arguments."""
    arguments, *rows = cases(test, name)[table]
    return pytest.mark.parametrize(arguments, rows)
