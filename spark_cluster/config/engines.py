"""Inference engines by name, and how each writes on its command line what a recipe says.

Engines are plug-ins: this module knows their names and where they are, and loads the one that a
recipe names. Ours are in `spark_cluster/engine/`; other packages add theirs by an entry point of
the group `spark_cluster.engines`, whose name is the engine's and whose object is an
`spark_cluster.engine.engine.Engine`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal

from spark_cluster.config.yamlfile import did_you_mean
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.config.recipe_schema import Drafter, EngineValue

GROUP = "spark_cluster.engines"
"""Group of the entry points."""

DEFAULT = "vllm"

MOST_FLAGS = 200
"""Flags of a launch; each one that is not known is compared with all that are."""

BUILT_IN = {
    "vllm": "spark_cluster.engine.vllm:VLLM",
    "sglang": "spark_cluster.engine.sglang:SGLANG",
}
"""Name to where the engine is; an entry point cannot take one of these names."""


@dataclass(frozen=True)
class Dialect:
    """The command line of an engine: its names for what a recipe says.

    Attributes:
        title: the engine as people write it.
        program: the words before the flags.
        model: how the model is given; `{}` is its folder.
        owned: flags that are no engine arguments of a recipe, and what they are instead.
        names: a flag of vLLM's to the engine's own one, where they mean the same but are named
            otherwise. Plans and rules know vLLM's names.
        executors: what can join the nodes, the default first.
        several_names: a model can be served by several names, given one after the other.
        planned: plans (KV cache, speeds) are made for this engine; those of another are nearer to
            a guess, and say so.
    """

    title: str
    program: tuple[str, ...]
    model: tuple[str, ...] = ("{}",)
    owned: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    executors: tuple[Literal["ray", "mp"], ...] = ("ray", "mp")
    planned: bool = False
    several_names: bool = False

    def own(self, flag: str) -> str:
        """Return the engine's name of a flag of vLLM's."""
        return self.names.get(flag, flag)

    def common(self, flags: Mapping[str, EngineValue]) -> dict[str, EngineValue]:
        """Return flags of the engine under vLLM's names, as far as they mean the same.

        Speculative decoding is a `speculative-config`, as vLLM has it.
        """
        known = {own: name for name, own in self.names.items()}
        return {known.get(flag, flag): value for flag, value in flags.items()}

    def drafter(self, drafter: Drafter) -> dict[str, EngineValue]:
        """Return the flags of speculative decoding."""
        return {"speculative-config": drafter.config}

    def command(self, model_path: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the whole command line."""
        return (*self.program, *(part.format(model_path) for part in self.model), *words)


def names() -> tuple[str, ...]:
    """Return the names of all engines, ours first."""
    return (*BUILT_IN, *sorted(set(_plug_ins()) - set(BUILT_IN)))


def load(name: str) -> Any:
    """Return an engine; `spark_cluster.engine.engine.engine` is the typed way to it.

    Raises:
        UsageError: there is no such engine, or its package cannot be imported.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)
    if name not in names():
        hint = did_you_mean(name, names(), "engines")
        raise UsageError(f"there is no engine '{name}'", hint=hint)
    try:
        return _plug_ins()[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the engine '{name}' cannot be loaded: {error}",
            where=_plug_ins()[name].value,
            hint="reinstall the package that brings it",
        ) from error


def dialect(name: str) -> Dialect:
    """Return how an engine writes its flags.

    Raises:
        UsageError: as `load`.
    """
    found = load(name).dialect
    if not isinstance(found, Dialect):
        raise UsageError(f"the engine '{name}' has no dialect (spark_cluster.config.engines)")
    return found


@cache
def _plug_ins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def words(flags: Mapping[str, EngineValue]) -> tuple[str, ...]:
    """Return the command line's words for flags that are given without dashes.

    Sorted by flag: vLLM's compile cache is keyed by them, and a line moved in the recipe shall not
    throw it away.
    """
    return tuple(word for flag in sorted(flags) for word in _words(flag, flags[flag]))


def _words(flag: str, value: EngineValue) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    if isinstance(value, dict):
        return [f"--{flag}", json.dumps(value, sort_keys=True, separators=(",", ":"))]
    return [f"--{flag}", str(value)]


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])")


def with_unit(text: str) -> float | None:
    """Return a size such as 32k as vLLM reads it; None for a text without a unit.

    Small letters are powers of 1000, capitals of 1024.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    base = 1e3 if found[2].islower() else 1024.0
    power: int = "kmgt".index(found[2].lower()) + 1
    return float(found[1]) * pow(base, power)
