"""nvidia-smi of a GB10: the plain table, -L, --query-gpu, --query-compute-apps, -lgc, -rgc, -pm."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from .processes import ComputeProcess, compute_processes
from .state import RUN, load

BUS_ID = "0000000F:01:00.0"
NAME = "NVIDIA GB10"
NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
# set by `nvidia-smi -lgc`; in /run, so a reboot forgets it as the real one does
LOCKED_CLOCKS = RUN / "locked-clocks"
RULE = f"+{'-' * 89}+"
COLUMNS = (
    "+-----------------------------------------+------------------------+----------------------+"
)
HEADING = (
    "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
    "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
    "|                                         |                        |               MIG M. |",
    "|=========================================+========================+======================|",
)
PROCESSES = (
    "| Processes:                                                                              |",
    "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
    "|        ID   ID                                                               Usage      |",
    "|=========================================================================================|",
)
LAST_COLUMNS = 46
"""Width of a process's name and memory together."""


def gpu_fields(state: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Field of --query-gpu -> (value, unit)."""
    active = state["throttle"]
    return {
        "index": ("0", ""),
        "count": ("1", ""),
        "name": (NAME, ""),
        "gpu_name": (NAME, ""),
        "uuid": (state["gpu_uuid"], ""),
        "serial": (state["gpu_serial"], ""),
        "pci.bus_id": (BUS_ID, ""),
        "compute_cap": ("12.1", ""),
        "driver_version": (state["driver_version"], ""),
        "vbios_version": (state["vbios"], ""),
        "persistence_mode": ("Enabled", ""),
        "pstate": (state["pstate"], ""),
        "memory.total": ("[N/A]", "MiB"),
        "memory.used": ("[N/A]", "MiB"),
        "memory.free": ("[N/A]", "MiB"),
        "utilization.gpu": (str(state["utilization"]), "%"),
        "utilization.memory": ("0", "%"),
        "temperature.gpu": (str(state["temperature_c"]), "plain"),
        "power.draw": (f"{state['power_w']:.2f}", "W"),
        "power.draw.instant": (f"{state['power_w']:.2f}", "W"),
        "power.limit": ("[N/A]", "W"),
        "fan.speed": ("[N/A]", "%"),
        "clocks.sm": (str(state["sm_clock_mhz"]), "MHz"),
        "clocks.current.sm": (str(state["sm_clock_mhz"]), "MHz"),
        "clocks.gr": (str(state["sm_clock_mhz"]), "MHz"),
        "clocks.current.graphics": (str(state["sm_clock_mhz"]), "MHz"),
        "clocks.max.sm": (str(state["max_sm_clock_mhz"]), "MHz"),
        "clocks.max.graphics": (str(state["max_sm_clock_mhz"]), "MHz"),
        "clocks.mem": ("[N/A]", "MHz"),
        "clocks_event_reasons.sw_power_cap": (active, ""),
        "clocks_event_reasons.hw_slowdown": (active, ""),
        "clocks_event_reasons.hw_thermal_slowdown": (active, ""),
        "clocks_event_reasons.sw_thermal_slowdown": (active, ""),
    }


def app_fields(process: ComputeProcess, state: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Field of --query-compute-apps -> (value, unit)."""
    used = (str(process.used_mib), "MiB")
    return {
        "pid": (str(process.pid), ""),
        "process_name": (process.name, ""),
        "name": (process.name, ""),
        "used_gpu_memory": used,
        "used_memory": used,
        "gpu_uuid": (state["gpu_uuid"], ""),
        "gpu_name": (NAME, ""),
        "gpu_bus_id": (BUS_ID, ""),
    }


TAKES_VALUE = ("i", "id", "l", "loop", "lms", "loop-ms")
SPELT = {"used_memory": "used_gpu_memory", "name": "process_name"}
"""What the header of --query-compute-apps says, whatever was asked for."""


def header(field: str, unit: str) -> str:
    return f"{field} [{unit}]" if unit not in ("", "plain") else field


def cell(value: str, unit: str, units: bool) -> str:
    bare = unit in ("", "plain") or not units or value.startswith("[")
    return value if bare else f"{value} {unit}"


def query(what: str, asked: list[str], formats: list[str], state: dict[str, Any]) -> int:
    """Print a CSV query of the GPU or of the compute processes."""
    if what == "gpu":
        rows = [gpu_fields(state)]
        known = rows[0]
        spelt: dict[str, str] = {}
    else:
        rows = [app_fields(process, state) for process in compute_processes(state)]
        known = app_fields(ComputeProcess(0, "", 0), state)
        spelt = SPELT
    for field in asked:
        if field not in known:
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    if rows and "noheader" not in formats:
        print(", ".join(header(spelt.get(field, field), known[field][1]) for field in asked))
    units = "nounits" not in formats
    for row in rows:
        print(", ".join(cell(*row[field], units) for field in asked))
    return 0


def table(state: dict[str, Any], processes: list[ComputeProcess]) -> str:
    """The plain output."""
    version = state["driver_version"]
    power = f"{round(state['power_w']):>3}W /  N/A "
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y       "),
        RULE,
        f"| NVIDIA-SMI {version:<22} Driver Version: {version:<14} "
        f"CUDA Version: {state['cuda_version']:<8} |",
        COLUMNS,
        *HEADING,
        f"|   0  {NAME:<28}   On  |   {BUS_ID} Off |                  N/A |",
        f"| N/A   {state['temperature_c']:>2}C    {state['pstate']:<3}           {power} "
        f"| Not Supported          |    {state['utilization']:>3}%      Default |",
        f"|{'':41}|{'':24}|                  N/A |",
        COLUMNS,
        "",
        RULE,
        *PROCESSES,
    ]
    lines += [process_line(process) for process in processes] or [
        f"|  {'No running processes found':<87}|"
    ]
    return "\n".join([*lines, RULE])


def process_line(process: ComputeProcess) -> str:
    used = f"{process.used_mib}MiB"
    width = LAST_COLUMNS - len(used) - 1
    name = process.name if len(process.name) <= width else f"...{process.name[3 - width :]}"
    return f"|    0   N/A  N/A  {process.pid:>14}      C   {name:<{width}} {used} |"


def failure(state: dict[str, Any]) -> tuple[str, int]:
    """Return the failure message that replaces all other output, and its exit status."""
    if not state["driver_loaded"]:
        return NOT_LOADED, 9
    if state["nvml_error"]:
        library = ".".join(state["driver_version"].split(".")[:2])
        return (
            f"Failed to initialize NVML: {state['nvml_error']}\nNVML library version: {library}",
            18,
        )
    if not state["gpu_present"]:
        return "No devices were found", 6
    return "", 0


def set_clocks(argv: list[str]) -> int | None:
    """-lgc, -rgc, -pm: accepted as on a Spark; None when it is none of them."""
    option = argv[0].split("=")[0] if argv else ""
    if option in ("-lgc", "--lock-gpu-clocks"):
        value = argv[0].partition("=")[2] or (argv[1] if len(argv) > 1 else "")
        low, _, high = value.partition(",")
        LOCKED_CLOCKS.write_text(json.dumps([int(low), int(high or low)]))
        print(f'GPU clocks set to "(gpuClkMin {low}, gpuClkMax {high or low})" for GPU {BUS_ID}')
    elif option in ("-rgc", "--reset-gpu-clocks"):
        LOCKED_CLOCKS.unlink(missing_ok=True)
        print(f"All done with resetting clocks for GPU {BUS_ID}.")
    elif option in ("-pm", "--persistence-mode"):
        print(f"Persistence mode is already Enabled for GPU {BUS_ID}.")
    elif option in ("-pl", "--power-limit"):
        print(f"Changing power management limit is not supported for GPU: {BUS_ID}.")
        return 3
    else:
        return None
    print("All done.")
    return 0


def load_with_clocks() -> dict[str, Any]:
    state = load()
    clocks = Path(LOCKED_CLOCKS)
    if clocks.exists():
        low, high = json.loads(clocks.read_text())
        state["sm_clock_mhz"] = min(max(state["sm_clock_mhz"], low), high)
    return state


def main(argv: list[str]) -> int:
    state = load_with_clocks()
    text, status = failure(state)
    if status:
        print(text)
        return status
    done = set_clocks(argv)
    if done is not None:
        return done
    options, seconds = parse(argv)
    while seconds:  # until someone ends it
        ask(options, load_with_clocks())
        sys.stdout.flush()
        options["format"] = options.get("format", "csv") + ",noheader"
        time.sleep(seconds)
    return ask(options, state)


def parse(argv: list[str]) -> tuple[dict[str, str], float]:
    """Options by name, and the seconds between two answers (0: answer once)."""
    words = iter(argv)
    options: dict[str, str] = {}
    for word in words:
        name, has_value, value = word.lstrip("-").partition("=")
        options[name] = value if has_value or name not in TAKES_VALUE else next(words, "")
    options.pop("i", options.pop("id", ""))
    every = float(options.pop("l", options.pop("loop", "0")) or 0)
    return options, every or float(options.pop("lms", options.pop("loop-ms", "0")) or 0) / 1000


def ask(options: dict[str, str], state: dict[str, Any]) -> int:
    """Answer once."""
    formats = options.get("format", "csv").split(",")
    for what in ("gpu", "compute-apps"):
        if f"query-{what}" in options:
            asked = [field.strip() for field in options[f"query-{what}"].split(",")]
            return query(what, asked, formats, state)
    if "L" in options or "list-gpus" in options:
        print(f"GPU 0: {NAME} (UUID: {state['gpu_uuid']})")
        return 0
    if options:
        print(f"Invalid combination of input arguments: {' '.join(options)}", file=sys.stderr)
        return 1
    print(table(state, compute_processes(state)))
    return 0
