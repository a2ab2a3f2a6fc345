"""The nodes that the tools work on: the lab's, or bare sshd processes over a base tree."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from benchmarks.engine import work
from benchmarks.engine.link import Link, LinkError, bridge_of, link, namespace, run
from spark_cluster_lab import Lab
from spark_cluster_lab.layout import USER

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-cluster" / "bench"

_VERBOSE = "/etc/ssh/sshd_config.d/00-engine-benchmark.conf"
_LOG_SESSIONS = f"echo LogLevel VERBOSE > {_VERBOSE} && systemctl reload ssh"
_LOG_NO_SESSIONS = f"rm -f {_VERBOSE} && systemctl reload ssh"
_SESSION = "Starting session:"
_RUN = "! command -v docker >/dev/null || docker ps --filter name=^spark- --format '{{.Names}}'"

# A node of its own file system, users and process ids; all of it ends with its first process.
_BARE_NODE = """
set -e
mount -t tmpfs tmpfs "$BASE"
mkdir "$BASE/upper" "$BASE/work" "$BASE/root"
mount -t overlay overlay \
    -o "lowerdir=$TREE,upperdir=$BASE/upper,workdir=$BASE/work" "$BASE/root"
cd "$BASE/root"
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount --rbind /dev dev
mkdir -p run/sshd etc/ssh srv
printf '127.0.0.1 localhost %s\\n' "$(uname -n)" > etc/hosts
cp "$KEYS/key.pub" etc/ssh/bench_keys
cp "$KEYS/host_key" etc/ssh/bench_host_key
chmod 600 etc/ssh/bench_host_key
chroot . id "$USER_NAME" > /dev/null 2>&1 || chroot . useradd -m -s /bin/bash "$USER_NAME"
echo "$USER_NAME ALL=(ALL) NOPASSWD:ALL" > etc/sudoers.d/bench
chmod 440 etc/sudoers.d/bench
exec chroot . /usr/sbin/sshd -D -e -f /dev/null -o "ListenAddress=$ADDRESS" -o UsePAM=yes \
    -o HostKey=/etc/ssh/bench_host_key -o AuthorizedKeysFile=/etc/ssh/bench_keys \
    -o StrictModes=no -o LogLevel=VERBOSE -o "Subsystem=sftp internal-sftp"
"""


@dataclass(frozen=True)
class Node:
    """A node, as the laptop reaches it on port 22."""

    name: str
    address: str


@dataclass(frozen=True)
class Site:
    """Nodes behind a link, and how to log in to them.

    Args:
        link: where commands are run.
        nodes: all of them.
        user: may use sudo without a password.
        key: private key file.
        known_hosts: the nodes' keys.
        count_sessions: how many SSH sessions the nodes have started until now.
    """

    link: Link
    nodes: tuple[Node, ...]
    user: str
    key: Path
    known_hosts: Path
    count_sessions: Callable[[Site], int]

    def first(self, count: int) -> Site:
        """The same with only the first nodes."""
        if count > len(self.nodes):
            raise LinkError(f"{count} nodes asked for, {len(self.nodes)} here")
        return replace(self, nodes=self.nodes[:count])

    def ssh(self, node: Node, command: str) -> str:
        """Run a shell command as root on a node, over the link."""
        options = [f"UserKnownHostsFile={self.known_hosts}", "BatchMode=yes", "ConnectTimeout=10"]
        flags = [part for option in options for part in ("-o", option)]
        login = ["ssh", "-F", "none", "-i", str(self.key), *flags, f"{self.user}@{node.address}"]
        asked = self.link.command(*login, "sudo sh -c " + shlex.quote(command))
        return run(*asked, what=f"ssh to {node.name} ({node.address})")

    def reset(self) -> None:
        """Take away from every node what the play makes."""
        for node in self.nodes:
            self.ssh(node, work.RESET_SCRIPT)

    def state(self, node: Node) -> dict[str, Any]:
        """Return which of the play's results are there."""
        found: dict[str, Any] = json.loads(
            self.ssh(node, "python3 -c " + shlex.quote(work.STATE_SCRIPT))
        )
        return found

    def serving(self) -> list[str]:
        """Return the engines' containers that run, each as `NAME on NODE`."""
        return [
            f"{name} on {node.name}" for node in self.nodes for name in self.ssh(node, _RUN).split()
        ]

    def sessions(self) -> int:
        """Return how many SSH sessions (shell, command, sftp) the nodes have started until now."""
        return self.count_sessions(self)


@contextlib.contextmanager
def lab(count: int, rtt: float) -> Iterator[Site]:
    """The first `count` of the lab's nodes.

    Raises:
        LinkError: the lab is not up, or has fewer nodes.
        UsageError: not root, or not Linux.
    """
    made = Lab.default()
    state, up = made.state(), [Node(node.name, node.address) for node in made.nodes]
    if state != "up":
        raise LinkError(f"the lab is {state}: run `spark-cluster lab up`")
    if len(up) < count:
        raise LinkError(
            f"asked for {count} nodes, but the lab has {', '.join(node.name for node in up)}: "
            f"run `spark-cluster lab up --nodes {count}`, or ask for fewer with --nodes"
        )
    nodes = tuple(up[:count])
    bridge, laptop = bridge_of(nodes[0].address)
    with link(laptop, rtt, bridge=bridge) as joined, contextlib.ExitStack() as stack:
        site = Site(joined, nodes, USER, made.key_path, made.known_hosts_path, _LabSessions())
        for node in nodes:
            site.ssh(node, _LOG_SESSIONS)
            stack.callback(site.ssh, node, _LOG_NO_SESSIONS)
        yield site


class _LabSessions:
    """Counts in the nodes' journals, without the sessions that ask."""

    _COUNT = (
        f"journalctl --sync; journalctl -q -b -t sshd -t sshd-session -o cat | grep -c '{_SESSION}'"
    )

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self, site: Site) -> int:
        total = 0
        for node in site.nodes:
            self._asked += 1
            total += int(site.ssh(node, self._COUNT))
        return total - self._asked


@contextlib.contextmanager
def bare(tree: Path, count: int, rtt: float) -> Iterator[Site]:
    """`count` sshd processes with a file system, users and process ids each, over a base tree.

    Args:
        tree: a Linux tree with sshd, sudo and Python 3; it is not written to.
    """
    if not (tree / "usr/sbin/sshd").exists():
        raise LinkError(f"{tree} is not a tree with sshd")
    keys = CACHE / "keys"
    _make_keys(keys)
    nodes = tuple(Node(f"bare{n}", f"10.89.77.{n}") for n in range(1, count + 1))
    host_key = (keys / "host_key.pub").read_text("ascii")
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scbench-nodes-")))
        known_hosts = logs / "known_hosts"
        known_hosts.write_text("".join(f"{node.address} {host_key}" for node in nodes))
        inside = stack.enter_context(namespace("nodes"))
        laptop = IPv4Interface("10.89.77.250/24")
        joined = stack.enter_context(link(laptop, rtt, nodes=inside))
        for node in nodes:
            run("ip", "-n", inside, "addr", "add", f"{node.address}/24", "dev", "eth0")
        for node in nodes:
            stack.enter_context(_bare_node(node, inside, tree, keys, logs))

        def sessions(site: Site) -> int:
            texts = ((logs / f"{n.name}.log").read_text("utf-8", "replace") for n in site.nodes)
            return sum(text.count(_SESSION) for text in texts)

        site = Site(joined, nodes, USER, keys / "key", known_hosts, sessions)
        _wait_for(site)
        yield site


@contextlib.contextmanager
def _bare_node(node: Node, inside: str, tree: Path, keys: Path, logs: Path) -> Iterator[None]:
    base = logs / node.name
    base.mkdir()
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "BASE": str(base),
        "TREE": str(tree.resolve()),
        "KEYS": str(keys),
        "USER_NAME": USER,
        "ADDRESS": node.address,
    }
    unshare = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
    ends_with_us = ["setpriv", "--pdeathsig", "KILL"]
    command = [*ends_with_us, "ip", "netns", "exec", inside, *unshare, "sh", "-c", _BARE_NODE]
    with (logs / f"{node.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii")
        for child in children.split():
            os.kill(int(child), signal.SIGKILL)  # a namespace's first process: the rest goes too
        process.wait()


def _make_keys(keys: Path) -> None:
    keys.mkdir(parents=True, exist_ok=True)
    for name in ("key", "host_key"):
        if not (keys / name).exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(keys / name))


def _wait_for(site: Site) -> None:
    for node in site.nodes:
        for _ in range(100):
            probe = f"import socket; socket.create_connection(({node.address!r}, 22), 1)"
            with contextlib.suppress(LinkError):
                run(*site.link.command(sys.executable, "-S", "-c", probe))
                break
            time.sleep(0.1)
        else:
            raise LinkError(f"sshd of {node.name} does not answer")
