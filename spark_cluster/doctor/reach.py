"""The check that a node answers over SSH, and what it means when it does not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from spark_cluster.doctor.check import explained
from spark_cluster.doctor.verdict import CheckResult, Verdict, fail, ok
from spark_cluster.errors import SparkClusterError, Unreachable

ID, TITLE = "system.reachable", "the node answers over SSH"
TAILNET = IPv4Network("100.64.0.0/10")
OWN_FAULTS = ("host key", "HOST KEY", "accepts none", "passphrase", "no address is known")
"""What the laptop refuses itself; the node is not to blame."""


def reached(node: str, seconds: float) -> CheckResult:
    """Return the result for a node that answered."""
    return _result(node, ok(f"answered in {seconds:.1f} s"))


def unreached(node: str, address: str, error: SparkClusterError, pings: bool | None) -> CheckResult:
    """Return the result for a node that did not answer.

    Args:
        pings: whether it answers a ping; None when that was not tried.
    """
    if pings:
        return _result(node, fail(f"{error.message}; it answers pings", "node-swaps-endlessly"))
    if _in_tailnet(address):
        return _result(node, fail(error.message, "tailscale-ssh"))
    if pings is False:
        return _result(node, fail(error.message, "node-off"))
    return replace(_result(node, fail(error.message)), fix=error.hint)


def worth_a_ping(error: SparkClusterError) -> bool:
    """Return True when a ping can tell more."""
    return isinstance(error, Unreachable) and not any(w in error.message for w in OWN_FAULTS)


def pings(address: str) -> bool | None:
    """Return True when an address answers a ping; None without the program."""
    wait = ["-W", "2"] if sys.platform == "linux" else ["-t", "2"]
    try:
        argv = ["ping", "-n", "-q", "-c", "1", *wait, address]
        return subprocess.run(argv, capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return None


def _result(node: str, verdict: Verdict) -> CheckResult:
    status, found = verdict.status, verdict.found
    result = CheckResult(ID, node, status, found, TITLE, "SSH, ping", "blocks")
    return explained(result, verdict)


def _in_tailnet(address: str) -> bool:
    try:
        return IPv4Address(address) in TAILNET
    except ValueError:
        return False
