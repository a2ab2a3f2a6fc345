"""A lab beside the machine's own, so that two workers of pytest have one each.

Its nodes have the same names and addresses: it is in a network namespace of its own, with a way out
through the machine, and its worker in a mount namespace of its own. What has been prepared is
shared. The process that starts the workers makes the network and takes it away.
"""

import ctypes
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_cluster_lab import Lab, cgroup
from spark_cluster_lab.artefact import clear
from spark_cluster_lab.layout import DEFAULT_STATE, STATE_VARIABLE, Layout
from spark_cluster_lab.network import CONF, NETNS, default_interface, ip, links, namespaces
from spark_cluster_lab.shell import output, run

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000


@dataclass(frozen=True)
class Place:
    """Where lab number 2, 3 ... is."""

    number: int

    @property
    def name(self) -> str:
        """Of its network namespace and of its cable, in the machine's namespace."""
        return f"spark-tests-{self.number}"

    @property
    def state(self) -> Path:
        return DEFAULT_STATE.with_name(f"{DEFAULT_STATE.name}-{self.number}")

    @property
    def subnet(self) -> str:
        return f"10.88.{self.number}"

    def rules(self) -> list[tuple[str, str]]:
        """(table, rule) of its way out through the machine."""
        mine = f"-m comment --comment {self.name}"
        return [
            ("nat", f"POSTROUTING -s {self.subnet}.0/24 ! -o {self.name} {mine} -j MASQUERADE"),
            ("filter", f"FORWARD -i {self.name} {mine} -j ACCEPT"),
            ("filter", f"FORWARD -o {self.name} {mine} -j ACCEPT"),
        ]

    def make(self) -> None:
        """Make its network namespace, with a way out."""
        self.remove()
        run(["ip", "netns", "add", self.name])
        ip(
            f"link add {self.name} type veth peer name outside netns {self.name}",
            f"addr add {self.subnet}.1/24 dev {self.name}",
            f"link set {self.name} up",
        )
        ip(
            "link set lo up",
            f"addr add {self.subnet}.2/24 dev outside",
            "link set outside up",
            f"route add default via {self.subnet}.1",
            namespace=self.name,
        )
        (CONF / self.name / "forwarding").write_text("1")
        for table, rule in self.rules():
            run(["iptables", "-w", "-t", table, "-I", *rule.split()])

    def remove(self) -> None:
        """Take away whatever there is of it, also of a run that was killed."""
        with self.chosen():
            for node in Layout.default().nodes():
                cgroup.kill(node.group)
                cgroup.remove(node.group)
        for table in ("nat", "filter"):
            for line in output(["iptables-save", "-t", table]).splitlines():
                if line.startswith("-A") and f"--comment {self.name} " in line:
                    run(["iptables", "-w", "-t", table, "-D", *shlex.split(line)[1:]])
        if self.name in links():
            ip(f"link delete {self.name}")
        if self.name in namespaces():
            run(["ip", "netns", "delete", self.name])
        clear(self.state)

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Have "the lab" mean the one of this place."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(STATE_VARIABLE, str(self.state))
            yield

    def enter(self) -> None:
        """Put this process, and what it starts from now on, into the place.

        What the lab keeps in /run, and what /sys says of the network, is the place's own. Its state
        is also where that of the machine's lab is for others, for inventories and recipes name it.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        with (NETNS / self.name).open() as network:
            _must_work(libc.setns(network.fileno(), CLONE_NEWNET))
        _must_work(libc.unshare(CLONE_NEWNS))
        prepared = self.state / "prepared"
        groups = self.state / "cgroup"
        for folder in (prepared, groups, Path("/run/systemd/nspawn")):
            folder.mkdir(parents=True, exist_ok=True)
        run(["mount", "--make-rprivate", "/"])
        run(["mount", "--bind", DEFAULT_STATE / "prepared", prepared])
        for folder in (NETNS, Path("/run/systemd/nspawn")):
            run(["mount", "-t", "tmpfs", "tmpfs", folder])
        run(["mount", "--rbind", cgroup.TREE, groups])
        run(["mount", "-t", "sysfs", "sysfs", "/sys"])
        run(["mount", "--rbind", groups, cgroup.TREE])
        run(["mount", "--rbind", self.state, DEFAULT_STATE])
        os.environ[STATE_VARIABLE] = str(self.state)


class Beside:
    """The places of all workers but the first one."""

    def __init__(self, workers: int) -> None:
        self.places = [Place(number) for number in range(2, workers + 1)]
        self._outside: Path | None = None
        self._forwarding = ""

    def make(self) -> None:
        """Prepare what all labs share, and make the places."""
        Lab.default().prepare(print)
        if outside := default_interface():
            self._outside = CONF / outside / "forwarding"
            self._forwarding = self._outside.read_text()
            self._outside.write_text("1")  # before a lab does, which would set it back at its end
        for place in self.places:
            place.make()

    def remove(self) -> None:
        for place in self.places:
            place.remove()
        if self._outside:
            self._outside.write_text(self._forwarding)


def _must_work(returned: int) -> None:
    if returned:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
