"""Tests by their ids: whether a page names one that exists, and what is written in it."""

import ast
import functools
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


@functools.cache
def parsed(file: str) -> list[ast.stmt]:
    return ast.parse((CHECKOUT / file).read_text()).body


def find(test_id: str) -> ast.AST | None:
    """Return the function (or the module, without a name) of a test id; None when there is none."""
    file, *names = test_id.split("::")
    if not (CHECKOUT / file).is_file():
        return None
    found: ast.AST = ast.Module(parsed(file), [])
    for name in names:
        scope = getattr(found, "body", [])
        inside = [node for node in scope if getattr(node, "name", None) == name]
        if not inside:
            return None
        found = inside[0]
    return found if not names or names[-1].startswith("test_") else None


def texts(test_id: str) -> set[str]:
    """Return the strings that stand in a test; of an f-string its parts."""
    found = find(test_id)
    walked = ast.walk(found) if found is not None else ()
    return {
        node.value
        for node in walked
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
