"""Tables of fields, from the JSON Schema of a pydantic model: what users write in YAML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from docs.generate import docstring
from docs.generate.markdown import code, paragraphs, plain, table

Schema = dict[str, Any]

_FORMATS = {
    "path": "path",
    "ipv4interface": "IPv4 address with prefix",
    "ipv4network": "IPv4 subnet",
}
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
    "object": "mapping",
    "array": "list",
}


def sections(model: type[BaseModel], title: str = "Top level") -> str:
    """A table of the model's fields, and one for each model inside it."""
    inside = [section(name, schema) for name, schema in inner(model).items()]
    return paragraphs(f"## {title}", fields_table(model), *inside)


def fields_table(model: type[BaseModel]) -> str:
    """The table of a model alone."""
    return _table(model.model_json_schema())


def inner(model: type[BaseModel]) -> dict[str, Schema]:
    """The models inside a model by name, as they are met when reading from the top."""
    whole = model.model_json_schema()
    definitions: Schema = whole.get("$defs", {})
    return {name: definitions[name] for name in _order(whole, definitions)}


def section(name: str, schema: Schema, level: int = 2) -> str:
    """The heading, meaning and table of a model that is inside another."""
    doc = docstring.of_text(schema.get("description", ""))
    return paragraphs(
        f"{'#' * level} {name}",
        plain(doc.summary),
        plain(doc.text),
        _table(schema, doc.arguments),
    )


def _table(schema: Schema, meanings: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a table of fields; `meanings` are of fields that have no description of their own."""
    required = schema.get("required", [])
    rows = [
        (
            code(name),
            kind(field),
            "required" if name in required else _default(field),
            plain(field.get("description", "") or meanings.get(name, "")),
        )
        for name, field in schema.get("properties", {}).items()
    ]
    return table(("field", "value", "default", "meaning"), rows)


def _default(field: Schema) -> str:
    value = field.get("default")
    if value is None or isinstance(value, dict):
        return ""
    return code(json.dumps(value))


def kind(schema: Schema) -> str:
    """Describe what a value may be."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(kind, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema["enum"])
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "type" not in schema:
        return "anything"
    return _typed(schema["type"], schema)


def _typed(name: str, schema: Schema) -> str:
    if name == "array":
        inner = schema.get("items") or {}
        return f"list of {kind(inner)}" if inner else "list"
    if name == "object":
        inner = schema.get("additionalProperties")
        return f"mapping to {kind(inner)}" if isinstance(inner, dict) and inner else "mapping"
    if "format" in schema:
        return _FORMATS.get(schema["format"]) or str(schema["format"])
    return _TYPES[name] + _range(schema)


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    bounds = [
        f"at least {low}" if low is not None else "",
        f"more than {above}" if above is not None else "",
        f"at most {high}" if high is not None else "",
        f"less than {below}" if below is not None else "",
    ]
    doc = ", ".join(bound for bound in bounds if bound)
    return f" ({doc})" if doc else ""


def _order(whole: Schema, definitions: Schema) -> list[str]:
    """Names of the models inside, as they are met when reading from the top."""
    found: dict[str, None] = {}
    waiting = [whole]
    while waiting:
        for name in _references(waiting.pop(0).get("properties", {})):
            if name not in found:
                found[name] = None
                waiting.append(definitions[name])
    return list(found)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rsplit("/", 1)[1]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
