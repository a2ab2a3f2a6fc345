"""A simulated Spark, as tests and the command line handle it."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spark_cluster.errors import Failed
from spark_cluster_lab import cgroup, network, power
from spark_cluster_lab.layout import FABRIC, USER, Layout
from spark_cluster_lab.namespaces import enter
from spark_cluster_lab.prepare import Prepared
from spark_cluster_lab.seed import make_host_keys, remember_host_keys
from spark_cluster_lab.shell import run

STATE_FILE = "var/lib/lab/state.json"
BOOTED = ("running", "degraded", "maintenance")
READY_TIMEOUT = 60.0
START_TIMEOUT = 15.0
"""How long a supervisor may take to start before a node that is off counts as failed."""


@dataclass(frozen=True)
class ProcessMemory:
    """A process of a node: its number in the node, its title, its share of memory."""

    pid: int
    title: str
    mib: int


class NodesLab(Protocol):
    """The interface of the lab that a node needs."""

    @property
    def layout(self) -> Layout: ...
    @property
    def nodes(self) -> list[LabNode]: ...
    def locked(self) -> AbstractContextManager[None]: ...
    def prepared(self) -> Prepared: ...


class LabNode:
    """A node of the lab. Methods that switch it on return when it answers SSH and has booted."""

    def __init__(self, lab: NodesLab, number: int) -> None:
        self.lab = lab
        self.layout = lab.layout.nodes(number)[-1]

    def __repr__(self) -> str:
        return f"LabNode({self.name})"

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def address(self) -> str:
        """Its management address."""
        return self.layout.address

    @property
    def root(self) -> Path:
        """Its file system as this machine sees it, while the lab is up."""
        return self.layout.root

    @property
    def state(self) -> str:
        """`running`, `off`, or `orphaned`: running with nothing to start it again."""
        return power.state(self.layout)

    # --- talking to it -----------------------------------------------------------------------

    def ssh_command(self, command: str | Sequence[str] = ()) -> list[str]:
        """The command line that runs something in the node over SSH."""
        remember_host_keys(self.layout)
        options = {
            "UserKnownHostsFile": self.layout.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": 5,
            "LogLevel": "ERROR",
        }
        words = ["ssh", "-F", "none", "-i", str(self.lab.layout.key)]
        words += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        words += [f"{USER}@{self.address}"]
        if command:
            words += ["--", command if isinstance(command, str) else shlex.join(command)]
        return words

    def ssh(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        stdin: str | None = None,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the user `nvidia`, over SSH.

        Raises:
            Failed: it ended with another status than 0, and `check` is set.
        """
        argv = self.ssh_command(command)
        done = run(argv, check=False, stdin=stdin, timeout=timeout)
        if check and done.returncode:
            tail = "\n  ".join((done.stderr + done.stdout).strip().splitlines()[-12:])
            raise Failed(
                f"{argv[-1]} ended with status {done.returncode}:\n  {tail}", where=self.name
            )
        return done

    def run(self, argv: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program as root inside the node without its network, as at its console."""
        leader = power.leader(self.layout)
        if not leader:
            raise Failed("is not running", where=self.name)
        return run([*enter(leader), *argv], check=check)

    def wait(self, timeout: float = READY_TIMEOUT) -> None:
        """Return when the node answers SSH and its systemd has finished booting."""
        begun = time.monotonic()
        answer = "no answer on port 22"
        while time.monotonic() < begun + timeout:
            if self.state == "off":
                if time.monotonic() > begun + START_TIMEOUT:
                    answer = self._last_words()
                    break
            elif self._greets():
                answer = self._boot_state()
                if answer in BOOTED:
                    return
            time.sleep(0.05)
        raise Failed(
            f"did not come up in {time.monotonic() - begun:.0f} s ({answer})",
            where=self.name,
            hint=f"Its console: {self.layout.console}",
        )

    def _boot_state(self) -> str:
        """What systemd says of the boot, or why it does not: a look that hangs is one of many."""
        try:
            done = self.ssh("systemctl is-system-running", check=False, timeout=10)
        except Failed as error:
            return error.message
        return done.stdout.strip() or done.stderr.strip()

    def _last_words(self) -> str:
        console = self.layout.console
        lines = console.read_text(errors="replace").splitlines() if console.exists() else []
        return f"it is off: {lines[-1]}" if lines else "it is off"

    def _greets(self) -> bool:
        try:
            with socket.create_connection((self.address, 22), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    # --- power ------------------------------------------------------------------------------

    def boot(self, *, wait: bool = True) -> None:
        """Switch it on; nothing happens when it is on."""
        if self.state == "running":
            return
        with self.lab.locked():
            power.on(self.lab.layout, self.layout, len(self.lab.nodes))
        if wait:
            self.wait()

    def reboot(self, *, wait: bool = True) -> None:
        """An orderly restart, with a new boot and a new network."""
        before = power.leader(self.layout)
        self.run(["systemctl", "reboot"])
        deadline = time.monotonic() + power.ORDERLY + READY_TIMEOUT
        while power.leader(self.layout) == before:
            if time.monotonic() > deadline:
                raise Failed("does not go down to reboot", where=self.name)
            time.sleep(0.02)
        if wait:
            self.wait()

    def poweroff(self, *, orderly: bool = True) -> None:
        """Switch it off; with `orderly` unset, as by pulling the power plug."""
        with self.lab.locked():
            power.off(self.layout, orderly=orderly)
            network.settle(self.lab.layout, [node.layout for node in self.lab.nodes])

    def cut_power(self) -> None:
        """Cut the power of a node that was reset with a disk of its own; `boot` switches it on.

        Unlike after `poweroff(orderly=False)`, what it had not synced is lost.

        Raises:
            Failed: it has no disk of its own.
        """
        if not self.layout.image.exists():
            raise Failed("has no disk of its own: reset(own_disk=True)", where=self.name)
        with self.lab.locked():
            layouts = [node.layout for node in self.lab.nodes]
            power.cut(self.layout)
            power.insert(self.lab.layout, self.layout, self.lab.prepared())
            network.settle(self.lab.layout, layouts)

    def reset(
        self, *, new_host_keys: bool = False, own_disk: bool = False, wait: bool = True
    ) -> None:
        """Make it a fresh Spark: everything in it is thrown away, then it boots.

        Args:
            new_host_keys: as after a reinstallation. The lab's known_hosts is left as it is, so
                that whoever reads it meets a changed host key; `Lab.trust()` updates it.
            own_disk: give it a disk of its own, for `cut_power`; another reset takes it away.
        """
        with self.lab.locked():
            power.off(self.layout, orderly=False)
            if new_host_keys:
                make_host_keys(self.layout, new=True)
            prepared = self.lab.prepared()
            power.insert(self.lab.layout, self.layout, prepared, fresh=True, own_disk=own_disk)
            power.on(self.lab.layout, self.layout, len(self.lab.nodes))
        if wait:
            self.wait()

    # --- cables -----------------------------------------------------------------------------

    def unplug(self) -> None:
        """Pull the management cable."""
        self._cables([self.layout.port], out=True)

    def plug(self) -> None:
        """Put the management cable back."""
        self._cables([self.layout.port], out=False)

    def unplug_fabric(self, *interfaces: str) -> None:
        """Pull the fabric cable (both twins, or the named interfaces).

        Of two nodes both lose the link; on the switch between more, this node alone.
        """
        self._cables(self._far_ends(interfaces or FABRIC), out=True)

    def plug_fabric(self, *interfaces: str) -> None:
        """Plug it in again."""
        self._cables(self._far_ends(interfaces or FABRIC), out=False)

    def _far_ends(self, interfaces: Sequence[str]) -> list[str]:
        """The far ends of what the cable joins: of this node, and of the other one of two."""
        there = [node.layout for node in self.lab.nodes]
        joined = there if len(there) == network.CABLED else [self.layout]
        return [node.cable(interface) for node in joined for interface in interfaces]

    def _cables(self, ports: Sequence[str], *, out: bool) -> None:
        with self.lab.locked():
            network.set_pulled(self.lab.layout, ports, out)
            network.settle(self.lab.layout, [node.layout for node in self.lab.nodes])

    # --- the simulated hardware -----------------------------------------------------------------

    def set_state(self, **changes: Any) -> None:
        """Change what the stand-ins show, at once; `None` puts a value back to its default.

        The names are those of `spark_cluster_lab.standins.state.DEFAULTS`.
        """
        from spark_cluster_lab.standins.state import DEFAULTS

        if unknown := sorted(set(changes) - set(DEFAULTS)):
            raise Failed(f"no such state: {', '.join(unknown)}", hint=f"Known: {sorted(DEFAULTS)}")
        path = self.root / STATE_FILE
        state = json.loads(path.read_text()) if path.exists() else {}
        state |= changes
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_suffix(".new")
        staged.write_text(json.dumps({k: v for k, v in state.items() if v is not None}))
        staged.rename(path)
        if self.state == "running":
            self.run(["/usr/local/sbin/lab-hardware", "refresh"])

    def processes_memory(self) -> list[ProcessMemory]:
        """Every process of the node with its proportional share of memory, largest first."""
        found = []
        for pid in cgroup.processes(self.layout.group):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                numbers = next(x for x in status.splitlines() if x.startswith("NSpid:")).split()
                if len(numbers) < 3:
                    continue  # nspawn and its supervisor
                title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                share = next(x for x in rollup.splitlines() if x.startswith("Pss:")).split()[1]
            except (OSError, StopIteration):
                continue  # it ended meanwhile
            text = title.decode(errors="replace").strip()
            found.append(ProcessMemory(int(numbers[2]), text, int(share) // 1024))
        return sorted(found, key=lambda process: process.mib, reverse=True)
