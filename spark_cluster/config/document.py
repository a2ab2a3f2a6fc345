"""The JSON document of a result: what a command prints with `--json`, and what its schema says.

A result is a frozen standard-library dataclass with the base `Document`; its fields are the keys,
by their types. What is different is said in the type of the field: `Hidden`, `Flat`, `WhenSet`,
`Rounded`, or pydantic's own annotations; a key that is computed is a property made with `printed`.
pydantic reads them for the document and, in `docs/generate`, for the JSON Schema, so the names in
these types are imported at run time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, Field, GetCoreSchemaHandler, TypeAdapter, computed_field
from pydantic_core import core_schema
from typing_extensions import TypedDict

from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    printed = property
else:
    printed = computed_field

T = TypeVar("T")


def derived(kind: Any, read: str | Callable[[Any], Any], key: str | None = None) -> Any:
    """Return a property that is printed: `tp = derived(int, "fit.launch.tp")`.

    Args:
        kind: its type, as in an annotation.
        read: the path of attributes to it, or a function of the result.
        key: that it is printed under; by default its name.
    """
    get = attrgetter(read) if isinstance(read, str) else read
    return computed_field(return_type=kind, alias=key)(property(get, doc=""))


@dataclasses.dataclass(frozen=True)
class PrintedAs:
    """A field that is printed as what a function makes of it, by the type that this returns."""

    make: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> Any:
        made = handler.generate_schema(get_type_hints(self.make, include_extras=True)["return"])
        serialization = core_schema.plain_serializer_function_ser_schema(
            self.make, return_schema=made
        )
        return core_schema.any_schema(serialization=serialization)


class _NotRead:
    """A value whose type needs no schema."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> Any:
        return core_schema.any_schema()


Hidden = Annotated[T, Field(exclude=True), _NotRead()]
"""A field that is not printed."""

WhenSet = Annotated[T, Field(exclude_if=lambda value: not value)]
"""A key that is left out while its value is empty."""

Flat = Annotated[T, "flat"]
"""A result whose keys stand among those of the one that has it; none where it is None."""


class ErrorKeys(TypedDict):
    """An error as it is printed."""

    message: str
    where: str
    hint: str


def _keys(error: SparkClusterError) -> ErrorKeys:
    return ErrorKeys(message=error.message, where=error.where, hint=error.hint)


ErrorDocument = Annotated[SparkClusterError, PrintedAs(_keys)]
"""An error that is printed."""


@dataclasses.dataclass(frozen=True)
class Rounded:
    """A figure with so many decimals; None makes it an integer."""

    digits: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        def rounded(value: float | None) -> float | None:
            return None if value is None else round(value, self.digits)

        kind = source if self.digits is not None else int | None if get_args(source) else int
        serialization = core_schema.plain_serializer_function_ser_schema(rounded)
        return {**handler.generate_schema(kind), "serialization": serialization}


class Document:
    """Base of results, which are dataclasses."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        document: dict[str, Any] = as_json(self)
        return document

    def printed_as(self) -> Any:
        """Return what is printed in its place, where hardly a key is a field of its own: a
        dictionary with the keys that a `TypedDict` names, which the schema is made of."""
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        if cls.printed_as is not Document.printed_as:
            return PrintedAs(cls.printed_as).__get_pydantic_core_schema__(source, handler)
        schema = handler(source)
        hints = get_type_hints(cls, include_extras=True)
        flat = [name for name, kind in hints.items() if "flat" in getattr(kind, "__metadata__", ())]
        if not flat:
            return schema

        def merged(result: Any, serialize: Any) -> Any:
            document: dict[str, Any] = {}
            for key, value in serialize(result).items():
                document |= (value or {}) if key in flat else {key: value}
            return document

        serialization = core_schema.wrap_serializer_function_ser_schema(merged)
        metadata = {**schema.get("metadata", {}), "flat": flat}
        return {**schema, "serialization": serialization, "metadata": metadata}


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def as_json(value: Any) -> Any:
    """Return a result, or a mapping or sequence of some, as `json` writes it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _adapter(type(value)).dump_python(value, mode="json", by_alias=True, warnings="none")
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return value
