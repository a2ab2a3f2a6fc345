"""A network namespace that plays the laptop, joined to the nodes by a link with a round trip."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Interface
from pathlib import Path

from benchmarks.engine.relay import Relay, Traffic

PREFIX = "scbench"
"""Every namespace made here is named PREFIX-USE-PID; the devices go with their process."""

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_ROUND_TRIP = """
import socket, sys, time
for _ in range(int(sys.argv[2])):
    start = time.monotonic()
    with socket.create_connection((sys.argv[1], 22), 5):
        print(time.monotonic() - start)
"""


class LinkError(Exception):
    """The link cannot be made here; the message says why."""


class Link:
    """The laptop: where the tools run, a round trip away from the nodes.

    Args:
        relay: moves the frames and counts.
        namespace: the network namespace that commands run in.
    """

    def __init__(self, relay: Relay, namespace: str) -> None:
        self._relay = relay
        self.namespace = namespace

    def command(self, *command: str) -> list[str]:
        """The command line that runs `command` on the laptop."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def take(self) -> dict[str, Traffic]:
        """The traffic by node address since the last call."""
        return self._relay.take()

    def round_trip(self, address: str, tries: int = 5) -> float:
        """The shortest time in seconds to connect to a node: the round trip as TCP sees it."""
        code = [sys.executable, "-S", "-c", _ROUND_TRIP, address, str(tries)]
        times = run(*self.command(*code)).split()
        return min(map(float, times))


def run(*command: str, what: str = "") -> str:
    """Run a command to its end and give its output.

    Args:
        what: names it in an error, where the command itself is too long to be read.

    Raises:
        LinkError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LinkError(f"{what or ' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def bridge_of(address: str) -> tuple[str, IPv4Interface]:
    """The bridge that leads to a node, and a free address of its network for the laptop."""
    (route,) = json.loads(run("ip", "-j", "route", "get", address))
    device = route["dev"]
    if not Path(f"/sys/class/net/{device}/bridge").exists():
        raise LinkError(f"{address} is not on a bridge of this machine: is the lab up?")
    (shown,) = json.loads(run("ip", "-j", "-4", "addr", "show", "dev", device))
    first = shown["addr_info"][0]
    network = IPv4Interface(f"{first['local']}/{first['prefixlen']}").network
    return device, IPv4Interface(f"{network.broadcast_address - 5}/{network.prefixlen}")


@contextlib.contextmanager
def namespace(use: str) -> Iterator[str]:
    """A network namespace of its own, removed afterwards."""
    name = f"{PREFIX}-{use}-{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


@contextlib.contextmanager
def link(laptop: IPv4Interface, rtt: float, *, bridge: str = "", nodes: str = "") -> Iterator[Link]:
    """The laptop's end of a link to the nodes.

    Args:
        laptop: the laptop's address, in the nodes' network.
        rtt: round-trip time in seconds.
        bridge: the bridge that the nodes are on, or
        nodes: the namespace that holds them all.

    Raises:
        LinkError: not root, no /dev/net/tun, or no such bridge.
    """
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(namespace("laptop"))
        near, near_name = _tap(stack, "l")
        far, far_name = _tap(stack, "n")
        run("ip", "link", "set", near_name, "netns", home)
        run("ip", "-n", home, "addr", "add", str(laptop), "dev", near_name)
        run("ip", "-n", home, "link", "set", near_name, "up")
        if bridge:
            run("ip", "link", "set", far_name, "master", bridge, "up")
        else:
            run("ip", "link", "set", far_name, "netns", nodes, "name", "eth0")
            run("ip", "-n", nodes, "link", "set", "eth0", "up")
        relay = Relay(near, far, rtt)
        stack.callback(relay.close)
        yield Link(relay, home)


def _tap(stack: contextlib.ExitStack, end: str) -> tuple[int, str]:
    """A TAP device that is removed when its descriptor is closed."""
    name = f"scb{end}{os.getpid()}"
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        wanted = struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
        fcntl.ioctl(descriptor, _TUNSETIFF, wanted)
    except OSError as error:
        raise LinkError(f"no TAP device (needs root and /dev/net/tun): {error}") from error
    return descriptor, name


def clean_stale() -> list[str]:
    """Remove the namespaces of runs that were killed; gives their names."""
    stale = []
    for entry in json.loads(run("ip", "-j", "netns", "list") or "[]"):
        name = str(entry["name"])
        parts = name.split("-")
        if parts[0] == PREFIX and len(parts) == 3 and not Path(f"/proc/{parts[2]}").exists():
            subprocess.run(["ip", "netns", "del", name], check=False)
            stale.append(name)
    return stale
