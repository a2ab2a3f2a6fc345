"""pydantic for both directions: files that users write, and results that commands print.

Every wrong field of a file is reported, each on a line of its own with file, line, field, what was
found and what was expected, and a suggestion for a misspelt name or value.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import ipaddress
import re
import textwrap
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from itertools import pairwise
from operator import attrgetter, not_
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    InstanceOf,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    computed_field,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, core_schema, to_json
from typing_extensions import TypedDict

from spark_cluster.config.yamlfile import (
    Key,
    Problem,
    Sourced,
    described,
    did_you_mean,
    nearest,
    table_beside,
)
from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    printed = property
else:
    printed = computed_field

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
    """The model made from the data; a file of the laptop begins at the folder that the data are in.

    Types are strict, as in JSON: `port: "22"` is text and not a number.

    Raises:
        InvalidFile: with every problem found, in file order.
    """
    try:
        return parse(model, source.data, source.path.absolute().parent)
    except ValidationError as error:
        raise source.invalid(problems_of(model, source.data, error)) from None


def parse(model: type[M], data: dict[str, Any], folder: Path | None = None) -> M:
    """The model made from data, by the strict rules of JSON, and without unknown fields.

    The settings of a role are refused a misspelt name too, whatever its author configured.

    Args:
        folder: where relative files of the laptop begin; None leaves them as they are given.

    Raises:
        pydantic.ValidationError: the data do not fit; `problems_of` puts it into words.
    """
    text = to_json(data)
    return model.model_validate_json(text, strict=True, extra="forbid", context=folder)


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
    expected = (
        table_beside(__file__, "expected.toml").get(kind, "").format(**context, entries=entries)
    )
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


# The kinds of text that files of users contain, each with its check in plain words.

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NODE_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_SHELL = "'\"`;&<>|(){}"
"""Characters that ssh takes in no name since 9.6: a ProxyCommand gives %r to a shell."""
_IN_USER = rf"\s:,/\x00-\x1f\x7f{_SHELL}"
_USER = rf"(?!\d+$|\.{{1,2}}$)[^-+~{_IN_USER}][^{_IN_USER}]{{0,255}}"
_JUMP = rf"([^@:\s{_SHELL}]+@)?[^@:\s{_SHELL}]+(:\d{{1,5}})?"
UNMOUNTABLE = re.compile(r'[,:"\x00-\x1f\x7f]')
"""What a path of a mount cannot have: after a comma the next option would begin."""

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of a variable of an environment."""


def matching(pattern: str, expected: str) -> AfterValidator:
    """Return the check of a text against a pattern, which is said in words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"found {text!r}, expected {expected}")
        return text

    return AfterValidator(check)


def _host_name(text: str) -> str:
    if not _NODE_NAME.fullmatch(text) or len(text) > 253:
        fixed = re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")
        advice = f"; did you mean '{fixed}'?" if fixed and fixed != text else ""
        raise ValueError(f"found {text!r}, expected a host name: a-z, 0-9 and '-'{advice}")
    return text


def _address(text: str) -> str:
    if is_ip(text):
        return text
    user, at, rest = text.partition("@")
    if at:
        raise ValueError(f"found {text!r}; the user '{user}' goes into 'user', '{rest}' stays here")
    host, colon, port = text.partition(":")
    if colon and port.isdigit():
        raise ValueError(f"found {text!r}; the port {port} goes into 'port', '{host}' stays here")
    numeric = re.fullmatch(r"[\d.]+(/\d+)?", text)
    if numeric or not _NODE_NAME.fullmatch(text.lower()):
        raise ValueError(f"found {text!r}, expected an IP address or a host name")
    return text


def _bind(text: str) -> str:
    expected = "expected 'loopback', 'management' or an IPv4 address of the head"
    if text in ("loopback", "management"):
        return text
    if not is_ip(text) or ":" in text:
        near = nearest(text, ["loopback", "management"])
        advice = f"; did you mean '{near}'?" if near else ""
        raise ValueError(f"found {text!r}, {expected}{advice}")
    address = ipaddress.ip_address(text)
    if address.is_loopback:
        raise ValueError(f"found {text!r}; did you mean 'loopback'?")
    if address.is_unspecified:
        raise ValueError(f"found {text!r}, which is every network, the fabric too; {expected}")
    return text


def _subnet(value: object) -> object:
    if isinstance(value, str):
        try:
            network = ipaddress.IPv4Network(value, strict=False)
        except ValueError:
            raise ValueError(f"found {value!r}, expected a subnet like 192.168.177.0/24") from None
        if str(network) != value:
            raise ValueError(f"found {value!r}; did you mean '{network}'?")
    return value


def node_path(text: str) -> str:
    """An absolute path on a node, as it is compared.

    Raises:
        ValueError: it is none, or Docker does not take it.
    """
    if not text.startswith("/") or ".." in text.split("/"):
        raise ValueError(f"found {text!r}, expected an absolute path on the node such as /srv/x")
    if UNMOUNTABLE.search(text):
        raise ValueError(f"found {text!r}; Docker takes no comma, colon or quote in a path")
    return text.rstrip("/") or "/"


def env_name(text: str) -> str:
    """The name of an environment variable.

    Raises:
        ValueError: it is none.
    """
    # What stands here by mistake may be the secret itself: never repeat it.
    if not VARIABLE.fullmatch(text):
        raise ValueError("not the name of an environment variable (the value is not shown)")
    return text


COMPILED_WHEN_USED = "patterns are compiled when they are used"
"""Context of a validation of data that ships, the patterns of which the tests have compiled."""


def _pattern(text: str, info: ValidationInfo) -> str:
    if info.context == COMPILED_WHEN_USED:
        return text
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        found = described(text)
        raise ValueError(f"found {found}, expected a regular expression: {error}") from None
    return text


def _laptop_path(path: Path, info: ValidationInfo) -> Path:
    """Return a path on the laptop: `~` is the user's home, a relative one begins at the folder.

    Raises:
        ValueError: there is no such user, or it has a line end or the like: with one it would be
            more than a path in a file of ssh's, which can name programs.
    """
    if re.search(r"[\x00-\x1f\x7f]", str(path)):
        raise ValueError(f"found {str(path)!r}, expected a path without control characters")
    try:
        full = path.expanduser()
    except RuntimeError:
        user = path.parts[0].removeprefix("~")
        raise ValueError(f"found '{path}', but there is no user '{user}' on this machine") from None
    return info.context / full if isinstance(info.context, Path) else path


def laptop_file(text: str, info: ValidationInfo) -> str:
    """Return the text of a path on the laptop, absolute where a folder is known (`parse`)."""
    return str(_laptop_path(Path(text), info)) if isinstance(info.context, Path) else text


def is_ip(text: str) -> bool:
    """Return whether the text is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


HostName = Annotated[str, AfterValidator(_host_name)]
Address = Annotated[str, AfterValidator(_address)]
Word = Annotated[str, matching(_WORD, "a name: letters, digits, '_', '-' and '.'")]
UserName = Annotated[str, matching(_USER, "a user name")]
Jump = Annotated[str, matching(_JUMP, "[user@]host[:port]")]
Bind = Annotated[str, AfterValidator(_bind)]
EnvName = Annotated[str, AfterValidator(env_name)]
NodePath = Annotated[str, AfterValidator(node_path)]
LaptopPath = Annotated[Path, AfterValidator(_laptop_path)]
LaptopFile = Annotated[str, Field(min_length=1), AfterValidator(laptop_file)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Port = Annotated[int, Field(ge=1, le=65535)]
Subnet = Annotated[ipaddress.IPv4Network, BeforeValidator(_subnet)]


def user_word(user: str) -> str:
    r"""A user as a rule of sudoers(5) names it: special characters as `\xHH`.

    A word of capital letters would be an alias, so its first letter is written so, too.
    """
    word = "".join(
        c if re.fullmatch(r"[A-Za-z0-9_.-]", c) else "".join(rf"\x{b:02x}" for b in c.encode())
        for c in user
    )
    return rf"\x{ord(user[0]):02x}{word[1:]}" if re.fullmatch(r"[A-Z][A-Z0-9_]*", user) else word


def file_name(user: str) -> str:
    """A user as a part of a file's name in sudoers.d; sudo ignores one with a dot or `~`."""
    return re.sub(
        r"[^A-Za-z0-9_-]", lambda found: "".join(f"%{b:02x}" for b in found[0].encode()), user
    )


# The JSON document of a result: what a command prints with `--json`, and what its schema says.
#
# A result is a frozen standard-library dataclass with the base `Document`; its fields are the keys,
# by their types. What is different is said in the type of the field: `Hidden`, `Flat`, `WhenSet`,
# `Rounded`, or pydantic's own annotations; a key that is computed is a property made with
# `printed`. pydantic reads them for the document and, in `docs/generate`, for the JSON Schema, so
# the names in these types are imported at run time.

T = TypeVar("T")


def derived(
    kind: Any,
    read: str | Callable[[Any], Any],
    key: str | None = None,
    *,
    when_set: bool = False,
) -> Any:
    """Return a property that is printed: `tp = derived(int, "fit.launch.tp")`.

    Args:
        kind: its type, as in an annotation.
        read: the path of attributes to it, or a function of the result.
        key: that it is printed under; by default its name.
        when_set: it is left out while its value is empty.
    """
    get = attrgetter(read) if isinstance(read, str) else read

    def value(result: Any) -> Any:  # the docstring of `get` itself would be the key's description
        return get(result)

    left_out = not_ if when_set else None
    return computed_field(return_type=kind, alias=key, exclude_if=left_out)(property(value))


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


def read_as(kind: type[T], value: object) -> T | None:
    """Return a result that is read back from decoded JSON; None where it is none of the kind."""
    with suppress(ValidationError):
        found: T = _adapter(kind).validate_python(value)  # type: ignore[arg-type]
        return found
    return None


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
