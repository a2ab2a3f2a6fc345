"""All checks of doctor, by what they need."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from spark_cluster.doctor import driver, link, logs, memory, pair, probes, serving, system
from spark_cluster.doctor.check import Check, NodeCheck, PairCheck, ProbeCheck


def _of(*modules: ModuleType) -> tuple[Any, ...]:
    """The checks that modules define, in their order."""
    return tuple(
        value for module in modules for value in vars(module).values() if isinstance(value, Check)
    )


NODE: tuple[NodeCheck, ...] = (
    *_of(link, driver, memory, serving),
    *logs.CHECKS,
    *_of(system),
)
PAIR: tuple[PairCheck, ...] = _of(pair)
PROBES: tuple[ProbeCheck, ...] = _of(probes)
ALL: tuple[Check[Any], ...] = (*NODE, *PAIR, *PROBES)

AREAS = tuple(dict.fromkeys(check.area for check in ALL))
