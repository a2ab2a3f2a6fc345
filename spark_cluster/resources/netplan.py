"""A netplan file of our own, and the addresses that it gives."""

from __future__ import annotations

import contextlib
import json
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.node.values import InvalidResource, ResourceError
from spark_cluster.resources.base import Resource, State, absolute
from spark_cluster.resources.file import observe_path, sha256, unified
from spark_cluster.resources.rollback import Rollback

if TYPE_CHECKING:
    from spark_cluster.node.host import Host

FOLDERS = ("lib/netplan", "run/netplan", "etc/netplan")

WAIT_S = 15.0
"""Seconds that the network manager may take to put addresses on after `netplan apply`."""

SETTLE_S = 1.0
"""Seconds until the laptop is asked for a new connection: `netplan apply` only asks networkd, which
may take down what it takes down a little later."""

APPLY_S = 60.0
"""Seconds that `netplan apply` may take."""

COMMAND_S = 20.0
"""Seconds that `netplan generate` and `ip` may take."""

SLACK_S = 10.0
"""Seconds on top of all limits, after which the timer restores the old file. It is for a node
whose agent died. Where no new connection comes, and where the laptop is gone (GONE_AFTER of
agent/main.py), the agent restores it itself: the laptop waits for that, not for the timer."""


@dataclass(frozen=True)
class Netplan(Resource):
    """A file under /etc/netplan (mode 600), applied, with its addresses really there.

    The file is validated by netplan itself before it takes its place. When the addresses do not
    come, the laptop cannot open a new connection afterwards, or the laptop is gone meanwhile, the
    old file is restored and applied: by this resource, or, when the agent is killed, by a timer
    that was set before, or, when the node is switched off and on meanwhile, at the next boot before
    there is a network.

    Args:
        path: the file, under /etc/netplan.
        content: YAML, all of it; None: there is no such file.
        addresses: interface to the address with prefix that it must have, whichever file gives it.
        mtu: bytes that each of these interfaces must have, or of some of them.
        kept: what stays of other netplan files, in words; told with a change.
        confirm_within_s: seconds that the laptop has for its new connection; 0 asks for none.

    Raises:
        ResourceError: not valid, no such interface, no address, or not reached any more.

    Example:
        Netplan("/etc/netplan/70-lab.yaml", content=text, mtu=9000,
                addresses={"enp1s0f1np1": "192.168.177.11/24"})
    """

    reverts = "the old addresses come at the next boot, or with "
    reverts += "`spark-cluster exec -b -l NODE -- netplan apply`"

    path: str
    content: str | None = field(kw_only=True)
    addresses: Mapping[str, str] = field(kw_only=True)
    mtu: int | Mapping[str, int] = field(kw_only=True)
    kept: str = field(default="", kw_only=True)
    confirm_within_s: float = field(default=20.0, kw_only=True)

    def validate(self) -> None:
        absolute(self.path, "Netplan")
        if not self.path.startswith("/etc/netplan/") or not self.path.endswith(".yaml"):
            raise InvalidResource(f"Netplan {self.path}: not a .yaml file under /etc/netplan")

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.path}",)

    def desired(self) -> State:
        file = {"kind": "absent"}
        if self.content is not None:
            file = {"kind": "file", "sha256": sha256(self.content.encode()), "mode": "0600"}
        return {
            **file,
            "addresses": dict(self.addresses),
            "mtu": dict(self._mtus),
            "rollback": "none",
        }

    @property
    def _mtus(self) -> Mapping[str, int]:
        return dict.fromkeys(self.addresses, self.mtu) if isinstance(self.mtu, int) else self.mtu

    def observe(self, host: Host) -> State:
        state = observe_path(host, self.path, needs_parent=True)
        rows = {row.get("ifname"): row for row in self._links(host)}
        missing = [i for i in self.addresses if i not in rows]
        if missing:
            raise ResourceError(
                f"there is no interface {', '.join(missing)}",
                f"there are: {', '.join(str(name) for name in rows)}",
            )
        state["addresses"] = {
            interface: self._address(rows[interface], wanted)
            for interface, wanted in self.addresses.items()
        }
        state["mtu"] = {interface: rows[interface].get("mtu") for interface in self._mtus}
        state["rollback"] = "pending" if self._rollback(host).armed else "none"
        return state

    def permit(self, host: Host, changes: Mapping[str, tuple[Any, Any]]) -> str:
        return self.kept

    def converge(self, host: Host, actual: State) -> None:
        rollback, pending = self._rollback(host), actual["rollback"] == "pending"
        if rollback.refused:
            raise self._unreached()
        if pending:
            host.progress(f"an earlier change of {self.path} was not confirmed")
        rollback.arm(self._longest_s())
        try:
            self._write(host)
        except Exception:
            if not pending:
                rollback.disarm()
            elif host.processes.cancelled.is_set():
                self._restore(host, rollback)
            raise
        try:
            self._apply(host)
        except Exception:  # Cancelled is no ResourceError: the laptop is gone
            self._restore(host, rollback)
            raise
        rollback.disarm()

    def diff(self, host: Host, actual: State) -> str:
        return unified(self.path, host.read(self.path) or b"", (self.content or "").encode())

    def _unreached(self) -> ResourceError:
        return ResourceError(
            f"with the new {self.path} this node could not be reached any more "
            f"(no new connection within {self.confirm_within_s:g} s); the old configuration was "
            "restored",
            "does it touch the interface by which the node is reached? `ip addr` there",
        )

    def _rollback(self, host: Host) -> Rollback:
        return Rollback(host, self.path, ("netplan", "apply"), ("netplan", "generate"))

    def _longest_s(self) -> float:
        """Seconds until there is a verdict when everything takes as long as it may."""
        from spark_cluster.node.processes import DRAIN_S, KILL_GRACE, TERM_GRACE  # on the node

        commands = (COMMAND_S, APPLY_S, COMMAND_S)  # the last one is `ip`, begun as WAIT_S ends
        ending_s = len(commands) * (TERM_GRACE + KILL_GRACE + DRAIN_S)
        return sum(commands) + ending_s + WAIT_S + SETTLE_S + self.confirm_within_s + SLACK_S

    def _write(self, host: Host) -> None:
        if self.content is None:
            host.remove(self.path)
            return
        data = self.content.encode()
        path = host.path(self.path)
        if host.read(self.path) != data or stat.S_IMODE(path.stat().st_mode) != 0o600:
            host.write(self.path, data, mode=0o600, validate=lambda new: self._check(host, new))

    def _apply(self, host: Host) -> None:
        host.run(("netplan", "apply"), timeout=APPLY_S).check("netplan apply")
        self._wait(host)
        host.processes.cancelled.wait(SETTLE_S)
        if self.confirm_within_s and not host.verify_reconnect(self.confirm_within_s):
            raise self._unreached()

    def _links(self, host: Host) -> list[dict[str, Any]]:
        done = host.run(("ip", "-j", "addr"), timeout=COMMAND_S).check("ip -j addr")
        return [row for row in json.loads(done.stdout or "[]") if row]

    def _address(self, row: dict[str, Any], wanted: str) -> str | None:
        """The wanted address when it is there, else the first IPv4 one."""
        infos = [i for i in row.get("addr_info", []) if i.get("family") == "inet"]
        present = [f"{i['local']}/{i['prefixlen']}" for i in infos]
        return wanted if wanted in present else next(iter(present), None)

    def _check(self, host: Host, new: Path) -> None:
        """Ask netplan itself, with all files that the new one will be read together with."""
        scratch = Path(tempfile.mkdtemp(prefix="netplan-"))
        try:
            for folder in FOLDERS:
                (scratch / folder).mkdir(parents=True)
                for other in host.path(folder).glob("*.yaml"):
                    shutil.copy(other, scratch / folder / other.name)
            shutil.copy(new, scratch / self.path.lstrip("/"))
            argv = ("netplan", "generate", "--root-dir", str(scratch))
            host.run(argv, timeout=COMMAND_S).check(
                f"netplan does not accept the new {self.path}, the old one stays"
            )
        finally:
            shutil.rmtree(scratch)

    def _wait(self, host: Host) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            state = self.observe(host)
            lacking = [
                f"{i} has {state['addresses'][i]} with MTU {state['mtu'].get(i)}"
                for i, address in self.addresses.items()
                if state["addresses"][i] != address or state["mtu"].get(i) != self._mtus.get(i)
            ]
            if not lacking:
                return
            if time.monotonic() > deadline:
                raise ResourceError(
                    f"{WAIT_S:g} s after netplan apply {', '.join(lacking)}; "
                    "the old configuration was restored",
                    "is the cable in? `ip addr` and `journalctl -u systemd-networkd` on the node",
                )
            time.sleep(0.1)

    def _restore(self, host: Host, rollback: Rollback) -> None:
        """Restore the old file and apply it, unless the timer has done so already.

        Not cancelled when the laptop is gone.
        """
        try:
            before = rollback.before()
        except FileNotFoundError:
            host.note(f"{self.path}: the timer has restored the old configuration already")
            return
        if before is None:
            host.remove(self.path)
        else:
            data, status = before
            mode = stat.S_IMODE(status.st_mode)
            host.write(self.path, data, mode=mode, uid=status.st_uid, gid=status.st_gid)
        with contextlib.suppress(ResourceError):
            host.run(("netplan", "apply"), timeout=APPLY_S, must_finish=True)
        rollback.refuse()
        rollback.disarm()
