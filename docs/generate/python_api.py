"""The page of the Python API: `Cluster`, its methods, and what they return."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from docs.generate import docstring
from docs.generate.code import API_OPENS, API_RESULTS, CLUSTER, error_classes
from docs.generate.markdown import block, code, page, paragraphs, plain, table

INTRODUCTION = """\
`from spark_cluster import Cluster, Options, Selection, Allowances`. Importing `spark_cluster`
imports nothing else until one of these names is used. How they are used is shown in
[Use it from Python](../how-to/python-api.md)."""

EVENTS = """\
`cluster.events(...)` yields objects of `spark_cluster.runner.events`: frozen dataclasses whose
`to_dict()` is a line of the run's record. [They are listed](json.md#events) with the JSON
output."""

ERRORS = """\
All are in `spark_cluster.errors` and have `message`, `where` (file and line, node or resource) and
`hint` (what to do); `exit_code` is the [exit status](exit-status.md) of the command line."""


_OF_KEYS = ("Annotated", "Flat", "Hidden", "WhenSet")

METHODS = ("raise_for_errors", "result", "cancel", "count", "to_dict")
"""Of the results, those that are for users."""


def render() -> str:
    """The page."""
    return page(
        "Python API",
        INTRODUCTION,
        _class(),
        *map(_method, methods()),
        "## Results",
        *map(_result, API_RESULTS),
        paragraphs("## Events", EVENTS),
        paragraphs("## Errors", ERRORS, table(("error", "meaning"), _errors())),
    )


def methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of the class and of those between it and what opens an inventory, in the
    order of their code.
    """
    for owner in CLUSTER.__mro__[: CLUSTER.__mro__.index(API_OPENS)]:
        for name, found in vars(owner).items():
            if inspect.isfunction(found) and not name.startswith("_"):
                yield name, found


def _class() -> str:
    doc, opens = docstring.parse(CLUSTER), docstring.parse(API_OPENS)
    signature = block(_signature("Cluster", API_OPENS.__init__), "python")
    text = paragraphs(*map(plain, doc.text.split("\n\n")[:-1]))
    properties = table(("attribute", "type", "meaning"), _properties(API_OPENS))
    return paragraphs(
        "## Cluster", signature, plain(doc.summary), text, _arguments(opens), properties
    )


def _method(found: tuple[str, Callable[..., Any]]) -> str:
    name, function = found
    doc = docstring.parse(function)
    raised = [(code(error), plain(why)) for error, why in doc.raises.items()]
    return paragraphs(
        f"### {name}",
        block(_signature(f"Cluster.{name}", function), "python"),
        plain(doc.summary),
        plain(doc.text),
        _arguments(doc),
        f"Returns: {plain(doc.returns)}" if doc.returns else "",
        table(("error", "when"), raised),
        block(doc.example, "python") if doc.example else "",
    )


def _arguments(doc: docstring.Docstring) -> str:
    return table(("argument", "meaning"), [(code(n), plain(t)) for n, t in doc.arguments.items()])


def _signature(name: str, function: Callable[..., Any]) -> str:
    """The call as a reader types it, an argument a line, and the type of the result."""
    found = inspect.signature(function)
    lines, named = [], False
    for parameter in list(found.parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            lines.append("*")
            named = True
        lines.append(_parameter(parameter))
    inside = "".join(f"    {line},\n" for line in lines)
    result = found.return_annotation
    arrow = "" if result in (inspect.Parameter.empty, "None") else f" -> {result}"
    return f"{name}(\n{inside}){arrow}" if lines else f"{name}(){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    several = ((parameter.VAR_POSITIONAL, "*"), (parameter.VAR_KEYWORD, "**"))
    stars = next((mark for kind, mark in several if kind is parameter.kind), "")
    default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
    return f"{stars}{parameter.name}: {parameter.annotation}{default}"


def _value(default: object) -> str:
    simple = default is None or isinstance(default, str | int | float | bool | tuple)
    return repr(default) if simple else f"{type(default).__name__}()"


def _result(kind: type[Any]) -> str:
    doc = docstring.parse(kind)
    return paragraphs(
        f"### {kind.__name__}",
        plain(doc.summary),
        plain(doc.text),
        table(("attribute", "type", "meaning"), [*_fields(kind, doc), *_properties(kind)]),
        table(("method", "meaning"), _functions(kind)),
        block(doc.example, "python") if doc.example else "",
    )


def _fields(kind: type[Any], doc: docstring.Docstring) -> Iterator[tuple[str, str, str]]:
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if not field.name.startswith("_"):
            meaning = plain(doc.arguments.get(field.name, ""))
            yield code(field.name), code(_held(str(field.type))), meaning


def _held(annotation: str) -> str:
    """Return the type of a field without what is said of its key in JSON."""
    node = ast.parse(annotation, mode="eval").body
    while isinstance(node, ast.Subscript) and ast.unparse(node.value) in _OF_KEYS:
        node = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
    return ast.unparse(node)


def _properties(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    """What an object computes, its cached properties among it."""
    for name, member in _members(kind).items():
        found = getattr(member, "wrapped", member)  # pydantic's, of one that is printed
        function = found.fget if isinstance(found, property) else getattr(found, "func", None)
        if inspect.isfunction(function) and function.__doc__ and not name.startswith("_"):
            result = inspect.signature(function).return_annotation
            yield code(name), code(str(result)), plain(docstring.parse(function).summary)


def _functions(kind: type[Any]) -> Iterator[tuple[str, str]]:
    members = _members(kind)
    for name in METHODS:
        if name in members:
            yield code(f"{name}()"), plain(docstring.parse(members[name]).summary)


def _members(kind: type[Any]) -> dict[str, Any]:
    """What a class has, and what it has from ours that it is made of."""
    ours = [one for one in reversed(kind.__mro__) if one.__module__.startswith("spark_cluster")]
    return {name: found for one in ours for name, found in vars(one).items()}


def _errors() -> Iterator[tuple[str, str]]:
    for kind in error_classes():
        yield code(kind.__name__), plain(docstring.parse(kind).summary)
