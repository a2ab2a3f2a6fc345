"""The GPU's clocks capped: sudden power-offs under load come from power transients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, model_validator

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node, render
from spark_cluster.node import paths
from spark_cluster.resources import ClockCap, File, Resource, Service

TEMPLATES = Path(__file__).parent / "templates"
UNIT = "spark-clock-cap"


class Settings(Schema):
    """Settings of the role `power`."""

    clock_cap: bool = True
    """lock the GPU's clocks into a range, at every boot; a GB10 has no power limit to set, and
    `nvidia-smi -lgc` alone is lost at a reboot. false removes it again"""
    min_mhz: int = Field(default=300, gt=0)
    """lowest clock"""
    max_mhz: int = Field(default=2100, gt=0)
    """highest clock; uncapped it is about 2400 under load. Decoding is bound by memory and loses
    next to nothing, prefill loses about the ratio of the clocks"""
    persistence: bool = True
    """keep the driver loaded while the GPU is idle, so that the cap stays in force; set with the
    cap at every boot, without it nvidia-persistenced decides"""

    @model_validator(mode="after")
    def _in_order(self) -> Settings:
        if self.min_mhz > self.max_mhz:
            raise ValueError(f"min_mhz {self.min_mhz} is above max_mhz {self.max_mhz}")
        return self


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """A unit of our own that sets the clocks when the system comes up."""
    path = f"{paths.SYSTEMD_UNITS}/{UNIT}.service"
    if not settings.clock_cap:
        yield Service(UNIT, running=False, enabled=False)
        yield File(path, state="absent")
        return
    unit = File(path, content=render(TEMPLATES, "clock-cap.service.j2", **settings.model_dump()))
    yield unit
    # With a driver that does not answer (a reboot may be due) it can only be set up for later.
    answers = node.facts.gpu is not None
    yield Service(UNIT, running=True if answers else None, enabled=True, restart_when=(unit,))
    if answers:  # the unit is `active` also after someone has lifted what it set
        yield ClockCap(UNIT, max_mhz=settings.max_mhz)
