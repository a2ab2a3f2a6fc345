"""The page of planning constants: value, meaning and source, from where each stands in the code."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from types import ModuleType

from docs.generate import docstring
from docs.generate.code import PLANNING, SPEED
from docs.generate.markdown import code, page, paragraphs, plain, table

INTRODUCTION = """\
The figures of the [planning formulas](../explanation/planning.md). Those of speed are the published
ones; `predict --calibrate` writes your own into `calibration.json`, which comes first."""


def render() -> str:
    """The page."""
    doc = docstring.parse(SPEED)
    defaults = SPEED()
    rows = [
        (code(name), code(f"{getattr(defaults, name):g}"), plain(meaning))
        for name, meaning in doc.arguments.items()
        if isinstance(getattr(defaults, name), float)
    ]
    speed = table(("constant", "value", "meaning"), rows)
    memory = table(
        ("constant", "value", "meaning"),
        [row for module in PLANNING for row in _of(module)],
    )
    return page(
        "Planning constants",
        INTRODUCTION,
        paragraphs("## Speed", plain(doc.text), speed),
        paragraphs("## Memory", memory),
    )


def _of(module: ModuleType) -> list[tuple[str, str, str]]:
    """The numbers of a module that have a text of their own below them."""
    body = ast.parse(inspect.getsource(module)).body
    return [
        (code(name), code(f"{getattr(module, name):g}"), plain(text))
        for statement, below in pairwise(body)
        for name in _name(statement)
        for text in _text(below)
        if isinstance(getattr(module, name), int | float)
    ]


def _name(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper() and name[0] != "_":
            return [name]
    return []


def _text(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return [" ".join(text.split())]
    return []
