"""The JSON Schema of a result, as `as_json` writes it."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

Schema = dict[str, Any]


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
        always = [set(kind.get("required", ())) for kind in kinds]
        made["required"] += sorted(set.intersection(*always))

    def computed_field_schema(self, schema: Any) -> Schema:
        return self.generate_inner(schema["return_schema"])


def schema_of(kind: Any) -> Schema:
    """Return the schema of a type as `--json` writes it, with `$defs` for the classes in it."""
    return TypeAdapter(kind).json_schema(mode="serialization", schema_generator=Written)
