"""The JSON Schemas: files that users write, and documents that `--json` prints."""

from __future__ import annotations

import json
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

from pydantic import TypeAdapter

from docs.generate import docstring
from docs.generate.code import (
    BENCH_RUN,
    CHECKOUT,
    INVENTORY,
    OUTPUTS,
    RECIPE,
    REGISTRIES,
    SUITE,
    event_classes,
    roles,
)
from docs.generate.inference import Inference

Schema = dict[str, Any]

FOLDER = CHECKOUT / "docs" / "schema"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def of_files() -> dict[str, Schema]:
    """Return the schemas of users' files, for editors: checked in, by file name without `.json`."""
    return {
        "inventory": inventory(),
        "recipe": _titled("A recipe of spark-cluster", RECIPE.model_json_schema()),
        "suite": _titled("A suite of spark-cluster", SUITE.model_json_schema()),
        "registries": _titled("Registries of recipes", REGISTRIES.model_json_schema()),
        "bench-run": _titled("The record of a benchmark run", BENCH_RUN.model_json_schema()),
    }


def of_outputs() -> dict[str, Schema]:
    """Return the schemas of `--json` and of records: made when the site is built."""
    return {
        "event": event(),
        "error": error(),
        **{f"output-{name}": output(name) for name in OUTPUTS},
    }


def inventory() -> Schema:
    """The inventory, with the settings of the shipped roles; other roles may have any."""
    schema = INVENTORY.model_json_schema()
    known = schema.setdefault("$defs", {})
    properties = {}
    for name, role in roles().items():
        settings = role.settings_model.model_json_schema()
        known.update(settings.pop("$defs", {}))
        known[f"role.{name}"] = {**settings, "additionalProperties": False}
        properties[name] = {"$ref": f"#/$defs/role.{name}"}
    known["role-settings"] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": {"type": "object"},
    }
    settings = {"$ref": "#/$defs/role-settings"}
    _refer(schema["properties"], "settings", settings)
    _refer(known["NodeEntry"]["properties"], "settings", settings)
    groups = {"type": "object", "additionalProperties": settings}
    _refer(schema["properties"], "group_settings", groups)
    return _titled("An inventory of spark-cluster", schema)


def _refer(properties: Schema, name: str, schema: Schema) -> None:
    properties[name] = {"description": properties[name]["description"], **schema}


def event() -> Schema:
    """Return the schema of an event, as a line of its record holds it."""
    kinds = []
    for kind in event_classes():
        schema = TypeAdapter(kind).json_schema(mode="serialization")
        schema["description"] = docstring.parse(kind).summary
        schema["properties"] = {"event": {"const": kind.__name__}, **schema["properties"]}
        schema["required"] = list(schema["properties"])
        schema["additionalProperties"] = False
        kinds.append(_without_titles(schema))
    return _titled("An event of a run", {"oneOf": kinds})


def error() -> Schema:
    """Return the schema of `--json` when a command ends with an error before it has a result."""
    text = {"type": "string"}
    fields = {"message": text, "where": text, "hint": text}
    return _titled("An error", _closed({"ok": {"const": False}, "error": _closed(fields)}))


def output(name: str) -> Schema:
    """The document of a command in `OUTPUTS`."""
    command, shape = OUTPUTS[name]
    inference = Inference()
    schema = _shaped(inference, shape)
    used = json.dumps([schema, inference.definitions])
    definitions = {
        name: definition
        for name, definition in inference.definitions.items()
        if f'"#/$defs/{name}"' in used
    }
    whole = {**schema, "$defs": definitions} if definitions else schema
    return _titled(f"Output of spark-cluster {command} --json", whole)


def _shaped(inference: Inference, shape: Any) -> Schema:
    """The schema of a class, a function that makes a document, a mapping, `[each]`, or a class with
    keys that are added to it."""
    if isinstance(shape, FunctionType):
        return inference.of_function(shape)
    if isinstance(shape, list):
        return {"type": "array", "items": _shaped(inference, shape[0])}
    if isinstance(shape, tuple):
        kind, added = shape
        always = kind if isinstance(kind, type) else None
        own = _own(inference, always or get_args(kind)[0])["properties"]
        whole = _closed({**own, **_properties(inference, added)})
        return whole if always else {**whole, "required": list(added)}
    if isinstance(shape, dict):
        return _closed(_properties(inference, shape))
    return _own(inference, shape)


def _properties(inference: Inference, shape: dict[str, Any]) -> Schema:
    return {name: _shaped(inference, inner) for name, inner in shape.items()}


def _own(inference: Inference, kind: Any) -> Schema:
    """The schema itself, not a reference to it."""
    schema = inference.of(kind)
    if "$ref" in schema:
        return inference.definitions[schema["$ref"].rsplit("/", 1)[1]]
    return schema


def _closed(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _titled(title: str, schema: Schema) -> Schema:
    return {"$schema": DIALECT, **_without_titles(schema), "title": title}


def _without_titles(value: Any) -> Any:
    """Without the titles that pydantic makes from names; a property may be called title."""
    if isinstance(value, list):
        return [_without_titles(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_titles(inner)
        for key, inner in value.items()
        if key != "title" or not isinstance(inner, str)
    }


def text(schema: Schema) -> str:
    """The file's content."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write() -> list[Path]:
    """Write the schemas that are checked in."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    written = {FOLDER / f"{name}.json": text(schema) for name, schema in of_files().items()}
    for path, content in written.items():
        path.write_text(content, encoding="utf-8")
    return sorted(written)
