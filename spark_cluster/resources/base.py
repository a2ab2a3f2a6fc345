"""The one idea: a resource is the desired state of one thing, and can check and change itself.

Resources are declared on the laptop and run on the node, so this module and every module next to
it import the standard library only (Python >= 3.10).
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from spark_cluster.node.values import PROJECT_RESOURCES, Blob, InvalidResource, Secret

if TYPE_CHECKING:
    from types import ModuleType

    from spark_cluster.node.host import Host

State = dict[str, Any]
"""Attribute to JSON value: what is true (`observe`) or shall be true (`desired`)."""

Fault = Callable[[Any], str]
"""Returns what is wrong with a value (`'x' is not an absolute path`); empty for a valid one."""


@dataclass(frozen=True)
class Resource:
    """Base of all resources: a frozen dataclass whose first field names the thing.

    Args:
        tags: names for `--tags` and `--skip-tags`; the role's name is always one of them.
    """

    reverts: ClassVar[str] = "what it did stays"
    """What `revert` does not undo; empty when the files that it changed are all there is."""

    valid: ClassVar[Mapping[str, Fault]] = MappingProxyType({})
    """Field to the check of its value, or of each value of a tuple; its default is not checked."""

    tags: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, list):
                object.__setattr__(self, item.name, value := tuple(value))
            if isinstance(value, str) and str(item.type).startswith("tuple["):
                raise self.invalid(f"{item.name} is a list of strings, not one string")
            if item.name not in self.valid or value == item.default:
                continue
            for one in value if isinstance(value, tuple) else (value,):
                if fault := self.valid[item.name](one):
                    raise self.invalid(fault, item)
        self.validate()

    @property
    def name(self) -> str:
        """The subject of this resource: its first own field, e.g. a path."""
        return str(getattr(self, self._subject.name))

    @property
    def _subject(self) -> dataclasses.Field[Any]:
        own = [item for item in dataclasses.fields(self) if item.name != "tags"]
        return next((item for item in own if not item.kw_only), own[0])

    @property
    def id(self) -> str:
        """`File:/etc/hosts`; unique within one document."""
        return f"{type(self).__name__}:{self.name}"

    def validate(self) -> None:
        """Raise InvalidResource when the declared values can never work together."""

    def invalid(self, fault: str, item: dataclasses.Field[Any] | None = None) -> InvalidResource:
        """Return the error that says what is wrong, and of which resource.

        Args:
            item: the field whose value the fault names; the fault then begins with that value.
        """
        kind, subject = type(self).__name__, self._subject
        if item is subject:
            return InvalidResource(f"{kind}: {fault}")
        of_field = "" if item is None else f"{item.name} "
        return InvalidResource(f"{kind} {getattr(self, subject.name)}: {of_field}{fault}")

    def must(self, holds: object, otherwise: str) -> None:
        """Raise InvalidResource with a fault unless something holds."""
        if not holds:
            raise self.invalid(otherwise)

    def provides(self) -> tuple[str, ...]:
        """Return what will exist after this resource, for the overlay of check mode."""
        return ()

    def triggers(self) -> tuple[str, ...]:
        """Ids of the resources whose change makes this one act again: those of its fields
        `when_changed` and `restart_when`, where it has one."""
        return ids((*getattr(self, "when_changed", ()), *getattr(self, "restart_when", ())))

    def desired(self) -> State:
        """The state to reach; only the attributes that this resource manages."""
        raise NotImplementedError

    def observe(self, host: Host) -> State:
        """The state as it is now.

        Raises:
            Missing: something it stands on is not there.
            Unknown: it cannot be known without acting.
            ResourceError: it cannot be found out.
        """
        raise NotImplementedError

    def must_act(self, host: Host) -> bool:
        """Return whether it must act because a trigger has changed since it last did."""
        return host.restarts.pending(self.id)

    def permit(self, host: Host, changes: Mapping[str, tuple[Any, Any]]) -> str:
        """Called when something is to be changed, in check mode too.

        Returns:
            Return remarks in addition to the changes; mostly none.

        Raises:
            Skip: leave it as it is.
            ResourceError: it cannot be done.
        """
        return ""

    def converge(self, host: Host, actual: State) -> None:
        """Bring `actual` to the desired state.

        Raises:
            ResourceError: it could not be done.
        """
        raise NotImplementedError

    def plan(self, host: Host, actual: State) -> None:
        """Check mode: leave in `host.overlay` what `converge` will have made."""

    def diff(self, host: Host, actual: State) -> str:
        """A unified diff of what will change, or nothing."""
        return ""

    def state_after(self, host: Host) -> State:
        """The state after `converge`; what still differs from `desired` is a failure."""
        return self.observe(host)


def differences(actual: State, desired: State) -> dict[str, tuple[Any, Any]]:
    """Attribute to (is, shall be) for all that is not as desired."""
    return {k: (actual.get(k), v) for k, v in desired.items() if actual.get(k) != v}


def given(**values: Any) -> State:
    """Return the attributes that are declared: those that are not None.

    >>> given(owner="root", group=None)
    {'owner': 'root'}
    """
    return {name: value for name, value in values.items() if value is not None}


def ids(resources: Iterable[Resource | str]) -> tuple[str, ...]:
    """Ids of resources given as objects or as ids."""
    return tuple(r.id if isinstance(r, Resource) else r for r in resources)


def lines_of(text: str) -> list[str]:
    """The lines of a configuration file, without their ends.

    Only a line feed ends one, as for the programs that read these files: a form feed or U+2028 in a
    comment does not.
    """
    return text.removesuffix("\n").split("\n") if text else []


def absolute(path: str) -> str:
    """Return the fault of a path that is not absolute, has a `..` or is not written the short way.

    >>> absolute("/srv/models"), absolute("/srv//models")
    ('', "write '/srv/models' for '/srv//models'")
    """
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        return f"{path!r} is not an absolute path without '..'"
    short = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    return "" if path == short else f"write {short!r} for {path!r}"


def one_of(*words: str) -> Fault:
    """Return the check of a value that is one of some words.

    >>> one_of("present", "absent")("gone")
    "'gone' is not present or absent"
    """
    known = " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
    return lambda value: "" if value in words else f"{value!r} is not {known}"


def like(pattern: str | re.Pattern[str], noun: str) -> Fault:
    """Return the check of a text that matches a whole pattern.

    >>> like("[a-z]+", "a word")("A 1")
    "'A 1' is not a word"
    """
    return lambda value: "" if re.fullmatch(pattern, value) else f"{value!r} is not {noun}"


def checks(**faults: Fault) -> Mapping[str, Fault]:
    """Return the checks of a resource's fields, by their names; see `Resource.valid`."""
    return faults


PRESENCE = one_of("present", "absent")


_SLIPS = (600, 640, 644, 660, 664, 666, 700, 750, 755, 775, 777, 1777, 2775)
"""Modes written without `0o`; as bits they make no sense."""


def permissions(mode: object) -> str:
    """Return the fault of a mode that is not permission bits; 644 is taken for the slip it is."""
    if isinstance(mode, bool) or not isinstance(mode, int):
        return f"{mode!r} is not a number like 0o644"
    is_slip = mode in _SLIPS or not 0 <= mode <= 0o7777
    return f"{mode} is decimal; did you mean 0o{mode}?" if is_slip else ""


def resource_class(name: str) -> type[Resource] | None:
    """Return the class of a resource's type, or None: `AuthorizedKey` is in `authorized_key.py`,
    next to this file or among the resources of the user's project.

    Looked up when it is used, so that a run imports only what it needs.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        return None
    for package in (__package__, PROJECT_RESOURCES):
        found = getattr(_imported(f"{package}.{module_name(name)}"), name, None)
        if isinstance(found, type) and issubclass(found, Resource):
            return found
    return None


def module_name(name: str) -> str:
    """Return the name of the module that has a class.

    >>> module_name("AuthorizedKey")
    'authorized_key'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def class_name(module: str) -> str:
    """Return the name of the class that a module is named after.

    >>> class_name("authorized_key")
    'AuthorizedKey'
    """
    return "".join(map(str.capitalize, module.split("_")))


def _imported(module: str) -> ModuleType | None:
    """Return a module if it exists, whole: an import waits for a thread that is at it. What it
    lacks itself is an error.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        return None


def to_wire(resource: Resource) -> dict[str, Any]:
    """A resource as a JSON document."""
    document: dict[str, Any] = {"type": type(resource).__name__}
    for item in dataclasses.fields(resource):
        value = getattr(resource, item.name)
        if value != item.default or item.default is dataclasses.MISSING:
            document[item.name] = _encode(value)
    return document


def from_wire(document: Mapping[str, Any]) -> Resource:
    """The resource that `to_wire` wrote.

    Raises:
        InvalidResource: the type is not known or the values do not fit it.
    """
    kind = resource_class(str(document.get("type")))
    if kind is None:
        raise InvalidResource(f"no resource of type {document.get('type')!r}")
    return kind(**{k: _decode(v) for k, v in document.items() if k != "type"})


def _encode(value: Any) -> Any:
    if isinstance(value, Resource):
        return value.id
    if isinstance(value, (tuple, list)):
        return [_encode(v) for v in value]
    if isinstance(value, Mapping):
        return {"$map": [[str(k), _encode(v)] for k, v in value.items()]}
    return _marked(value)


def _marked(value: Any) -> Any:
    """Encode a type that JSON does not have, in an object that names it."""
    if isinstance(value, Secret):
        return {"$secret": str(value)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Blob):
        return {"$blob": value.sha256, "size": value.size}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    if isinstance(value, dict):
        if "$secret" in value:
            return Secret(value["$secret"])
        if "$bytes" in value:
            return base64.b64decode(value["$bytes"])
        if "$blob" in value:
            return Blob(value["$blob"], value["size"])
        return {k: _decode(v) for k, v in value["$map"]}
    return value
