"""Questions to nvidia-smi on a node, and the parsers of its answers."""

from __future__ import annotations

import re

FIGURES = {
    "utilization.gpu": "utilisation",
    "clocks.sm": "sm_clock_mhz",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
}
"""Field of `--query-gpu` to our name; percent, MHz, W, degrees Celsius."""

THROTTLE = {
    reason: f"clocks_event_reasons.{reason}"
    for reason in ("sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown")
}
"""Reasons for which the driver lowers the clocks, and their fields. Source: nvidia-docs-smi."""

APPS = (
    "nvidia-smi",
    "--query-compute-apps=pid,process_name,used_gpu_memory",
    "--format=csv,noheader,nounits",
)
"""To be asked on the host: inside a container the list is empty (PID namespace)."""

_INVALID = re.compile(r'^Field "([^"]+)" is not a valid field to query', re.MULTILINE)


def processes(text: str) -> list[tuple[int, str, int | None]]:
    """Return pid, name and MiB (None when it is not told) of each line of APPS."""
    # No CSV reader: nvidia-smi quotes nothing, and a name may have commas and quotes in it.
    rows = re.findall(r"^\s*([0-9]{1,10})\s*,(.*),([^,\n]*)$", text, re.MULTILINE)
    found = []
    for pid, name, used in rows:
        mib = re.fullmatch(r"\s*([0-9]{1,10})(?:\s*MiB)?\s*", used)
        found.append((int(pid), name.strip(), int(mib[1]) if mib else None))
    return found


def number(cell: str) -> float | None:
    """The figure of a cell; None for `[N/A]` and whatever else is none."""
    found = re.match(r"-?\d+(\.\d+)?", cell)
    return float(found[0]) if found else None


def invalid(text: str) -> set[str]:
    """Return the fields that this nvidia-smi does not know, if that is what it says."""
    return set(_INVALID.findall(text))
