"""JSON Schema of what a class's `to_dict` returns, inferred from its code and type hints.

The dictionary's keys are read from the `return` statement and their types from the annotations of
the attributes and functions that fill them. What cannot be inferred is `{}`, anything: a schema
made this way is never stricter than the code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import PydanticUserError

from docs.generate.result_schema import schema_of
from spark_cluster.document import Document

Schema = dict[str, Any]

METHODS = ("to_dict",)
OURS = ("spark_cluster", "playbooks")
_RETURNED = {"round": "number", "str": "string", "len": "integer"}
"""What built-in functions return; `round` with one argument an integer."""


class Inference:
    """Infers schemas of classes; each class is a definition, made once.

    Attributes:
        definitions: class name to schema, for `$defs`.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type as `--json` writes it."""
        if isinstance(kind, type) and issubclass(kind, Document):
            return self._document(kind)
        if method_of(kind) is not None:
            return self._reference(kind)
        members = typing.get_args(kind)
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            return union(*map(self.of, members))
        if _is_sequence(kind):
            return {"type": "array", "items": self.of(members[0])}
        return self._plain(kind)

    def of_function(self, function: types.FunctionType) -> Schema:
        """The schema of what a function returns that makes a document."""
        return _Method(self, None, function).schema()

    def _plain(self, kind: Any) -> Schema:
        """A type that the standard library's json writes, after `dataclasses.asdict`."""
        if kind is Any:
            return {}
        try:
            schema = schema_of(kind)
        except (PydanticUserError, TypeError):
            return {}
        for name, definition in schema.pop("$defs", {}).items():
            self.definitions.setdefault(name, _closed(definition))
        return _closed(schema)

    def _document(self, kind: type) -> Schema:
        if kind.__name__ not in self.definitions:
            schema = schema_of(kind)
            self.definitions.update(schema.pop("$defs", {}))
            self.definitions[kind.__name__] = schema
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def _reference(self, kind: type) -> Schema:
        if kind.__name__ not in self.definitions:
            self.definitions[kind.__name__] = {}  # it may refer to itself
            method = typing.cast(types.FunctionType, method_of(kind))
            self.definitions[kind.__name__] = _Method(self, kind, method).schema()
        return {"$ref": f"#/$defs/{kind.__name__}"}


def method_of(kind: Any) -> types.FunctionType | None:
    """The method that writes a class as JSON; None when it has none."""
    found = (getattr(kind, name, None) for name in METHODS)
    return next((f for f in found if isinstance(f, types.FunctionType)), None)


class _Method:
    """The `return {...}` of one method or function, with the types of the names in it."""

    def __init__(self, inference: Inference, kind: type | None, method: types.FunctionType) -> None:
        self.inference = inference
        self.module = sys.modules[method.__module__]
        self.tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
        self.names: dict[str, Any] = {**_hints(method), "self": kind}

    def schema(self) -> Schema:
        """The dictionary of each `return`."""
        nodes = list(ast.walk(self.tree))
        for node in nodes:
            if isinstance(node, ast.Assign):
                self._assign(node.targets[0], node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
                self._assign(node.target, node.value)
        returns = [node.value for node in nodes if isinstance(node, ast.Return)]
        return union(
            *(
                self._dictionary(value) if isinstance(value, ast.Dict) else {"type": "object"}
                for value in returns
            )
        )

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            is_document = isinstance(value, ast.Dict)
            self.names[target.id] = value if is_document else self._type(value)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for each, its in zip(target.elts, value.elts, strict=True):
                self._assign(each, its)

    def _dictionary(self, node: ast.Dict) -> Schema:
        properties: Schema = {}
        is_open = False
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:  # **another
                other = self._resolved(self._schema(value))
                properties.update(other.get("properties", {}))
                is_open = is_open or "properties" not in other
            elif isinstance(key, ast.Constant):
                properties[str(key.value)] = self._schema(value)
            else:
                is_open = True
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": is_open,
        }

    def _resolved(self, schema: Schema) -> Schema:
        if "$ref" not in schema:
            return schema
        return self.inference.definitions[schema["$ref"].rsplit("/", 1)[1]]

    def _schema(self, node: ast.expr) -> Schema:
        match node:
            case ast.Dict():
                return self._dictionary(node)
            case ast.Name(id=name) if isinstance(self.names.get(name), ast.Dict):
                return self._dictionary(self.names[name])
            case ast.ListComp(elt=element, generators=[ast.comprehension() as each]):
                self._loop(each)
                return {"type": "array", "items": self._schema(element)}
            case ast.DictComp(value=element, generators=[ast.comprehension() as each]):
                self._loop(each)
                return {"type": "object", "additionalProperties": self._schema(element)}
            case ast.IfExp(body=one, orelse=other):
                return union(self._schema(one), self._schema(other))
            case ast.Constant(value=value):
                return self.inference.of(type(value)) if value is not None else {"type": "null"}
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in METHODS:
                return self.inference.of(self._type(owner))
            case ast.Call(func=ast.Name(id="asdict" | "as_json"), args=[plain]):
                return self.inference.of(self._type(plain))
            case ast.Compare() | ast.UnaryOp(op=ast.Not()):
                return {"type": "boolean"}
            case ast.Call(func=ast.Name(id="round"), args=[_]):
                return {"type": "integer"}
            case ast.Call(func=ast.Name(id=name)) if name in _RETURNED:
                return {"type": _RETURNED[name]}
            case ast.Call(func=ast.Name(id="list" | "dict"), args=[items]):
                return self.inference.of(self._type(items))
        return self.inference.of(self._type(node))

    def _loop(self, each: ast.comprehension) -> None:
        """Bind a comprehension's names to the types of what it goes through."""
        iterated = _without_none(self._type(each.iter))
        pairs = isinstance(each.target, ast.Tuple)
        if pairs and typing.get_origin(iterated) is not tuple:
            inner = typing.get_args(iterated)
            iterated = inner[0] if len(inner) == 1 else iterated
        members = [m for m in typing.get_args(iterated) if m is not Ellipsis]
        if isinstance(each.target, ast.Name):
            self.names[each.target.id] = members[0] if members else Any
        elif isinstance(each.target, ast.Tuple):
            for name, kind in zip(each.target.elts, [*members, *[Any] * 9], strict=False):
                if isinstance(name, ast.Name):
                    self.names[name.id] = kind

    def _type(self, node: ast.expr) -> Any:
        """The type of an expression; Any when it is not known."""
        match node:
            case ast.Name(id=name):
                return self.names.get(name, Any)
            case ast.Attribute(value=owner, attr=name):
                return attribute(self._type(owner), name)
            case ast.Call(func=ast.Attribute(value=owner, attr="items"), args=[]):
                return self._type(owner)
            case ast.Call(func=ast.Name(id=name)):
                return returned(getattr(self.module, name, None))
            case ast.Call(func=ast.Attribute(value=owner, attr=name)):
                return returned(getattr(self._type(owner), name, None))
            case ast.BoolOp(values=[first, *_]) | ast.IfExp(body=first):
                return self._type(first)
        return Any


def _without_none(kind: Any) -> Any:
    """Return what is gone through: `list[X] | None` is a list where it is."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    others = [member for member in typing.get_args(kind) if member is not type(None)]
    return others[0] if len(others) == 1 else kind


def union(*schemas: Schema) -> Schema:
    """Return the union of several, each named once; anything when one of them is anything."""
    flat = [inner for schema in schemas for inner in schema.get("anyOf", [schema])]
    found = [schema for index, schema in enumerate(flat) if schema not in flat[:index]]
    if {} in found:
        return {}
    return found[0] if len(found) == 1 else {"anyOf": found}


def attribute(kind: Any, name: str) -> Any:
    """The type of an attribute or property, from annotations; of each member of a union."""
    for member in typing.get_args(kind) if not isinstance(kind, type) else (kind,):
        owner = getattr(member, name, None)
        if isinstance(owner, property) and owner.fget is not None:
            return returned(owner.fget)
        hints = _hints(member)
        if name in hints:
            return hints[name]
    return Any


def returned(function: Any) -> Any:
    """Return the annotated return type of a function."""
    return _hints(function).get("return", Any) if callable(function) else Any


def _hints(thing: Any) -> Mapping[str, Any]:
    """Type hints, with the names that the module imports for type checkers only."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    try:
        return typing.get_type_hints(thing, localns=_guarded(module) if module else {})
    except (NameError, TypeError):
        return {}


@cache
def _guarded(module: types.ModuleType) -> dict[str, Any]:
    """Import what stands below `if TYPE_CHECKING:` in a module of ours."""
    if module.__name__.partition(".")[0] not in OURS:
        return {}
    tree = ast.parse(inspect.getsource(module))
    return {
        alias.asname or alias.name: getattr(importlib.import_module(node.module), alias.name)
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _closed(schema: Schema) -> Schema:
    """Return the schema of a class: `asdict` writes its fields and no other keys."""
    return {**schema, "additionalProperties": False} if "properties" in schema else schema


def _is_sequence(kind: Any) -> bool:
    members = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is tuple:
        return len(members) == 2 and members[1] is Ellipsis
    return isinstance(origin, type) and issubclass(origin, Iterable) and len(members) == 1
