"""Checks data that a user wrote against a pydantic model, and says what is wrong in their words.

Every wrong field is reported, each on a line of its own with file, line, field, what was found and
what was expected, and a suggestion for a misspelt name or value.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
import types
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    InstanceOf,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, to_json

from spark_cluster.config.suggest import did_you_mean, nearest
from spark_cluster.config.yamlfile import Key, Problem, Sourced, described

M = TypeVar("M", bound=BaseModel)


class Schema(BaseModel):
    """Base of the models of files: unknown fields are errors, and nothing changes afterwards.

    What a field means is written below it.
    """

    list_is: ClassVar[str] = ""
    """The field that a list in place of the mapping is, where that is a short form."""

    # Only the outermost models are built: it saves half of the time that the import takes.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, meaning in meanings(cls).items():
            properties.get(name, {})["description"] = meaning  # a skipped field is not there
        return schema


@cache
def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return what the fields of a model mean: their descriptions, or the texts below them.

    As pydantic's `use_attribute_docstrings`, which reads the source of every model when it is
    imported: 75 ms for recipe and inventory.
    """
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__[: model.__mro__.index(BaseModel)]):
        with suppress(OSError, TypeError):  # without a source, as a class of a notebook
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            for field, below in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
                match field, below:
                    case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        found[name] = " ".join(text.split())
    given = {name: field.description for name, field in model.model_fields.items()}
    texts = {name: text or found.get(name) for name, text in given.items()}
    return {name: text for name, text in texts.items() if text}


def validate(model: type[M], source: Sourced) -> M:
    """The model made from the data.

    Types are strict, as in JSON: `port: "22"` is text and not a number.

    Raises:
        InvalidFile: with every problem found, in file order.
    """
    try:
        return parse(model, source.data)
    except ValidationError as error:
        raise source.invalid(problems_of(model, source.data, error)) from None


def parse(model: type[M], data: dict[str, Any]) -> M:
    """The model made from data, by the strict rules of JSON, and without unknown fields.

    The settings of a role are refused a misspelt name too, whatever its author configured.

    Raises:
        pydantic.ValidationError: the data do not fit; `problems_of` puts it into words.
    """
    return model.model_validate_json(to_json(data), strict=True, extra="forbid")


def handed(description: str) -> Any:
    """Return the field of a setting that only a playbook gives: an object (`InstanceOf`)."""
    return Field(default=None, description=description)


def objects_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model that hold objects, which are no data of a file."""
    fields = model.model_fields.items()
    return {
        name: field
        for name, field in fields
        if any(type(known) is InstanceOf for known in field.metadata)
    }


def problems_of(model: type[BaseModel], data: object, error: ValidationError) -> list[Problem]:
    """The problems of a pydantic error in the user's words."""
    details = error.errors(include_url=False)
    keyed = [(_key(data, detail["loc"]), detail) for detail in details]
    missing = {key for key, detail in keyed if detail["type"] == "missing"}
    problems: list[Problem] = []
    misspelt: set[Key] = set()
    for key, detail in keyed:
        if detail["type"] == "extra_forbidden":
            wanted = {str(k[-1]) for k in missing if k[:-1] == key[:-1]}
            near = nearest(str(key[-1]), wanted)
            if near is not None:
                misspelt.add((*key[:-1], near))
        problems.append(Problem(key, _message(model, detail, key)))
    # A misspelt field is one mistake: not also a missing one.
    return [p for p in dict.fromkeys(problems) if p.key not in misspelt]


def _key(data: Any, loc: tuple[str | int, ...]) -> Key:
    """pydantic's location without what is not in the file (such as which member of a union)."""
    key: list[str | int] = []
    for position, part in enumerate(loc):
        if _holds(data, part):
            data = data[part]
        elif not isinstance(data, dict) or part == "[key]" or position + 1 < len(loc):
            continue
        key.append(part)
    return tuple(key)


def _holds(data: object, part: str | int) -> bool:
    if isinstance(data, dict):
        return part in data
    return isinstance(data, list) and isinstance(part, int) and part < len(data)


def _message(model: type[BaseModel], detail: ErrorDetails, key: Key) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown field; {did_you_mean(str(key[-1]), _fields_at(model, key[:-1]))}"
    if kind == "missing":
        meaning = _description(model, key)
        return f"missing; expected {meaning}" if meaning else "missing"
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", detail["msg"]))
    found = _found(kind, detail["input"])
    if kind in ("literal_error", "enum"):
        return f"found {found}, expected {context['expected']}{_typo(detail)}"
    entries = _entries(context.get("min_length") or context.get("max_length") or 0)
    expected = _expected().get(kind, "").format(**context, entries=entries)
    wanted = expected or detail["msg"].removeprefix("Input should be ")
    quote = "; put it in quotes" if kind == "string_type" and _is_scalar(detail["input"]) else ""
    return f"found {found}, expected {wanted}{quote}"


def _found(kind: str, value: object) -> str:
    if kind in ("too_short", "too_long") and isinstance(value, list | dict):
        return _entries(len(value))
    return described(value)


def _typo(detail: ErrorDetails) -> str:
    found, expected = detail["input"], detail["ctx"]["expected"]
    choices = [word for word in expected.replace(" or ", ", ").split(", ") if word]
    near = nearest(found, [word.strip("'") for word in choices]) if isinstance(found, str) else None
    return f"; did you mean '{near}'?" if near else ""


def _is_scalar(value: object) -> bool:
    return isinstance(value, int | float)


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


@cache
def _expected() -> dict[str, str]:
    return tomllib.loads(Path(__file__).with_name("expected.toml").read_text(encoding="utf-8"))


def _fields_at(model: type[BaseModel], key: Key) -> set[str]:
    """The names of the fields that may stand at a key."""
    names: set[str] = set()
    for kind in _types_at(model, key):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names |= {field.alias or name for name, field in kind.model_fields.items()}
    return names


def _description(model: type[BaseModel], key: Key) -> str:
    for kind in _types_at(model, key[:-1]):
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
        if is_model and (meaning := meanings(kind).get(str(key[-1]))):
            return meaning
    return ""


def _types_at(model: type[BaseModel], key: Key) -> list[Any]:
    """The types that a value at `key` may have, unions opened."""
    kinds: list[Any] = [model]
    for part in key:
        kinds = [inner for kind in kinds for inner in _inside(kind, part)]
    return kinds


def _inside(kind: Any, part: str | int) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        in_short = getattr(kind, "list_is", "") if isinstance(part, int) else ""
        field = kind.model_fields.get(in_short or str(part))
        if field and in_short:
            return _inside(field.annotation, part)
        return _opened(field.annotation) if field else []
    arguments = get_args(kind)
    return _opened(arguments[0 if isinstance(part, int) else -1]) if arguments else []


def _opened(annotation: Any) -> list[Any]:
    """The members of a union; annotations taken off."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _opened(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [member for each in get_args(annotation) for member in _opened(each)]
    return [annotation]
