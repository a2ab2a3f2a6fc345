"""The state that the stand-ins show: defaults, and what a test has set in the node's state file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STATE_FILE = Path("/var/lib/lab/state.json")
RUN = Path("/run/lab")

DEFAULTS: dict[str, Any] = {
    "gpu_present": True,
    "driver_loaded": True,
    "nvml_error": "",  # e.g. "Driver/library version mismatch"
    "driver_version": "580.126.09",
    "cuda_version": "13.0",
    "gpu_uuid": "GPU-b0ec33a0-2589-53de-953c-0713d37d0794",
    "gpu_serial": "[N/A]",
    "vbios": "9A.0B.19.00.00",
    "temperature_c": 36,
    "power_w": 4.12,
    "utilization": 0,
    "pstate": "P8",
    "sm_clock_mhz": 208,
    "max_sm_clock_mhz": 3003,
    "locked_clocks": "",  # "min,max", as `nvidia-smi -lgc` takes it
    "throttle": "Not Active",  # of clocks_event_reasons.sw_power_cap and the thermal ones
    "compute_apps": None,  # a list of {pid, name, used_mib} instead of the real processes
    "kernel": "",  # e.g. "7.0.0-1019-nvidia"; empty: this machine's
    "kernel_arguments": "",  # what /proc/cmdline has in addition to this machine's own
    "mem_total_kb": 127601228,
    "mem_available_kb": 121_000_000,  # before the node's compute processes take theirs
    "free_blocks": "96 81 64 48 33 21 15 9 6 4 3 2 1417 782",  # of /proc/buddyinfo, by order
    "meminfo": {},  # further lines of /proc/meminfo, name -> kB
    "swap_total_kb": 16777212,
    "firmware": "28.45.4028",
    "board_id": "NVD0000000087",
    "hca_states": {},  # hca -> "ACTIVE" or "DOWN", instead of what its interface says
    "gid_shift": {},  # hca -> how far its GID table has drifted
    "link_speed": 200000,
    "connectx_present": True,
    "pcie_width": {},  # hca -> lanes, instead of 4
    "roce_v2": True,  # whether the GID tables have entries of RoCE v2
    "firmware_versions": {},  # device -> version, as fwupd shows it
    "firmware_offers": {},  # device -> the version that fwupd has for it
    "firmware_update_error": "",  # of the last update, e.g. "failed to run update on reboot: ..."
    "product": "NVIDIA_DGX_Spark",
}

HCAS = {
    "rocep1s0f0": "enp1s0f0np0",
    "rocep1s0f1": "enp1s0f1np1",
    "roceP2p1s0f0": "enP2p1s0f0np0",
    "roceP2p1s0f1": "enP2p1s0f1np1",
}


def load(path: Path = STATE_FILE) -> dict[str, Any]:
    """The defaults, with what the state file changes."""
    try:
        changes = json.loads(path.read_text())
    except FileNotFoundError:
        changes = {}
    return DEFAULTS | {name: value for name, value in changes.items() if value is not None}


def save(changes: dict[str, Any], path: Path = STATE_FILE) -> None:
    """Change some of the state for good, as hardware remembers it."""
    try:
        known = json.loads(path.read_text())
    except FileNotFoundError:
        known = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(".new")
    staged.write_text(json.dumps(known | changes))
    staged.rename(path)


def hcas(state: dict[str, Any]) -> dict[str, str]:
    """HCA -> interface; none when the ConnectX-7 is off the bus."""
    return HCAS if state["connectx_present"] else {}


def carrier(interface: str) -> bool:
    """Return whether the interface has a link now."""
    try:
        return Path(f"/sys/class/net/{interface}/operstate").read_text().strip() == "up"
    except OSError:
        return False


def hca_active(hca: str, state: dict[str, Any]) -> bool:
    """Return whether an HCA's port is active: as a test says, else as its interface is."""
    given = state["hca_states"].get(hca)
    return carrier(HCAS[hca]) if given is None else given == "ACTIVE"
