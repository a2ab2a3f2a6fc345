"""Every port that the inference engine listens on: chosen here, closed by the firewall.

Ray picks most of its ports at random unless they are set; an unknown port cannot be protected.
None of these lies in the range from which the kernel picks ports for listeners without one
(32768-60999), so none is taken before the engine starts. What the engine itself leaves to the
kernel (NCCL's and Gloo's rendezvous, torch's TCPStore, vLLM's ZeroMQ) lies in that range, which the
firewall closes as a whole.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cluster.config.yamlfile import table_beside
from spark_cluster.errors import UsageError

EPHEMERAL = (32768, 60999)
"""The kernel's own default of net.ipv4.ip_local_port_range, first and last."""

LOOPBACK = "127.0.0.1"
"""Where the server listens, with and without a proxy in front of it; a replica on another node than
the head does on its address on the fabric."""

COPIES = tuple(range(18960, 18968))
"""Where a node sends a model or an image to another one, while it does: on the fabric, encrypted or
not, and only for who knows the token of this copy. Each copy from a node has a port of its own.
The firewall lets only the other nodes of the run connect (`engine/node_copies.py`)."""

_FILE = table_beside(__file__, "ports.toml")

SERVICES: Sequence[str] = _FILE["services"]
"""Ports of Ray that follow each other, from `first_port`: options of `ray start`, and variables for
what Ray takes from its environment only."""

LAST_PORT = 65535

Span = tuple[int, int]
"""First and last port."""

DEFAULTS: Mapping[str, Sequence[int]] = _FILE["defaults"]
"""Ports on all addresses that vLLM uses with these flags unless others are set."""

ANY = ("*", "", "0.0.0.0", "::")  # noqa: S104
"""Hosts of an endpoint that mean every address of a node."""

_ENDPOINT = re.compile(r"(?:[a-z]+://)?(\*|\[[0-9a-fA-F:]*\]|[^\s:/\[\]]*):([0-9]{1,5})/?")


@dataclass(frozen=True)
class EnginePorts:
    """Ports of Ray and of vLLM's ranks.

    Args:
        gcs: Ray's control service, on the head (`ray start --port`).
        dashboard: Ray's dashboard and State API, on the head's loopback.
        first_port: the first of SERVICES, which follow each other.
        min_worker_port, max_worker_port: of Ray's workers.
        master: where the ranks of vLLM's own multi-node mode meet.
    """

    gcs: int = 6379
    dashboard: int = 8265
    first_port: int = 18301
    # Ray's own range (10002-19999) runs into other services of a node.
    min_worker_port: int = 18400
    max_worker_port: int = 18899
    master: int = 29501

    @property
    def services(self) -> dict[str, int]:
        """The port of each of SERVICES."""
        return {name: self.first_port + at for at, name in enumerate(SERVICES)}

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of all ports, in order."""
        alone = (self.gcs, self.dashboard, self.master)
        spans = [(port, port) for port in alone]
        spans.append((self.first_port, self.first_port + len(SERVICES) - 1))
        spans.append((self.min_worker_port, self.max_worker_port))
        return tuple(sorted(spans))

    def clash(self) -> str:
        """Describe the ports that two of the spans share; empty when there are none."""
        for (first, last), (start, end) in zip(self.spans, self.spans[1:], strict=False):
            if start <= last:
                return f"{_shown((first, last))} and {_shown((start, end))} overlap"
        low, high = EPHEMERAL
        for first, last in self.spans:
            if first <= high and last >= low:
                return f"{_shown((first, last))} is in the kernel's own range {low}-{high}"
        return ""


def vllm_ports(environment: Mapping[str, str]) -> tuple[Span, ...]:
    """The ports that VLLM_PORT makes vLLM count up from, when a recipe sets it.

    Raises:
        UsageError: it is no port; vLLM could take it as one that the firewall does not close.
    """
    first = environment.get("VLLM_PORT", "")
    if not first or "://" in first:  # a service of Kubernetes, which vLLM itself refuses
        return ()
    port = _port(first)
    if port is None:
        expected = f"expected a port from 1 to {LAST_PORT}"
        raise UsageError(f"found {first!r}, {expected}", where="env.VLLM_PORT")
    return ((port, min(port + 99, LAST_PORT)),)


def recipe_ports(
    flags: Mapping[str, Any], environment: Mapping[str, str], addresses: Collection[str]
) -> set[int]:
    """The ports that a recipe makes vLLM and its connectors listen on, as far as it names them.

    These are the values of flags and of keys in their JSON that end with `port`, endpoints like
    `tcp://*:5557`, variables that end with `_PORT`, and vLLM's own defaults of what is switched on.

    Args:
        addresses: of the serving nodes; an endpoint elsewhere is not listened on.
    """
    found = {port for flag, ports in DEFAULTS.items() if flag in flags for port in ports}
    for flag, value in flags.items():
        found |= set(_ports_of(flag, value, {*ANY, *addresses}))
    variables = (value for name, value in environment.items() if name.endswith("_PORT"))
    return found | {port for port in map(_port, variables) if port}


def _ports_of(key: str, value: Any, hosts: Collection[str]) -> Iterator[int]:
    if isinstance(value, str) and value[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, Mapping):
        for inner, part in value.items():
            yield from _ports_of(str(inner), part, hosts)
    elif isinstance(value, list):
        for part in value:
            yield from _ports_of(key, part, hosts)
    elif key.lower().endswith("port") and (port := _port(str(value))):
        yield port
    elif isinstance(value, str):
        for text in value.split(","):
            endpoint = _ENDPOINT.fullmatch(text.strip())
            if endpoint and endpoint[1].strip("[]") in hosts and (port := _port(endpoint[2])):
                yield port


def _port(text: str) -> int | None:
    """A port written in figures (those of ASCII only); None when it is none."""
    is_one = text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= LAST_PORT
    return int(text) if is_one else None


def _shown(span: Span) -> str:
    first, last = span
    return f"{first}" if first == last else f"{first}-{last}"
