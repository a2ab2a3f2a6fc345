"""The figures that the design promises, held against what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.engine.run import CHANGING, UNCHANGED, Cost

_OURS = "ours"
# (tool, kind) to how many times our wall time it takes at least, on two nodes.
SLOWER = {
    ("pyinfra", UNCHANGED): 10.0,
    ("mitogen", UNCHANGED): 12.0,
    ("ansible", UNCHANGED): 25.0,
    ("pyinfra", CHANGING): 10.0,
}
ABOVE_FLOOR = 1.35
ABOVE_FLOOR_MANY = 1.4
TURNS = 10
GROWTH = 3.0
_NODES = 2
_FEW, _MANY = 1, 32


@dataclass(frozen=True)
class Figure:
    """A promise: what, how much, and what was measured."""

    what: str
    wanted: str
    seen: str
    met: bool


def ratios(costs: Iterable[Cost]) -> dict[tuple[str, int, str], tuple[float, float]]:
    """Wall and CPU time of each other tool, as multiples of ours."""
    known = {(cost.tool, cost.nodes, cost.kind): cost for cost in costs}
    found = {}
    for (tool, nodes, kind), cost in known.items():
        mine = known.get((_OURS, nodes, kind))
        if mine is not None and tool != _OURS:
            found[tool, nodes, kind] = (cost.wall / mine.wall, cost.cpu / mine.cpu)
    return found


def compared(costs: list[Cost]) -> list[Figure]:
    """The promises about the two-node play, as far as the tools were run."""
    mine = [c for c in costs if (c.tool, c.nodes, c.kind) == (_OURS, _NODES, UNCHANGED)]
    found = []
    for cost in mine:
        seen = f"{cost.sessions:g} and {cost.turns:g}"
        fine = cost.sessions <= 1 and cost.turns <= TURNS
        found.append(Figure("SSH sessions and turns a node", f"1 and {TURNS}", seen, fine))
    measured = ratios(costs)
    if floor := measured.get(("floor", _NODES, UNCHANGED)):
        above = 1 / floor[0]
        what = "unchanged: ours to a bare agent loop"
        found.append(Figure(what, f"<= {ABOVE_FLOOR}", f"{above:.2f}", above <= ABOVE_FLOOR))
    for (tool, kind), least in SLOWER.items():
        if ratio := measured.get((tool, _NODES, kind)):
            what = f"{kind}: {tool} to ours"
            found.append(Figure(what, f">= {least:g}", f"{ratio[0]:.1f}", ratio[0] >= least))
    return found


def scaled(costs: list[Cost]) -> list[Figure]:
    """The promise about many nodes.

    The wall time counts only where the nodes do not share the laptop's cores; here they do, so the
    laptop's own CPU time stands for it, and the floor's wall time says what the nodes make of it.
    """
    known = {(cost.tool, cost.nodes): cost for cost in costs}
    found = []
    if {(_OURS, _FEW), (_OURS, _MANY)} <= known.keys():
        growth = known[_OURS, _MANY].cpu / known[_OURS, _FEW].cpu
        what = f"laptop's CPU: {_MANY} nodes to {_FEW}"
        found.append(Figure(what, f"< {GROWTH:g}", f"{growth:.2f}", growth < GROWTH))
    if {(_OURS, _MANY), ("floor", _MANY)} <= known.keys():
        above = known[_OURS, _MANY].wall / known["floor", _MANY].wall
        what = f"wall, {_MANY} nodes: ours to a bare agent loop"
        met = above <= ABOVE_FLOOR_MANY
        found.append(Figure(what, f"<= {ABOVE_FLOOR_MANY}", f"{above:.2f}", met))
    return found
