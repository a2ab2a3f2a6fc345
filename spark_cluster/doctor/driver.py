"""GPU driver, kernel, firmware and power of one node."""

from __future__ import annotations

import csv
import json
import re

from spark_cluster.doctor.check import check
from spark_cluster.doctor.finding import NotSeen, Verdict, fail, ok, warn
from spark_cluster.doctor.observations import Observations, Ran
from spark_cluster.planning import pins

REBOOT = "spark-cluster exec -b -l {node} -- systemctl reboot"
DRIVERS = "spark-cluster provision --tags drivers --limit {node}"
DRAIN = "shut {node} down, unplug its power supply from AC for 60 s, start it again"

DEAD = f"journalctl -k -b on {{node}} for what the driver says; {REBOOT}; if it stays so: {DRAIN}"

XID = re.compile(r"Xid \(?[^)]*\)?: (\d+)")
GSP_TIMEOUT = "119"
FLASHER = "mlnx-fw-updater"
KHO_KERNEL = "7.0.0-1019"
BUSY_PERCENT = 50
LOW_MHZ = 1000
LOW_W = 30
ORDERLY_END = re.compile(
    r"Journal stopped|Reached target .*(Power-?Off|Reboot|Shutdown|Halt)", re.I
)
NO_EARLIER_BOOT = re.compile(r"no persistent journal|not available|No .*boot", re.I)
FAILED_STATE = 3
"""Of fwupd's UpdateState (0 unknown, 1 pending, 2 success, 3 failed, 4 needs reboot)."""


@check(
    "driver.library-match",
    title="driver and library have the same version",
    needs=("gpu", "nvrm"),
    severity="blocks",
    cause="the driver was updated and the old one is still loaded",
    fix=REBOOT,
    rows=(21,),
)
def library_match(seen: Observations) -> Verdict:
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


@check(
    "driver.gpu-present",
    title="nvidia-smi sees the GPU",
    needs=("gpu", "kernel_log"),
    severity="blocks",
    cause="an update that took the driver but not the firmware (580.173.02 on an older OTA), "
    "or the GPU's own processor timed out",
    fix="bring DGX OS whole: apt full-upgrade and fwupdmgr upgrade on {node}, then reboot",
    rows=(22,),
)
def gpu_present(seen: Observations) -> Verdict:
    if seen.hangs("gpu"):
        return fail(seen.hangs("gpu"), cause="the driver or the GPU hangs", fix=DEAD)
    smi = seen.ran("gpu")
    timeouts = xids(seen).count(GSP_TIMEOUT)
    tail = f"; Xid {GSP_TIMEOUT} {timeouts} times since boot" if timeouts else ""
    if "No devices were found" in smi.said:
        return fail("No devices were found" + tail)
    if "couldn't communicate" in smi.said:
        return fail(
            smi.said + tail,
            cause="the driver is not loaded: not installed for this kernel, or blocked",
            fix=DRIVERS,
        )
    if timeouts:
        return fail(tail[2:])
    if smi.status != 0 or seen.facts.gpu is None:
        raise NotSeen(f"nvidia-smi: {smi.said or f'status {smi.status}'}")
    return ok(f"{seen.facts.gpu.name}, driver {seen.facts.gpu.driver}")


@check(
    "driver.xid",
    title="the kernel's log has no error of the GPU",
    needs=("kernel_log",),
    severity="risks",
    cause="the GPU reported an error since boot; 13, 31, 43 and 45 come from programs, "
    "others from driver or hardware",
    fix="journalctl -k -g Xid on {node} shows when; if it comes again: " + REBOOT,
)
def xid(seen: Observations) -> Verdict:
    numbers = sorted({int(n) for n in xids(seen) if n != GSP_TIMEOUT})
    if numbers:
        return warn(f"Xid {', '.join(map(str, numbers))} since boot")
    return ok("no Xid since boot")


@check(
    "driver.kho",
    title="memory can be registered for RDMA under this kernel",
    needs=("kernel", "cmdline", "meminfo"),
    severity="blocks",
    cause="this kernel keeps memory for kexec handover, so ibv_reg_mr fails with ENOMEM",
    fix="apt install nvidia-spark-grub-kho on {node} (it boots with kho=off), then reboot",
    rows=(11,),
)
def kho(seen: Observations) -> Verdict:
    kernel, off = seen.kernel, "kho=off" in seen.text("cmdline").split()
    total, free = (_meminfo(seen, name) for name in ("CmaTotal", "CmaFree"))
    if total is not None and free is not None and free > total:
        return fail(f"kernel {kernel}: CmaFree {free} kB is more than CmaTotal {total} kB")
    if kernel.startswith(KHO_KERNEL) and not off:
        return fail(f"kernel {kernel} was booted without kho=off")
    return ok(f"kernel {kernel}{' with kho=off' if off else ''}")


@check(
    "driver.known-bad",
    title="kernel and driver are no combination that is known to be bad",
    needs=("kernel", "cmdline", "gpu", "dpkg"),
    severity="blocks",
    cause="the node runs a combination of kernel and driver that others have had trouble with",
    fix=DRIVERS,
    rows=(22,),
)
def known_bad(seen: Observations) -> Verdict:
    smi = seen.ran("gpu")
    seen.ran("dpkg")
    shown = f"kernel {seen.kernel}, driver {pins.driver(seen.facts) or smi.said[:80]}"
    seen.text("cmdline")
    if seen.pins is None:
        raise NotSeen("the list of known combinations (roles/drivers/pins.json): not there")
    bad = seen.pins.running(seen.facts)
    if not bad:
        return ok(shown + (", known to be good" if seen.pins.known_good(seen.facts) else ""))
    worst = min(bad, key=lambda b: b.severity != "error")
    problem = fail if worst.severity == "error" else warn
    return problem(shown, cause=worst.what, fix=worst.fix)


@check(
    "driver.reboot",
    title="no reboot is due",
    needs=("os",),  # a node that shows its files shows this one too
    severity="risks",
    cause="packages were updated that are in force only after a reboot",
    fix=REBOOT,
    rows=(21,),
)
def reboot(seen: Observations) -> Verdict:
    seen.text("os")
    if not seen.there("reboot_required"):
        return ok("/var/run/reboot-required is not there")
    packages = seen.text("reboot_packages").split() if seen.there("reboot_packages") else []
    names = f": {', '.join(sorted(set(packages))[:5])}" if packages else ""
    return warn(f"/var/run/reboot-required is there{names}")


@check(
    "driver.clocks",
    title="the GPU clocks up under load",
    needs=("load",),
    severity="slows",
    cause="a power fault: the supply negotiated too little, with no reason shown for throttling",
    fix=DRAIN,
    rows=(24,),
)
def clocks(seen: Observations) -> Verdict:
    row = next(csv.reader(seen.output("load").splitlines(), skipinitialspace=True), [])
    figures = [_number(cell) for cell in row[:3]]
    if len(row) < 7 or figures[0] is None or figures[1] is None:
        raise NotSeen(f"nvidia-smi tells no load and clock: {', '.join(row)}")
    load, clock, watts = figures[0], figures[1], figures[2]
    shown = f"{load:g} % busy, {clock:g} MHz" + ("" if watts is None else f", {watts:g} W")
    if load < BUSY_PERCENT:
        return ok(f"{shown}: idle, where it cannot show")
    throttled = [cell for cell in row[3:] if cell.strip() == "Active"]
    if clock >= LOW_MHZ:
        return ok(shown)
    if throttled or (watts is not None and watts > LOW_W):
        return warn(
            f"{shown}, throttled" if throttled else shown,
            cause="a limit is in force: heat, power, or clocks locked by hand",
            fix="nvidia-smi -q -d PERFORMANCE,CLOCK on {node}; nvidia-smi -rgc unlocks",
        )
    return fail(f"{shown}, and nvidia-smi gives no reason for throttling")


@check(
    "driver.power-off",
    title="the last boot ended in order",
    needs=("previous",),
    severity="risks",
    cause="power was cut, or the node switched itself off under load (power transients), or froze",
    fix="cap the clocks (nvidia-smi -lgc 300,2100): spark-cluster provision --tags power "
    "--limit {node}",
    rows=(25,),
)
def power_off(seen: Observations) -> Verdict:
    done = seen.ran("previous")
    if NO_EARLIER_BOOT.search(done.said):
        return ok("no earlier boot is on record")
    if done.status != 0:
        raise NotSeen(f"journalctl -b -1: {done.said[-200:] or f'status {done.status}'}")
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise NotSeen("journalctl -b -1 printed nothing")
    if any(ORDERLY_END.search(line) for line in lines):
        return ok("the boot before this one ended with a shutdown")
    found = f"the boot before this one ended in the middle, at {lines[-1].split()[0]}"
    if seen.units.get("spark-clock-cap", {}).get("ActiveState") != "active":
        return warn(found)
    return warn(
        f"{found}; the clocks are capped at boot",
        cause="power was cut, or the node froze: its memory may have run out",
        fix="journalctl -b -1 -e on {node} shows what it was at; this goes with the next shutdown",
    )


@check(
    "driver.firmware-update",
    title="no firmware update failed",
    needs=("history",),
    severity="risks",
    cause="fwupd could not finish at reboot; USB-PD and EC need power taken away",
    fix=DRAIN + ", then fwupdmgr upgrade again",
    rows=(27,),
)
def firmware_update(seen: Observations) -> Verdict:
    done = seen.ran("history")
    if done.status != 0 and "No history" in done.said:
        return ok("no update is on record")
    devices = fwupd_devices(done)
    failed = [d for d in devices if d.get("UpdateState") == FAILED_STATE]
    if failed:
        names = (f"{d.get('Name', '?')}: {d.get('UpdateError') or 'Failed'}" for d in failed)
        return fail("; ".join(names))
    return ok(f"{len(devices)} updates on record, none failed")


@check(
    "driver.mlnx-hold",
    title="mlnx-fw-updater cannot flash the ConnectX-7",
    needs=("dpkg",),
    severity="risks",
    cause="it is reported to flash firmware that bricks the ConnectX-7 of a Spark",
    fix=f"{DRIVERS} (or apt-mark hold mlnx-fw-updater there)",
    rows=(28,),
)
def mlnx_hold(seen: Observations) -> Verdict:
    seen.ran("dpkg")
    version = seen.facts.packages.get(FLASHER)
    if FLASHER in seen.facts.held:
        return ok(f"held{f' at {version}' if version else ''}")
    return (
        fail(f"{FLASHER} {version} is installed and not held")
        if version
        else ok(f"{FLASHER} is not installed")
    )


def xids(seen: Observations) -> list[str]:
    """Numbers of the GPU errors in the kernel's log of this boot."""
    return XID.findall(seen.output("kernel_log"))


def fwupd_devices(done: Ran) -> list[dict[str, object]]:
    """Devices of `fwupdmgr ... --json`.

    Raises:
        NotSeen: it printed something else.
    """
    try:
        devices = json.loads(done.stdout)["Devices"]
        return [d for d in devices if isinstance(d, dict)]
    except (ValueError, LookupError, TypeError):
        said = done.said[-200:] or f"status {done.status}"
        raise NotSeen(f"fwupdmgr did not answer in JSON: {said}") from None


def _meminfo(seen: Observations, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB$", seen.text("meminfo"), re.MULTILINE)
    return int(found[1]) if found else None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
