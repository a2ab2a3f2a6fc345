"""Least squares that outliers do not lead astray, for a few unknowns and some dozens of equations.

Each equation says that `fixed + row . coefficients` should be one, and the coefficients are in
units of what they are thought to be, so all are near one too.

numpy and scipy are in the extra `calibrate` and are imported late: nothing else needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from spark_cluster.errors import Failed, install_extra

HUBER = 0.05
"""Error from which on an equation counts less, the less the farther off it is."""

TOLERANCE = 1e-12
"""Relative change of the coefficients and of the cost at which a fit ends."""

DEPENDENT = 1e-7
"""Share of the largest singular value below which columns count as linearly dependent."""


class Undecided(Exception):
    """The equations do not decide the coefficients."""


def require_libraries() -> None:
    """Check that the extra `calibrate` is installed.

    Raises:
        Failed: it is not.
    """
    missing = [name for name in ("numpy", "scipy") if find_spec(name) is None]
    if missing:
        raise Failed(
            f"fitting constants needs {' and '.join(missing)}, expected to be installed",
            hint=install_extra("calibrate"),
        )


@dataclass(frozen=True)
class System:
    """The equations.

    Attributes:
        rows: of each equation, a figure for each coefficient.
        fixed: of each equation, what does not depend on them.
    """

    rows: Sequence[Sequence[float]]
    fixed: Sequence[float]

    def error(self, number: int, coefficients: Sequence[float]) -> float:
        """Return how far an equation is off."""
        pairs = zip(self.rows[number], coefficients, strict=True)
        return self.fixed[number] + sum(x * c for x, c in pairs) - 1

    def unexplained(self, column: int, others: Sequence[int]) -> float:
        """Return the length of what a column has beyond all combinations of the others."""
        import numpy as np

        rows = np.array(self.rows)
        known = rows[:, list(others)]
        best = np.linalg.lstsq(known, rows[:, column], rcond=None)[0]
        return float(np.linalg.norm(rows[:, column] - known @ best))

    def fit(
        self, active: Sequence[int], base: Sequence[float], without: int | None = None
    ) -> list[float]:
        """Return the coefficients that fit best.

        Args:
            active: numbers of the coefficients to fit; the others stay as in `base`.
            without: number of an equation to leave out.

        Raises:
            Undecided: they are not decided.
        """
        if not active:
            return list(base)
        import numpy as np
        from scipy.optimize import least_squares

        used = [i for i in range(len(self.rows)) if i != without]
        start = [0.0 if k in active else c for k, c in enumerate(base)]
        rows = np.array([[self.rows[i][k] for k in active] for i in used])
        goals = np.array([-self.error(i, start) for i in used])
        plain, _, rank, _ = np.linalg.lstsq(rows, goals, rcond=DEPENDENT)
        if rank < len(active):
            raise Undecided
        tolerances = dict.fromkeys(("ftol", "xtol", "gtol"), TOLERANCE)
        found = least_squares(
            lambda c: rows @ c - goals, plain, lambda _: rows,
            loss="huber", f_scale=HUBER, **tolerances,
        ).x  # fmt: skip
        fitted = dict(zip(active, map(float, found), strict=True))
        return [fitted.get(k, c) for k, c in enumerate(base)]

    def left_out_error(self, active: Sequence[int], base: Sequence[float]) -> float | None:
        """Return the mean error of each equation by a fit to the others; None with too few.

        A coefficient that is in one equation only stays as in `base` when that one is left out.
        """
        count = len(self.rows)
        if count - 1 < len(active) or count < 2:
            return None
        total = 0.0
        for i in range(count):
            others = [k for k in active if any(self.rows[j][k] for j in range(count) if j != i)]
            try:
                total += abs(self.error(i, self.fit(others, base, i)))
            except Undecided:
                return None
        return total / count
