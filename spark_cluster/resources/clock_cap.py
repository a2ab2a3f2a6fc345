"""A limit of the GPU's clocks that is in force, not only set for the next boot."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.resources.base import Resource, State

QUERY = ("nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits")

STEP_MHZ = 30.0
"""MHz above the limit that are still the limit: clocks go in steps of 15."""

_FALLS_WITHIN_S = 5.0
"""Seconds within which a clock follows a new limit."""


@dataclass(frozen=True)
class ClockCap(Resource):
    """The GPU does not run faster than `max_mhz`; otherwise the unit that sees to it is restarted.

    NVML has no way to ask for a limit that `nvidia-smi -lgc` has set (NVML API reference, "Device
    Commands": nvmlDeviceSetGpuLockedClocks has no counterpart that reads). So a limit that was
    lifted by hand (`nvidia-smi -rgc`) shows when the GPU is loaded: its clock is above it. On an
    idle GPU, or with a driver that does not answer because it was just updated, nothing shows, and
    nothing is done.

    Args:
        unit: sets the limit when it starts.
        max_mhz: highest clock, MHz.

    Example:
        ClockCap("spark-clock-cap", max_mhz=2100)
    """

    reverts = "the GPU's clocks stay as they are; `nvidia-smi -rgc` lifts the limit"

    unit: str
    max_mhz: int = field(kw_only=True)

    def validate(self) -> None:
        self.must(self.max_mhz > 0, f"max_mhz {self.max_mhz}")

    def desired(self) -> State:
        return {"in_force": True}

    def observe(self, host: Host) -> State:
        done = host.run(QUERY)
        words = done.stdout.split()
        try:
            clock = float(words[0]) if done.status == 0 else 0.0
        except (IndexError, ValueError):
            clock = 0.0
        if clock <= self.max_mhz + STEP_MHZ:
            return {"in_force": True}
        return {"in_force": False, "clock_mhz": clock}

    def converge(self, host: Host, actual: State) -> None:
        host.progress(f"the GPU runs at {actual['clock_mhz']:g} MHz: setting {self.unit} again")
        host.run(("systemctl", "restart", f"{self.unit}.service"), timeout=60).check(
            f"systemctl restart {self.unit}.service"
        )

    def state_after(self, host: Host) -> State:
        until = time.monotonic() + _FALLS_WITHIN_S
        while True:
            state = self.observe(host)
            if state["in_force"] or time.monotonic() > until:
                return state
            time.sleep(0.2)
