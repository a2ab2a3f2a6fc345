"""The JSON Schemas: files that users write, and documents that `--json` prints."""

from __future__ import annotations

import json
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from docs.generate import docstring
from docs.generate.code import (
    BENCH_RUN,
    CHECKOUT,
    INVENTORY,
    OUTPUTS,
    RECIPE,
    REGISTRIES,
    SUITE,
    Document,
    ErrorKeys,
    Flat,
    event_classes,
    roles,
)

Schema = dict[str, Any]

FOLDER = CHECKOUT / "docs" / "schema"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Written(GenerateJsonSchema):
    """What is written has every field and no other, unless a field says that it is left out."""

    def normalize_name(self, name: str) -> str:
        """The keys of a class stand under its name."""
        return super().normalize_name(name).removesuffix("Keys")

    def field_is_required(self, field: Any, total: bool) -> bool:
        if field["type"] != "dataclass-field":
            return super().field_is_required(field, total)
        return not field.get("serialization_exclude_if")

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False

    def dataclass_schema(self, schema: Any) -> Schema:
        made = {**super().dataclass_schema(schema), "additionalProperties": False}
        for name in schema.get("metadata", {}).get("flat", ()):
            self._merge(made, made["properties"].pop(name))
            made["required"].remove(name)
        return made

    def model_schema(self, schema: Any) -> Schema:
        return {**super().model_schema(schema), "additionalProperties": False}

    def typed_dict_schema(self, schema: Any) -> Schema:
        return {**super().typed_dict_schema(schema), "additionalProperties": False}

    def _merge(self, made: Schema, flat: Schema) -> None:
        """Put the keys of a result among the others; required where it is always there."""
        kinds = [self.resolve_ref_schema(kind) for kind in flat.get("anyOf", [flat])]
        for kind in kinds:
            made["properties"].update(kind.get("properties", {}))
            made["additionalProperties"] |= bool(kind.get("additionalProperties"))
        always = [set(kind.get("required", ())) for kind in kinds]
        made["required"] += sorted(set.intersection(*always))


def schema_of(kind: Any) -> Schema:
    """Return the schema of a type as `--json` writes it, with `$defs` for the classes in it."""
    return TypeAdapter(kind).json_schema(mode="serialization", schema_generator=Written)


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
        schema = schema_of(kind)
        schema["description"] = docstring.parse(kind).summary
        schema["properties"] = {"event": {"const": kind.__name__}, **schema["properties"]}
        schema["required"] = list(schema["properties"])
        kinds.append(_without_titles(schema))
    return _titled("An event of a run", {"oneOf": kinds})


def error() -> Schema:
    """Return the schema of `--json` when a command ends with an error before it has a result."""
    shape = {"ok": Literal[False], "error": ErrorKeys}
    return _titled("An error", schema_of(_type("Error", shape)))


def output(name: str) -> Schema:
    """The document of a command in `OUTPUTS`."""
    command, shape = OUTPUTS[name]
    return _titled(f"Output of spark-cluster {command} --json", schema_of(_type("Output", shape)))


def _type(name: str, shape: Any) -> Any:
    """Return the type of a class, a mapping, `[each]`, or a class with keys added to it."""
    typed_dict, flat = cast("Any", TypedDict), cast("Any", Flat)
    match shape:
        case [each]:
            return list[_type(name, each)]  # type: ignore[misc]
        case dict():
            return typed_dict(name, {key: _type(key.title(), each) for key, each in shape.items()})
        case (kind, added):
            keys = [(key, _type(key.title(), each)) for key, each in added.items()]
            return make_dataclass(name, [("result", flat[kind]), *keys], bases=(Document,))
    return shape


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
