"""Some keys of a JSON file that others own too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError, Secret
from spark_cluster.resources.base import State, absolute, checks
from spark_cluster.resources.file import EditedFile, joined, need_folder

_UNSET = "(unset)"


@dataclass(frozen=True)
class JsonKeys(EditedFile):
    """Keys of a JSON object in a file; every other key stays, with its value and its place.

    A file that does not exist is made; one that is not valid JSON is left alone and is an error.

    Args:
        path: the file, absolute.
        keys: key to value; an object is merged key by key, all else is replaced as a whole. With a
            Secret among the values no diff is shown, what the file held before is not kept, and a
            new file is its owner's alone (mode 600).

    Example:
        JsonKeys("/etc/docker/daemon.json", keys={"log-opts": {"max-size": "50m"}})
    """

    reverts = ""
    valid = checks(path=absolute)

    path: str
    keys: Mapping[str, Any] = field(kw_only=True)

    def validate(self) -> None:
        try:
            json.dumps(_plain(self.keys))
        except TypeError as error:
            raise self.invalid(str(error)) from None
        self.must(list(self._wanted()), "it asks for nothing")

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.path}",)

    def desired(self) -> State:
        return {".".join(key): _told(value, value) for key, value in self._wanted()}

    def observe(self, host: Host) -> State:
        there = self._read(host)
        return {".".join(key): _told(value, _at(there, key)) for key, value in self._wanted()}

    def converge(self, host: Host, actual: State) -> None:
        mode = 0o600 if self.is_secret and not host.path(self.path).exists() else None
        host.write(self.path, self.text_after(host), mode=mode, secret=self.is_secret)

    @property
    def is_secret(self) -> bool:
        return _holds_secret(self.keys)

    def _wanted(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        return _leaves(_plain(self.keys), ())

    def _read(self, host: Host) -> dict[str, Any]:
        need_folder(host, self.path)
        content = joined(self.lines(host) or [])
        if not content.strip():
            return {}
        try:
            found = json.loads(content)
        except ValueError as error:
            raise ResourceError(
                f"{self.path} is not valid JSON: {error}",
                "repair it, or move it away; its content is not overwritten",
            ) from None
        if not isinstance(found, dict):
            raise ResourceError(f"{self.path} holds a {type(found).__name__}, not a JSON object")
        return found

    def text_after(self, host: Host) -> bytes:
        there = self._read(host)
        _lay(there, _plain(self.keys))
        return (json.dumps(there, indent=2, ensure_ascii=False) + "\n").encode()


def _plain(value: Any) -> Any:
    """Convert tuples to lists, as the wire does."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _holds_secret(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_secret, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_secret, value))
    return isinstance(value, Secret)


def _told(wanted: Any, found: Any) -> Any:
    """Return what is at a key, as it may be shown: instead of a secret there may be an old one."""
    if found == _UNSET or not _holds_secret(wanted):
        return found
    return "as declared" if found == wanted else "another"


def _leaves(value: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(key path, value) of all that is not an object with keys."""
    if not isinstance(value, dict) or (not value and at):
        yield at, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, (*at, key))


def _at(data: Any, key: tuple[str, ...]) -> Any:
    for part in key:
        if not isinstance(data, dict) or part not in data:
            return _UNSET
        data = data[part]
    return data


def _lay(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        inner = below.get(key)
        if isinstance(value, dict) and value:
            below[key] = inner if isinstance(inner, dict) else {}
            _lay(below[key], value)
        else:
            below[key] = value
