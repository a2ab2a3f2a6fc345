"""Memory, network and RDMA counters of a node, from /proc and /sys: cheap enough for each second.

Counters are handed on as they are, growing; the reader makes rates of them, so that a line that is
lost costs no bytes.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

WORD = 4
"""Bytes of a unit of port_rcv_data and port_xmit_data. Source: linux-abi-infiniband."""

RESCAN_S = 30.0
"""Seconds after which HCAs are looked for again."""

VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "tap", "tun", "wg", "dummy")
"""Beginnings of names of interfaces that are no link to another machine."""

BLOCK = 64 * 1024
"""Bytes read at once."""

PAGE = os.sysconf("SC_PAGE_SIZE")

ERRORS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "rx_icrc_encapsulated",
)
"""Of hw_counters, errors of a RoCE link: packets that were lost, sent again or damaged, and a
receiver that was not ready (rnr_nak_retry_err). The choice is this project's; the names' source:
nvidia-docs-rdma-counters."""


class Counter:
    """A small file that is read again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def text(self) -> bytes | None:
        """Return its content; None when it cannot be read."""
        data = b""
        try:
            if self._handle is None:
                self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            while part := os.pread(self._handle, BLOCK, len(data)):  # /proc gives a page at a time
                data += part
        except OSError:
            self.close()
            return None
        return data

    def value(self) -> int | None:
        """Return it as a number."""
        try:
            return int(self.text() or b"")
        except ValueError:
            return None

    def close(self) -> None:
        """Close it; the next reading opens it again."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = None


class Hca:
    """The counters of an RDMA device's first port.

    Args:
        folder: its folder in /sys/class/infiniband.
    """

    def __init__(self, folder: Path) -> None:
        counters = folder / "ports/1/counters"
        self._received = Counter(counters / "port_rcv_data")
        self._sent = Counter(counters / "port_xmit_data")
        self._errors = [Counter(folder / "ports/1/hw_counters" / name) for name in ERRORS]
        self.interface = next(iter(_names(folder / "device/net")), None)

    def read(self) -> dict[str, Any]:
        """Return its interface, and the bytes received and sent."""
        received, sent = self._received.value(), self._sent.value()
        return {
            "interface": self.interface,
            "rx": None if received is None else received * WORD,
            "tx": None if sent is None else sent * WORD,
        }

    def errors(self) -> int | None:
        """Return the sum of ERRORS; None without any of them."""
        values = [value for counter in self._errors if (value := counter.value()) is not None]
        return sum(values) if values else None

    def close(self) -> None:
        for counter in (self._received, self._sent, *self._errors):
            counter.close()


class SystemReader:
    """Memory, swap, network and RDMA of a node.

    Args:
        root: where its file system begins; "/" but in tests.
    """

    def __init__(self, root: Path) -> None:
        self._meminfo = Counter(root / "proc/meminfo")
        self._vmstat = Counter(root / "proc/vmstat")
        self._network = Counter(root / "proc/net/dev")
        self._folder = root / "sys/class/infiniband"
        self._hcas: dict[str, Hca] = {}
        self._scanned = float("-inf")

    def memory(self) -> dict[str, int | None]:
        """Return MemTotal, MemAvailable and swap in use, KiB, and bytes swapped since boot."""
        found = _fields(self._meminfo.text() or b"")
        total, free = found.get(b"SwapTotal:"), found.get(b"SwapFree:")
        moved = _fields(self._vmstat.text() or b"", (b"pswpin", b"pswpout"))
        return {
            "total_kib": found.get(b"MemTotal:"),
            "available_kib": found.get(b"MemAvailable:"),
            "swap_used_kib": None if total is None or free is None else total - free,
            "swapped_bytes": sum(moved.values()) * PAGE if moved else None,
        }

    def network(self) -> dict[str, tuple[int, int]] | None:
        """Return the bytes received and sent of each interface that is no virtual one."""
        text = self._network.text()
        if text is None:
            return None
        found = {}
        for line in text.decode(errors="replace").split("\n")[2:]:
            name, colon, tail = line.partition(":")
            words = tail.split()
            name = name.strip()
            if colon and len(words) > 8 and not name.startswith(VIRTUAL):
                found[name] = (int(words[0]), int(words[8]))
        return found

    def rdma(self) -> dict[str, dict[str, Any]] | None:
        """Return the counters of each HCA; None without any."""
        if time.monotonic() - self._scanned > RESCAN_S:
            self._scan()
        return {name: hca.read() for name, hca in self._hcas.items()} or None

    def rdma_errors(self) -> dict[str, int | None] | None:
        """Return the number of errors of each HCA; None without any HCA."""
        return {name: hca.errors() for name, hca in self._hcas.items()} or None

    def _scan(self) -> None:
        self._scanned = time.monotonic()
        for hca in self._hcas.values():
            hca.close()
        self._hcas = {name: Hca(self._folder / name) for name in _names(self._folder)}


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


def _fields(text: bytes, wanted: tuple[bytes, ...] = ()) -> dict[bytes, int]:
    """Return the first number of each line by its first word; of some lines only with `wanted`."""
    found = {}
    for line in text.split(b"\n"):
        if wanted and not line.startswith(wanted):
            continue
        words = line.split(None, 2)
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found
