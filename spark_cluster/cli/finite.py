"""A number of the command line that is one: not `nan`, and no infinity."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """click's range of numbers without `nan`, which is neither below nor above."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number
