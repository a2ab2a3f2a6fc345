"""The stand-in for what only a Spark's kernel shows: set up at boot, then kept current.

`serve` does both; `refresh` brings everything up to date at once. All of it lies in /run/lab and is
bound over the places where programs look, so the machine itself is never touched.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .processes import SOCKET, as_json, scan
from .state import HCAS, RUN, STATE_FILE, load
from .sysfs import CLASS, SPEED, put, refresh_ports

MEMINFO = RUN / "meminfo"
REAL_MEMINFO = RUN / "meminfo.real"
REFRESH = RUN / "refresh.socket"
DRIVER = RUN / "driver"
SWAPS = RUN / "swaps"
KERNEL = RUN / "osrelease"
CMDLINE = RUN / "cmdline"
BUDDYINFO = RUN / "buddyinfo"
REAL_CMDLINE = RUN / "cmdline.real"
SWAP_FILE = "/swap.img"
SHOWN = {
    "/proc/swaps": SWAPS,
    "/proc/sys/kernel/osrelease": KERNEL,
    "/proc/cmdline": CMDLINE,
    "/proc/buddyinfo": BUDDYINFO,
}
"""Files of the kernel that every node has, and what is shown instead."""

DEVICES = {
    "infiniband/uverbs0": (231, 192),
    "infiniband/uverbs1": (231, 193),
    "infiniband/umad0": (231, 0),
    "infiniband/rdma_cm": (10, 57),
    "nvidia0": (195, 0),
    "nvidiactl": (195, 255),
    "nvidia-uvm": (511, 0),
}
LIBRARIES = Path("/usr/lib/aarch64-linux-gnu")
"""Folder of the driver's libcuda.so, whose name ends with its version."""

CORE = ["rmem_max", "wmem_max", "rmem_default", "wmem_default", "netdev_max_backlog"]
RTM_LINK_AND_ADDRESSES = 0x1 | 0x10 | 0x100
EVERY = 1.5
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {version}  Release Build  "
    "(dvs-builder@U22-I3-AF04-07-5)  Wed Jan  7 22:35:57 UTC 2026\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)"
)


def mounted(path: str) -> bool:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == path for line in lines)


def bind(source: Path, target: str) -> None:
    """Show a file or directory elsewhere, once."""
    if not mounted(target):
        subprocess.run(["mount", "--bind", str(source), target], check=True)


# --- once, at boot ---------------------------------------------------------------------------


def make_devices() -> None:
    """Device files of RDMA and the GPU; nothing can open them, but `docker run` finds them."""
    Path("/dev/infiniband").mkdir(exist_ok=True)
    for name, (major, minor) in DEVICES.items():
        if not Path("/dev", name).exists():
            os.mknod(Path("/dev", name), 0o20666, os.makedev(major, minor))


def copy_settings(kernel: str, names: list[str]) -> Path:
    """Copies of a directory of kernel settings, to be written without reaching the kernel."""
    copy = RUN / "sysctl" / kernel.replace("/", "-")
    copy.mkdir(parents=True, exist_ok=True)
    for name in names:
        put(copy / name, "212992")
    for setting in Path("/proc/sys", kernel).iterdir():
        try:
            value = setting.read_text().strip()
        except OSError:
            value = "0"  # not readable; it shall exist
        put(copy / setting.name, value)
    return copy


def set_up(state: dict[str, Any]) -> None:
    RUN.mkdir(exist_ok=True)
    STATE_FILE.parent.mkdir(parents=True, exist_ok=True)
    make_devices()
    for kernel, names in (("vm", []), ("net/core", CORE)):
        target = f"/proc/sys/{kernel}"
        if not mounted(target):
            bind(copy_settings(kernel, names), target)
    Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 2147483647")
    if not mounted("/proc/meminfo"):
        shutil.copyfile("/proc/meminfo", REAL_MEMINFO)
    if not mounted("/proc/cmdline"):
        shutil.copyfile("/proc/cmdline", REAL_CMDLINE)
    put(CLASS / "dmi/id/product_name", state["product"])
    put(CLASS / "dmi/id/sys_vendor", "NVIDIA")
    refresh(state)
    bind(MEMINFO, "/proc/meminfo")
    for shown, file in SHOWN.items():
        bind(file, shown)
    bind(DRIVER, "/proc/driver")
    for interface in HCAS.values():
        real = f"/sys/devices/virtual/net/{interface}/speed"
        if Path(real).exists():
            bind(SPEED / interface, real)
    if not Path("/sys/class/infiniband").exists():
        layers = f"ro,lowerdir={CLASS}:/sys/class"
        overlay = ["mount", "-t", "overlay", "overlay", "-o", layers, "/sys/class"]
        subprocess.run(overlay, check=True)


# --- while it runs ---------------------------------------------------------------------------


def meminfo(state: dict[str, Any], real: str, used_mib: int) -> str:
    """The real table with a Spark's total, and what the compute processes hold taken off."""
    available = max(0, state["mem_available_kb"] - used_mib * 1024)
    shown = {
        "MemTotal": state["mem_total_kb"],
        "MemFree": available,
        "MemAvailable": available,
        "SwapTotal": state["swap_total_kb"],
        "SwapFree": state["swap_total_kb"],
        **state["meminfo"],
    }
    own = [line.partition(":")[0] for line in real.splitlines()]
    rows = dict(zip(own, real.splitlines(), strict=True)) | {
        name: f"{name + ':':<15}{value:>9} kB"
        for name, value in shown.items()
        if name in own or name in state["meminfo"]
    }
    return "\n".join(rows.values())


def swaps(state: dict[str, Any]) -> str:
    """/proc/swaps: a Spark has a swap file of 16 GiB."""
    lines = ["Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"]
    if state["swap_total_kb"]:
        lines.append(f"{SWAP_FILE:<40}file\t\t{state['swap_total_kb']}\t0\t\t-2")
    return "\n".join(lines)


def refresh_memory(state: dict[str, Any]) -> None:
    put(MEMINFO, meminfo(state, REAL_MEMINFO.read_text(), used_mib(state)))


def used_mib(state: dict[str, Any]) -> int:
    if state["compute_apps"] is not None:
        return sum(process["used_mib"] for process in state["compute_apps"])
    return sum(process.used_mib for process in scan())


def refresh(state: dict[str, Any]) -> None:
    """Write all that the stand-ins show as files."""
    refresh_memory(state)
    refresh_ports(state)
    put(SWAPS, swaps(state))
    put(BUDDYINFO, f"Node 0, zone   Normal {state['free_blocks']}\n")
    put(KERNEL, state["kernel"] or os.uname().release)
    put(CMDLINE, f"{REAL_CMDLINE.read_text().strip()} {state['kernel_arguments']}".strip())
    library = LIBRARIES / f"libcuda.so.{state['driver_version']}"
    put(library, "stand-in")
    for other in LIBRARIES.glob("libcuda.so.*"):
        if other != library:
            other.unlink()
    version = DRIVER / "nvidia/version"
    if state["driver_loaded"]:
        put(version, VERSION.format(version=state["driver_version"]))
    else:
        version.unlink(missing_ok=True)


def listen_for_changes() -> socket.socket:
    """The kernel's messages about links and addresses."""
    changes = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    changes.bind((0, RTM_LINK_AND_ADDRESSES))
    return changes


def listen_at(path: Path, mode: int) -> socket.socket:
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    path.chmod(mode)
    server.listen(8)
    return server


def answer(server: socket.socket, make: Callable[[], bytes]) -> None:
    """Answer whoever has connected."""
    connection, _ = server.accept()
    with connection, suppress(OSError):  # it may have gone
        connection.sendall(make())


def refreshed() -> bytes:
    refresh(load())
    return b"done"


def ask_for_refresh() -> None:
    """Have the service write everything again: two writers would overwrite each other's values."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(REFRESH))
        except OSError:
            return  # it does not run: it will begin with what is then true
        connection.recv(16)


def notify_ready() -> None:
    """Tell systemd that the node's hardware is there."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(b"READY=1", address)


def serve() -> None:
    set_up(load())
    changes, questions = listen_for_changes(), listen_at(SOCKET, 0o666)
    requests = listen_at(REFRESH, 0o600)
    refresh(load())  # what changed before anybody listened
    notify_ready()
    due = time.monotonic() + EVERY
    while True:
        wait = max(0.0, due - time.monotonic())
        ready, _, _ = select.select([changes, questions, requests], [], [], wait)
        if changes in ready:
            changes.recv(65536)
            refresh_ports(load())
        if questions in ready:
            answer(questions, lambda: as_json(scan()))
        if requests in ready:
            answer(requests, refreshed)
        if time.monotonic() >= due:
            refresh_memory(load())
            due = time.monotonic() + EVERY


def main(argv: list[str]) -> int:
    if argv == ["serve"]:
        serve()
    elif argv == ["refresh"]:
        ask_for_refresh()
    else:
        print("usage: lab-hardware serve|refresh")
        return 2
    return 0
