"""Checks of what the kernel itself logged, and of what it kept of a crash: faults, PCIe errors."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from spark_cluster.doctor.check import check
from spark_cluster.doctor.observations import Observations
from spark_cluster.doctor.scripts import KEPT_LINES
from spark_cluster.doctor.verdict import NotSeen, Verdict, fail, ok, warn
from spark_cluster.known_issues.entries import Issue
from spark_cluster.known_issues.log_matching import recognise
from spark_cluster.known_issues.match import ORDER
from spark_cluster.logs import lines

LONGEST = 160
"""Characters of a line of the kernel that are shown."""

MANY_CORRECTED = KEPT_LINES
"""Corrected errors of one device since boot: a few come with each training of a link."""

_PCIE_ERROR = re.compile(
    r"AER: (?:Multiple )?(?P<kind>(?:Unc|C)orrect\w+(?: \([\w-]+\))?) error (?:message )?received"
    r"(?: from|:) (?P<device>[0-9a-f:.]+)"
    r"|(?P<device2>[0-9a-f:.]+): PCIe Bus Error: severity=(?P<kind2>\w+(?: \([\w-]+\))?)"
)
"""The root port's line, as newer and older kernels have it, and the device's own (source:
linux-docs-aer)."""

_CONNECTX = re.compile(r"pci ([0-9a-f:.]+): \[15b3:[0-9a-f]{4}\] type 00")
_RECORD = re.compile(r"^<\d+>\[ *[\d.]+\] ")
"""Level and time before a line of a record in pstore."""

_WHERE = re.compile(r"\bpc : (\S+(?: \[\w+\])?)")
_WHOSE = re.compile(r"\bComm: (\S+)")


@dataclass(frozen=True)
class KernelFault:
    """A fault in the kernel's log: what it is, and where the kernel was."""

    issue: Issue
    found: str


def fault_in(log: str, check: str) -> KernelFault | None:
    """Return the fault that explains a log of the kernel, what is worse and more specific first.

    Args:
        check: only faults that it is about.
    """
    rows = [lines.read(_RECORD.sub("", raw)).text for raw in log.splitlines()]
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
    return KernelFault(issue, shown)


@check(
    "kernel.fault",
    title="the kernel reported no crash, lockup or disk error",
    needs=("kernel_log",),
    effect="risks",
)
def fault(seen: Observations) -> Verdict:
    found = fault_in(seen.output("kernel_log"), "kernel.fault")
    if found is None:
        return ok("none since boot")
    judged = fail if found.issue.severity == "error" else warn
    return judged(found.found, found.issue.id)


@check(
    "kernel.pcie",
    title="PCIe devices report no errors",
    needs=("kernel_log",),
    effect="risks",
)
def pcie(seen: Observations) -> Verdict:
    counts = _pcie_errors(seen.output("kernel_log"))
    shown = "; ".join(f"{device}: {kind} {_times(n)}" for (device, kind), n in counts.items())
    if any(kind.endswith("(Fatal)") for _, kind in counts):
        return fail(shown, "pcie-fatal-error")
    if any(kind.startswith("Unc") for _, kind in counts):
        return warn(shown, "pcie-fatal-error")
    if max(counts.values(), default=0) >= MANY_CORRECTED:
        return warn(shown, "pcie-corrected-errors")
    return ok(shown or "none since boot")


@check(
    "kernel.mstflint",
    title="mstflint does not read a ConnectX-7 that left the PCI bus",
    needs=("units", "kernel_log", "pci"),
    effect="risks",
)
def mstflint(seen: Observations) -> Verdict:
    """A function that was enumerated twice since boot, or is gone, left the bus."""
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
