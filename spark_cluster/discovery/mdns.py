"""Machines that announce SSH by multicast DNS on the local network.

DGX OS runs avahi-daemon, which announces `_ssh._tcp` there: NVIDIA's own script that connects two
Sparks finds them by it (source: discover-sparks). Answers are multicast on the local link and
anyone there can send them: they are proposals for a person to look at, never a proof.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network
from typing import TYPE_CHECKING

from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from ipaddress import IPv4Network

    from zeroconf import ServiceInfo

SERVICE = "_ssh._tcp.local."

LISTEN_S = 3.0
"""Seconds to listen for answers: responders wait up to 0.12 s, and a question is asked three times
within the first 2.5 s (RFC 6762, sections 5.2 and 6)."""

HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)

COUNT = re.compile(r"-\d+$")
"""What avahi puts behind a name that is taken: `spark1`, `spark1-2`, `spark1-3` (source:
avahi-docs-alternative)."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A machine that announces SSH.

    Attributes:
        host: its host name, without `.local`.
        addresses: IPv4, as announced.
        port: of its sshd.
    """

    host: str
    addresses: tuple[str, ...]
    port: int = 22


def browse(seconds: float, interface: str | None = None) -> list[Announced]:
    """Ask the local network once, and collect the answers.

    Args:
        interface: the address of one interface of this machine; None asks on all of them.

    Raises:
        UsageError: this machine cannot send multicast questions.
    """
    from zeroconf import InterfaceChoice, IPVersion, ServiceBrowser, Zeroconf

    names: set[str] = set()
    try:
        asked = Zeroconf(
            interfaces=[interface] if interface else InterfaceChoice.Default,
            ip_version=IPVersion.V4Only,
        )
    except OSError as error:
        raise UsageError(
            f"the local network cannot be asked for Sparks: {error.strerror or error}",
            hint="name them: --nodes ADDRESS[,ADDRESS]",
        ) from None
    with contextlib.closing(asked):
        browser = ServiceBrowser(asked, SERVICE, handlers=[lambda **of: names.add(of["name"])])
        until = time.monotonic() + seconds
        found: dict[str, ServiceInfo] = {}
        while (left := until - time.monotonic()) > 0:
            for name in sorted(names - found.keys()):
                info = asked.get_service_info(SERVICE, name, timeout=round(left * 1000))
                if info is not None:
                    found[name] = info
            time.sleep(min(0.1, left))
        browser.cancel()
    return sorted(filter(None, map(_announced, found.values())), key=lambda one: one.host)


def _announced(info: ServiceInfo) -> Announced | None:
    """Return what is announced; None where it is no host name or no address that could be used."""
    host = (info.server or "").rstrip(".").removesuffix(".local")
    addresses = tuple(sorted(a for a in info.parsed_addresses() if usable(a)))
    if not HOST_NAME.fullmatch(host) or not addresses:
        return None
    return Announced(host.lower(), addresses, info.port or 22)


def usable(text: str) -> bool:
    """Return whether it is an IPv4 address of a machine next to this one."""
    try:
        address = IPv4Address(text)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_unspecified or address.is_reserved)


def networks() -> list[IPv4Network]:
    """Return the IPv4 networks that this machine is part of."""
    import ifaddr

    return [
        ip_network(f"{ip.ip}/{ip.network_prefix}", strict=False)  # type: ignore[misc]
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
        if ip.is_IPv4
    ]


def nearest(addresses: Sequence[str], local: Sequence[IPv4Network]) -> str | None:
    """Return the address that is in a network of this machine, link-local ones last; None when
    none is: what is announced on the local network is not to lead elsewhere.
    """
    here = [a for a in addresses if any(IPv4Address(a) in network for network in local)]
    return min(here, key=lambda a: IPv4Address(a).is_link_local, default=None)
