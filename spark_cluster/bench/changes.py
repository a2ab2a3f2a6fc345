"""Differences between two runs besides the figures: they may be the cause, or the question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_cluster.bench.record import Record

Values = frozenset[str]

_OF_SETUP = ("image_digest", "executor", "flags", "variant")
_OF_NODE = ("hardware", "driver", "firmware", "bios", "kernel", "dgx", "mtu", "hcas", "environment")

LONGEST = 60
"""Characters of a value that is shown; of longer ones only the name is."""


def changed(a: Record, b: Record) -> Iterator[str]:
    """Yield what differs, such as `vllm: 0.22.1 in A, 0.23.0 in B`."""
    for name in _OF_SETUP:
        sides = [_values(getattr(setup, name) for setup in run.setups) for run in (a, b)]
        yield from _line(name.replace("_", " "), *sides)
    yield from _line("spark-cluster", _values([a.spark_cluster]), _values([b.spark_cluster]))
    yield from _line("client", _values([a.client]), _values([b.client]))
    for name in _OF_NODE:
        sides = [_values(getattr(node, name) for node in run.nodes) for run in (a, b)]
        yield from _line(name, *sides)
    for program in sorted({p for run in (a, b) for setup in run.setups for p in setup.versions}):
        sides = [_values(setup.versions.get(program) for setup in run.setups) for run in (a, b)]
        yield from _line(program, *sides)


def _values(found: Iterable[object]) -> Values:
    """Return the values that are known, as text."""
    known = (value for value in found if value not in ("", None, (), {}))
    return frozenset(_text(value) for value in known)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={value[name]}" for name in sorted(value))
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)


def _line(name: str, a: Values, b: Values) -> Iterator[str]:
    if a == b:
        return
    ours, theirs = (", ".join(sorted(side)) or "not known" for side in (a, b))
    if max(len(ours), len(theirs)) > LONGEST:
        yield name
    else:
        yield f"{name}: {ours} in A, {theirs} in B"
