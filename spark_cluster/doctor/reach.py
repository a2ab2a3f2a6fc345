"""A node that does not answer over SSH: whether it is there at all, and what that means."""

from __future__ import annotations

import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network

from spark_cluster.doctor.finding import Finding, Status
from spark_cluster.errors import SparkClusterError, Unreachable

ID, TITLE, ROWS = "system.reachable", "the node answers over SSH", (20, 38)
TAILNET = IPv4Network("100.64.0.0/10")
OWN_FAULTS = ("host key", "HOST KEY", "accepts none", "passphrase", "no address is known")
"""What the laptop refuses itself; the node is not to blame."""


def reached(node: str, seconds: float) -> Finding:
    """It answered."""
    return _finding(node, found=f"answered in {seconds:.1f} s")


def unreached(node: str, address: str, error: SparkClusterError, pings: bool | None) -> Finding:
    """It did not.

    Args:
        pings: whether it answers a ping; None when that was not tried.
    """
    found, cause, fix = error.message, "", error.hint
    if pings:
        found += "; it answers pings"
        cause = (
            "its memory is exhausted and it swaps, so that nothing new can start; or sshd stopped"
        )
        fix = (
            "wait some minutes, else switch it off and on; then spark-cluster provision "
            f"--tags memory --limit {node}"
        )
    elif pings is False:
        cause = "it is off, or not on this network"
    if _in_tailnet(address) and not pings:
        cause = "Tailscale SSH in check mode waits for a browser"
        fix = f"tailscale set --ssh=false on {node}, or its LAN address in the inventory"
    return _finding(node, found=found, fail=True, cause=cause, fix=fix)


def worth_a_ping(error: SparkClusterError) -> bool:
    """Whether a ping can tell more."""
    return isinstance(error, Unreachable) and not any(w in error.message for w in OWN_FAULTS)


def pings(address: str) -> bool | None:
    """Whether an address answers a ping of this machine; None without the program."""
    wait = ["-W", "2"] if sys.platform == "linux" else ["-t", "2"]
    try:
        argv = ["ping", "-n", "-q", "-c", "1", *wait, address]
        return subprocess.run(argv, capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return None


def _finding(
    node: str, *, found: str, fail: bool = False, cause: str = "", fix: str = ""
) -> Finding:
    status: Status = "fail" if fail else "ok"
    return Finding(ID, node, status, found, TITLE, "SSH, ping", "blocks", cause, fix)


def _in_tailnet(address: str) -> bool:
    try:
        return IPv4Address(address) in TAILNET
    except ValueError:
        return False
