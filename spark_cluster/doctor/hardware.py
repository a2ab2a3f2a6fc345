"""Checks of one node's hardware: GPU driver, kernel, firmware, power and memory."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence

from spark_cluster.config.fact_gathering import compute_apps, free_blocks
from spark_cluster.config.facts import BUSY_PERCENT, LOW_MHZ, LOW_W, Pins, driver_of
from spark_cluster.doctor.check import check
from spark_cluster.doctor.observations import (
    KEPT_LINES,
    NotSeen,
    Observations,
    Verdict,
    fail,
    ok,
    warn,
)
from spark_cluster.engine.names import RAY, SERVER, TITLE
from spark_cluster.issues import log_lines
from spark_cluster.issues.entries import ORDER, Issue, catalogue, recognise
from spark_cluster.node.load_watch import SSH_STOPS_KIB
from spark_cluster.node.output import counted
from spark_cluster.node.replies import at, decoded, objects_of
from spark_cluster.runner.session import Output

KHO = "kernel-kho"
XID = re.compile(r"NVRM: Xid \(PCI:[^)]*\): (\d+)")
"""More of it than the 15 characters in which a user's process can name itself."""
GSP_TIMEOUT = "119"
FLASHER = "mlnx-fw-updater"
ORDERLY_END = re.compile(
    r" systemd\[1\]: (Shutting down|Reached target .{0,80}(Power-?Off|Reboot|Shutdown|Halt))", re.I
)
"""Of process 1: others may log under any name, but the journal prints the number of the process."""
NO_EARLIER_BOOT = re.compile(r"no persistent journal|not available|No .{0,80}boot", re.I)
FAILED_STATE = 3
"""Of fwupd's UpdateState (0 unknown, 1 pending, 2 success, 3 failed, 4 needs reboot)."""


@check("driver.library-match", needs=("gpu", "nvrm"), effect="blocks")
def library_match(seen: Observations) -> Verdict:
    """driver and library have the same version"""
    smi = seen.ran("gpu")
    if "version mismatch" in smi.said:
        return fail(smi.said)
    if smi.status != 0:
        raise NotSeen(f"nvidia-smi: {smi.said or f'status {smi.status}'}")
    loaded = re.search(r"Module for \S+\s+(\d[\d.]+)", seen.text("nvrm"))
    if loaded is None or seen.facts.gpu is None:
        raise NotSeen("/proc/driver/nvidia/version names no version")
    shown = f"library {seen.facts.gpu.driver}, module {loaded[1]}"
    return ok(shown) if loaded[1] == seen.facts.gpu.driver else fail(shown)


@check("driver.gpu-present", needs=("gpu", "kernel_log"), effect="blocks")
def gpu_present(seen: Observations) -> Verdict:
    """nvidia-smi sees the GPU"""
    if seen.hangs("gpu"):
        return fail(seen.hangs("gpu"), "gpu-hangs")
    smi = seen.ran("gpu")
    timeouts = xids(seen).count(GSP_TIMEOUT)
    tail = f"; Xid {GSP_TIMEOUT} {counted(timeouts, 'time')} since boot" if timeouts else ""
    if "No devices were found" in smi.said:
        return fail("No devices were found" + tail, "driver-torn")
    if "couldn't communicate" in smi.said:
        return fail(smi.said + tail, "driver-not-loaded")
    if timeouts:
        return fail(tail[2:], "driver-torn")
    if smi.status != 0 or seen.facts.gpu is None:
        raise NotSeen(f"nvidia-smi: {smi.said or f'status {smi.status}'}")
    return ok(f"{seen.facts.gpu.name}, driver {seen.facts.gpu.driver}")


@check("driver.xid", needs=("kernel_log",), effect="risks")
def xid(seen: Observations) -> Verdict:
    """the kernel's log has no GPU error"""
    numbers = sorted({int(n) for n in xids(seen) if n != GSP_TIMEOUT})
    if numbers:
        return warn(f"Xid {', '.join(map(str, numbers))} since boot")
    return ok("no Xid since boot")


@check("driver.kho", needs=("kernel", "cmdline", "meminfo"), effect="blocks")
def kho(seen: Observations) -> Verdict:
    """memory can be registered for RDMA under this kernel"""
    kernel, off = seen.kernel, "kho=off" in seen.text("cmdline").split()
    total, free = (_meminfo(seen, name) for name in ("CmaTotal", "CmaFree"))
    if total is not None and free is not None and free > total:
        return fail(f"kernel {kernel}: CmaFree {free} kB is more than CmaTotal {total} kB")
    if any(bad.issue == KHO for bad in _known(seen).running(seen.facts)):
        return fail(f"kernel {kernel} was booted without kho=off")
    return ok(f"kernel {kernel}{' with kho=off' if off else ''}")


@check("driver.known-bad", needs=("kernel", "cmdline", "gpu", "dpkg"), effect="blocks")
def known_bad(seen: Observations) -> Verdict:
    """kernel and driver are not a known bad combination"""
    smi = seen.ran("gpu")
    seen.ran("dpkg")
    shown = f"kernel {seen.kernel}, driver {driver_of(seen.facts) or smi.said[:80]}"
    seen.text("cmdline")
    known = _known(seen)
    bad = [catalogue()[found.issue] for found in known.running(seen.facts)]
    if not bad:
        return ok(shown + (", known to be good" if known.known_good(seen.facts) else ""))
    worst = min(bad, key=lambda issue: ORDER[issue.severity])
    return (fail if worst.severity == "error" else warn)(shown, worst.id)


# A node that shows its release file shows what is looked for, too.
@check("driver.reboot", needs=("os",), effect="risks")
def reboot(seen: Observations) -> Verdict:
    """no reboot is pending"""
    seen.text("os")
    if not seen.there("reboot_required"):
        return ok("/var/run/reboot-required is not there")
    packages = seen.text("reboot_packages").split() if seen.there("reboot_packages") else []
    names = f": {', '.join(sorted(set(packages))[:5])}" if packages else ""
    return warn(f"/var/run/reboot-required is there{names}")


@check("driver.clocks", needs=("load",), effect="slows")
def clocks(seen: Observations) -> Verdict:
    """the GPU clocks up under load"""
    row = next(csv.reader(seen.output("load").splitlines(), skipinitialspace=True), [])
    figures = [_number(cell) for cell in row[:3]]
    if len(row) < 7 or figures[0] is None or figures[1] is None:
        raise NotSeen(f"nvidia-smi reports no load and clock: {', '.join(row)}")
    load, clock, watts = figures[0], figures[1], figures[2]
    shown = f"{load:g} % busy, {clock:g} MHz" + ("" if watts is None else f", {watts:g} W")
    if load < BUSY_PERCENT:
        return ok(f"{shown}: idle, so it cannot be judged")
    throttled = [cell for cell in row[3:] if cell.strip() == "Active"]
    if clock >= LOW_MHZ:
        return ok(shown)
    if throttled or (watts is not None and watts > LOW_W):
        return warn(
            f"{shown}, throttled" if throttled else shown,
            "gpu-throttled",
        )
    return fail(f"{shown}, and nvidia-smi reports no throttling", "gpu-at-low-clock")


@check("driver.power-off", needs=("previous", "previous_kernel", "pstore"), effect="risks")
def power_off(seen: Observations) -> Verdict:
    """the last boot ended with a clean shutdown, not with a fault of the kernel"""
    crashed = fault_in(
        seen.ran("previous_kernel").stdout + seen.output("pstore"), "driver.power-off"
    )
    if crashed is not None:
        issue, found = crashed
        return warn(f"in the boot before this one: {found}", issue.id)
    done = seen.ran("previous")
    if NO_EARLIER_BOOT.search(done.stderr):
        return ok("no earlier boot is on record")
    if done.status != 0:
        raise NotSeen(f"journalctl -b -1: {done.said[-200:] or f'status {done.status}'}")
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise NotSeen("journalctl -b -1 printed nothing")
    if any(ORDERLY_END.search(line) for line in lines):
        return ok("the boot before this one ended with a shutdown")
    found = f"the boot before this one ended abruptly, at {lines[-1].split()[0]}"
    if seen.units.get("spark-clock-cap", {}).get("ActiveState") != "active":
        return warn(found, "power-cut")
    return warn(f"{found}; the clocks are capped at boot", "power-cut-at-capped-clocks")


@check("driver.firmware-update", needs=("history",), effect="risks", spark=True)
def firmware_update(seen: Observations) -> Verdict:
    """no firmware update failed"""
    done = seen.ran("history")
    if done.status != 0 and "No history" in done.said:
        return ok("no update is on record")
    devices = fwupd_devices(done)
    failed = [d for d in devices if d.get("UpdateState") == FAILED_STATE]
    if failed:
        names = (f"{d.get('Name', '?')}: {d.get('UpdateError') or 'Failed'}" for d in failed)
        return fail("; ".join(names))
    return ok(f"{counted(len(devices), 'update')} on record, none failed")


@check("driver.mlnx-hold", needs=("dpkg",), effect="risks")
def mlnx_hold(seen: Observations) -> Verdict:
    """mlnx-fw-updater cannot flash the ConnectX-7"""
    seen.ran("dpkg")
    version = seen.facts.packages.get(FLASHER)
    if FLASHER in seen.facts.held:
        return ok(f"held{f' at {version}' if version else ''}")
    return (
        fail(f"{FLASHER} {version} is installed and not held")
        if version
        else ok(f"{FLASHER} is not installed")
    )


def _known(seen: Observations) -> Pins:
    """Return the known combinations of kernel and driver.

    Raises:
        NotSeen: their list is not at hand.
    """
    if seen.pins is None:
        raise NotSeen("the list of known combinations (roles/drivers/pins.json): not there")
    return seen.pins


def xids(seen: Observations) -> list[str]:
    """Return the numbers of the GPU errors in the kernel's log of this boot."""
    return XID.findall(seen.output("kernel_log"))


def fwupd_devices(done: Output) -> list[dict[str, object]]:
    """Return the devices of `fwupdmgr ... --json`.

    Raises:
        NotSeen: it printed something else.
    """
    devices = at(decoded(done.stdout), "Devices")
    if not isinstance(devices, list):
        output = done.said[-200:] or f"status {done.status}"
        raise NotSeen(f"fwupdmgr did not answer in JSON: {output}")
    return objects_of(devices)


def _meminfo(seen: Observations, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB$", seen.text("meminfo"), re.MULTILINE)
    return int(found[1]) if found else None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


# Checks of what the kernel itself logged, and of what it kept of a crash: faults, PCIe errors.

LONGEST = 160
"""Characters of a line of the kernel that are shown."""

MANY_CORRECTED = KEPT_LINES
"""Corrected errors of one device since boot: a few come with each training of a link."""

_PCIE_ERROR = re.compile(
    r"AER: (?:Multiple )?(?P<kind>(?:Unc|C)orrect\w+(?: \([\w-]+\))?) error (?:message )?received"
    r"(?: from|:) (?P<device>[0-9a-f:.]+)"
    r"|(?P<device2>[0-9a-f:.]{1,20}): PCIe Bus Error: severity=(?P<kind2>\w+(?: \([\w-]+\))?)"
)
"""The root port's line, as newer and older kernels have it, and the device's own (source:
linux-docs-aer)."""

_CONNECTX = re.compile(r"pci ([0-9a-f:.]+): \[15b3:[0-9a-f]{4}\] type 00")
_RECORD = re.compile(r"^<\d+>\[ *[\d.]+\] ")
"""Level and time before a line of a record in pstore."""

_WHERE = re.compile(r"\bpc : (\S+(?: \[\w+\])?)")
_WHOSE = re.compile(r"\bComm: (\S+)")


def fault_in(log: str, check: str) -> tuple[Issue, str] | None:
    """Return the fault that explains a log of the kernel, what is worse and more specific first,
    and where the kernel was.

    Args:
        check: only faults that it is about.
    """
    rows = [log_lines.read(_RECORD.sub("", raw)).text for raw in log.splitlines()]
    found = [
        (ORDER[issue.severity], issue.broad, place, issue)
        for place, row in enumerate(rows)
        for issue in recognise(row)
        if check in issue.checks
    ]
    if not found:
        return None
    *_, issue = min(found, key=lambda one: one[:3])
    first = min(place for _, _, place, _ in found)
    text = "\n".join(rows[first:])
    where, whose = _WHERE.search(text), _WHOSE.search(text)
    shown = rows[first][:LONGEST]
    shown += f"; in {where[1][:LONGEST]}" if where else ""
    shown += f"; process {whose[1][:LONGEST]}" if whose else ""
    return issue, shown


@check("kernel.fault", needs=("kernel_log",), effect="risks")
def fault(seen: Observations) -> Verdict:
    """the kernel reported no crash, lockup or disk error"""
    worst = fault_in(seen.output("kernel_log"), "kernel.fault")
    if worst is None:
        return ok("none since boot")
    issue, found = worst
    return (fail if issue.severity == "error" else warn)(found, issue.id)


@check("kernel.pcie", needs=("kernel_log",), effect="risks")
def pcie(seen: Observations) -> Verdict:
    """PCIe devices report no errors"""
    counts = _pcie_errors(seen.output("kernel_log"))
    shown = "; ".join(f"{device}: {kind} {_times(n)}" for (device, kind), n in counts.items())
    if any(kind.endswith("(Fatal)") for _, kind in counts):
        return fail(shown, "pcie-fatal-error")
    if any(kind.startswith("Unc") for _, kind in counts):
        return warn(shown, "pcie-fatal-error")
    if max(counts.values(), default=0) >= MANY_CORRECTED:
        return warn(shown, "pcie-corrected-errors")
    return ok(shown or "none since boot")


@check("kernel.mstflint", needs=("units", "kernel_log", "pci"), effect="risks")
def mstflint(seen: Observations) -> Verdict:
    """mstflint does not read a ConnectX-7 that left the PCI bus"""
    # A function that was enumerated twice since boot, or is gone, left the bus.
    there = {path.split("/")[-2] for path in seen.tree("pci")}
    if not there:
        raise NotSeen("the PCI bus lists no device")
    runs = seen.units.get("dgx-dashboard-admin", {}).get("ActiveState") == "active"
    if not seen.there("mstflint_access"):
        return ok("the module mstflint_access is not loaded")
    times = Counter(_CONNECTX.findall(seen.output("kernel_log")))
    moved = sorted(device for device, n in times.items() if n > 1 or device not in there)
    if not moved:
        return ok("no function of the ConnectX-7 left the PCI bus since boot")
    shown = f"{', '.join(moved)} left the PCI bus since boot, and mstflint_access is loaded"
    return warn(shown + ("; dgx-dashboard-admin runs mstflint every hour" if runs else ""))


def _pcie_errors(log: str) -> dict[tuple[str, str], int]:
    """Return how often each device reported each severity; two lines may tell of one error."""
    told: tuple[Counter[tuple[str, str]], ...] = (Counter(), Counter())
    for line in log.splitlines():
        if found := _PCIE_ERROR.search(line):
            by_port = found["device"] is not None
            device = found["device"] if by_port else found["device2"]
            told[by_port][device, found["kind"] if by_port else found["kind2"]] += 1
    return dict(sorted((told[0] | told[1]).items()))


def _times(count: int) -> str:
    if count == 1:
        return "once"
    return f"{count} times" + (" or more" if count >= KEPT_LINES else "")


# Checks of one node's memory: what is left, what holds it, what happens when it runs out.

WARN_KIB = 6 * 2**20

CALM_SWAPPINESS = 10
MANY_REFUSALS = 5
OWN_UNIT = re.compile(rf"/({SERVER}|{RAY})\.service$")
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


@check("memory.available", needs=("meminfo",), effect="risks")
def available(seen: Observations) -> Verdict:
    """there is memory left for the system"""
    memory = seen.memory
    if not memory.total_kib:
        raise NotSeen("/proc/meminfo has no MemTotal")
    shown = f"{memory.available_kib / 2**20:.1f} of {memory.total_kib / 2**20:.1f} GiB available"
    if memory.available_kib < SSH_STOPS_KIB:
        return fail(shown)
    return warn(shown) if memory.available_kib < WARN_KIB else ok(shown)


@check("memory.orphan", needs=("apps", "holders", "containers"), effect="blocks")
def orphan(seen: Observations) -> Verdict:
    """no orphaned engine process holds memory"""
    processes = {p.pid: p for p in compute_apps(seen.output("apps"))}
    running = {e.id for e in seen.engines if e.running}
    left = []
    for line in seen.output("holders").splitlines():
        pid, parent, group, _, _, *name = line.split(" ", 5)
        process = processes.get(int(pid))
        container = CONTAINER_ID.search(group)
        if process is None or not TITLE.match(process.name):
            continue
        if container is not None and container[0] in running:
            continue
        if OWN_UNIT.search(group):  # of the runtime venv: systemd ends all of it with the unit
            continue
        if parent == "1" or (name and name[0].startswith(("systemd", "containerd-shim"))):
            left.append(process)
    if left:
        shown = ", ".join(f"PID {p.pid} {p.name} {p.used_mib} MiB" for p in left)
        pids = " ".join(str(p.pid) for p in left)
        return fail(shown, PID=pids)
    held = sum(p.used_mib or 0 for p in processes.values())
    return ok(holding(len(processes), held) if processes else "nothing is held")


def holding(count: int, mib: int) -> str:
    """Return how many processes hold how much of the GPU's memory."""
    return f"1 process holds {mib} MiB" if count == 1 else f"{count} processes hold {mib} MiB"


@check("memory.swap", needs=("swaps", "swappiness"), effect="risks")
def swap(seen: Observations) -> Verdict:
    """the node does not thrash in swap when memory runs out"""
    devices = _swap_devices(seen)
    swappiness = seen.text("swappiness").strip()
    if not devices:
        return ok("no swap")
    shown = f"{', '.join(devices)} in use, swappiness {swappiness}"
    calm = swappiness.isdigit() and int(swappiness) <= CALM_SWAPPINESS
    return ok(shown) if calm else warn(shown)


@check(
    "memory.fragmentation",
    needs=("buddyinfo", "page_size", "meminfo", "containers"),
    effect="risks",
)
def fragmentation(seen: Observations) -> Verdict:
    """free memory has large blocks, as a load needs them"""
    memory, serving = seen.memory, any(engine.running for engine in seen.engines)
    size = seen.output("page_size").strip()
    blocks = free_blocks(seen.text("buddyinfo"), int(size)) if size.isdecimal() else None
    if blocks is None:
        raise NotSeen(f"/proc/buddyinfo has no zone, or {size[:20]!r} is not a page size")
    if not blocks.fragmented:
        return ok(str(blocks))
    if serving:
        return ok(f"{blocks}, while an engine runs")
    if 2 * memory.cached_kib > memory.available_kib:
        cached = f"{memory.cached_kib / 2**20:.1f} GiB of page cache"
        return ok(f"{blocks}, next to {cached} that a start drops")
    return warn(str(blocks))


@check("memory.earlyoom", needs=("units", "swaps"), effect="risks")
def earlyoom(seen: Observations) -> Verdict:
    """earlyoom ends the engine before the node freezes"""
    unit = seen.units.get("earlyoom", {})
    if not unit:
        raise NotSeen("systemctl reports nothing about earlyoom")
    if unit.get("LoadState") == "not-found":
        return warn("earlyoom is not installed", "no-earlyoom")
    active = unit.get("ActiveState", "?")
    if active != "active":
        return warn(f"earlyoom is {active}", "no-earlyoom")
    limit = _swap_limit(seen.output("earlyoom").split("\0")) if _swap_devices(seen) else ""
    if limit:
        return warn(f"earlyoom waits until swap is used up, too: {limit}", "earlyoom-swap")
    return ok("earlyoom is active")


def _swap_limit(argv: Sequence[str]) -> str:
    """Return the option of earlyoom that keeps it from acting while swap is free; or nothing.

    `-s 100` alone still leaves SIGKILL at half of it (source: earlyoom-manual).
    """
    words = [word.strip() for word in argv]
    flags = [re.fullmatch(r"-([sS])(.*)", word) for word in words]
    given = {
        flag[1]: flag[2] or next(iter(words[at + 1 :]), "") for at, flag in enumerate(flags) if flag
    }
    if "S" in given:
        return f"-S {given['S']}"
    percent = given.get("s", "10")
    if percent == "100":
        return "-s 100 (SIGKILL below 50 %)"
    return "" if percent == "100,100" else f"-s {percent}"


def _swap_devices(seen: Observations) -> list[str]:
    return [line.split()[0] for line in seen.text("swaps").splitlines()[1:] if line.split()]


@check("memory.refused", needs=("kernel_log",), effect="risks")
def refused(seen: Observations) -> Verdict:
    """no allocation of the driver failed, and the kernel killed no process"""
    log = seen.output("kernel_log")
    refusals = log.count("NV_ERR_NO_MEMORY")
    killed = re.findall(r"Out of memory: Killed process \d+ \(([^)]*)\)", log)
    parts = [f"NV_ERR_NO_MEMORY {counted(refusals, 'time')}"] if refusals else []
    if killed:
        parts.append(f"the kernel killed {', '.join(sorted(set(killed)))}")
    if not parts:
        return ok("the kernel's log since boot has no such entry")
    shown = f"{'; '.join(parts)}, since boot"
    return fail(shown) if refusals >= MANY_REFUSALS else warn(shown)
