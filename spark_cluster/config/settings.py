"""Settings of roles, merged from several places of a file, each value still knowing its line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_cluster.config.yamlfile import Key, Origin, Sourced


def merged(source: Sourced, keys: Sequence[Key]) -> Sourced:
    """The mappings at `keys` laid over each other, the last one on top.

    Mappings are merged key by key; anything else, lists too, is replaced as a whole. A key that
    does not exist is skipped. What is missing altogether is reported at the last of the keys.
    """
    merger = _Merger(source)
    if keys:
        merger.origins[()] = source.origin(keys[-1])
    for key in keys:
        layer = _at(source.data, key)
        if isinstance(layer, dict):
            merger.origins[()] = source.origin(key)
            merger.lay(merger.data, layer, (), key)
    return Sourced(source.path, merger.data, merger.origins)


class _Merger:
    def __init__(self, source: Sourced) -> None:
        self.source = source
        self.data: dict[str, Any] = {}
        self.origins: dict[Key, Origin] = {}

    def lay(self, below: dict[str, Any], layer: dict[str, Any], at: Key, written: Key) -> None:
        """Lay a mapping, written at a key of the file, over the one at a key of the result."""
        for name, value in layer.items():
            here, there = (*at, name), (*written, name)
            self.origins[here] = self.source.origin(there)
            if isinstance(value, dict):
                inner = below.get(name)
                # Never the layer's own mapping: other nodes are made from it too.
                below[name] = inner if isinstance(inner, dict) else {}
                self.lay(below[name], value, here, there)
            else:
                below[name] = value
                self._trace(value, here, there)

    def _trace(self, value: object, at: Key, written: Key) -> None:
        """Note the places of the values inside a list."""
        pairs: list[tuple[str | int, object]] = []
        if isinstance(value, list):
            pairs = list(enumerate(value))
        elif isinstance(value, dict):
            pairs = list(value.items())
        for part, inner in pairs:
            self.origins[(*at, part)] = self.source.origin((*written, part))
            self._trace(inner, (*at, part), (*written, part))


def _at(data: Any, key: Key) -> Any:
    for part in key:
        if not isinstance(data, dict) or part not in data:
            return None
        data = data[part]
    return data
