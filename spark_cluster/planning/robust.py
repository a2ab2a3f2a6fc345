"""Least squares that outliers do not lead astray, for a few unknowns and some dozens of equations.

Each equation says that `fixed + row . coefficients` should be one, and the coefficients are in
units of what they are thought to be, so all are near one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HUBER = 0.05
"""Error from which on an equation counts less, the less the farther off it is."""

ROUNDS = 50
NEAR = 1e-9


class Undecided(Exception):
    """The equations do not decide the coefficients."""


@dataclass(frozen=True)
class System:
    """The equations.

    Attributes:
        rows: of each equation, a figure for each coefficient.
        fixed: of each equation, what does not depend on them.
    """

    rows: Sequence[Sequence[float]]
    fixed: Sequence[float]

    def errors(self, coefficients: Sequence[float]) -> list[float]:
        """How far each equation is off."""
        return [
            fixed + sum(x * c for x, c in zip(row, coefficients, strict=True)) - 1
            for row, fixed in zip(self.rows, self.fixed, strict=True)
        ]

    def mean_error(self, coefficients: Sequence[float]) -> float:
        """Mean of their sizes."""
        errors = self.errors(coefficients)
        return sum(map(abs, errors)) / len(errors)

    def fit(
        self, active: Sequence[int], base: Sequence[float], without: int | None = None
    ) -> list[float]:
        """The coefficients that fit best.

        Args:
            active: numbers of the coefficients to fit; the others stay as in `base`.
            without: number of an equation to leave out.

        Raises:
            Undecided: they are not decided.
        """
        used = [i for i in range(len(self.rows)) if i != without]
        rows = [[self.rows[i][k] for k in active] for i in used]
        off = self.errors([0.0 if k in active else c for k, c in enumerate(base)])
        goals = [-off[i] for i in used]
        weights, found = [1.0] * len(used), [base[k] for k in active]
        for _ in range(ROUNDS if active else 0):
            previous, found = found, _solve(rows, goals, weights)
            left = [
                abs(goal - sum(x * c for x, c in zip(row, found, strict=True)))
                for row, goal in zip(rows, goals, strict=True)
            ]
            weights = [1.0 if error <= HUBER else HUBER / error for error in left]
            if max(abs(a - b) for a, b in zip(previous, found, strict=True)) < NEAR:
                break
        fitted = dict(zip(active, found, strict=True))
        return [fitted.get(k, c) for k, c in enumerate(base)]

    def left_out_error(self, active: Sequence[int], base: Sequence[float]) -> float | None:
        """Mean error of each equation by a fit to the others; None when they are too few.

        A coefficient that is in one equation only stays as in `base` when that one is left out.
        """
        count = len(self.rows)
        if count - 1 < len(active) or count < 2:
            return None
        total = 0.0
        for i in range(count):
            others = [k for k in active if any(self.rows[j][k] for j in range(count) if j != i)]
            try:
                total += abs(self.errors(self.fit(others, base, i))[i])
            except Undecided:
                return None
        return total / count


def _solve(
    rows: Sequence[Sequence[float]], goals: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """The normal equations, by elimination with pivots."""
    size = len(rows[0])
    matrix = [
        [
            *(
                sum(w * r[i] * r[j] for w, r in zip(weights, rows, strict=True))
                for j in range(size)
            ),
            sum(w * r[i] * goal for w, r, goal in zip(weights, rows, goals, strict=True)),
        ]
        for i in range(size)
    ]
    largest = max(abs(matrix[i][i]) for i in range(size))
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) <= 1e-14 * largest:
            raise Undecided
        for k in range(size):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]
