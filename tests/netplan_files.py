"""Netplan files as people have them for the link of a pair: what each gives the two interfaces.

`FIRST` and `SECOND` are the interfaces of the cabled port. A layout is the files, and interface to
the address that they give it; an interface that has none there gets one of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST, SECOND = "enp1s0f1np1", "enP2p1s0f1np1"
PLAYBOOK = "/etc/netplan/40-cx7.yaml"
"""The name that NVIDIA's playbook and sparkrun give their file."""


@dataclass(frozen=True)
class Layout:
    """Files, and what they give.

    Attributes:
        given: interface to address with prefix.
        places: interface to `FILE:LINE` of what is said of it.
    """

    files: dict[str, str]
    given: dict[str, str]
    places: dict[str, str]


def _one(text: str, given: dict[str, str], *lines: int, path: str = PLAYBOOK) -> Layout:
    places = dict(zip((FIRST, SECOND), (f"{path}:{line}" for line in lines), strict=False))
    return Layout({path: text}, given, places)


BLOCK = f"""# mine, do not lose
network:
  version: 2
  ethernets:
    {FIRST}:
      addresses:
        - 192.168.100.10/24
      dhcp4: no
    {SECOND}:
      addresses:
        - 192.168.101.10/24
      dhcp4: no
"""
WITHOUT_ADDRESS = f"""network:
  version: 2
  ethernets:
    {FIRST}:
      dhcp4: no
      addresses:
        - 192.168.100.10/24
    {SECOND}:
      dhcp4: no
"""
FLOW = f"network: {{version: 2, ethernets: {{{FIRST}: {{addresses: [192.168.100.10/24]}}}}}}\n"
COMMENTS = f"""# The cable to the other one.
network:
  version: 2
  renderer: networkd   # not NetworkManager
  ethernets:
    {FIRST}:   # left port, first half
      addresses:   # static
        # - 192.168.99.10/24 was the old one
        - "192.168.100.10/24": {{label: "{FIRST}:a"}}
      mtu: 9000
"""
MATCHED = f"""network:
  version: 2
  ethernets:
    cable-a:
      match: {{name: {FIRST}}}
      addresses: [192.168.100.10/24]
    cable-b:
      match:
        name: {SECOND}
      dhcp4: true
"""
LINK_LOCAL = f"""network:
  version: 2
  ethernets:
    enp1s0f0np0:
      link-local: [ ipv4 ]
    {FIRST}:
      link-local: [ ipv4 ]
"""
SPARKRUN = f"""network:
  version: 2
  ethernets:
    {FIRST}:
      dhcp4: no
      dhcp6: no
      link-local: [ ipv4 ]
      mtu: 9000
      addresses: [192.168.11.10/24]
    {SECOND}:
      dhcp4: no
      dhcp6: no
      link-local: [ ipv4 ]
      mtu: 9000
      addresses: [192.168.12.10/24]
"""

BOTH = {FIRST: "192.168.100.10/24", SECOND: "192.168.101.10/24"}
ONE = {FIRST: "192.168.100.10/24"}

LAYOUTS = {
    "block lists": _one(BLOCK, BOTH, 7, 11),
    "one interface without an address": _one(WITHOUT_ADDRESS, ONE, 7, 8),
    "flow lists": _one(FLOW, ONE, 1),
    "comments, options of an address": _one(COMMENTS, ONE, 9),
    "definitions with match": _one(MATCHED, ONE, 6, 7),
    "the file of NVIDIA's playbook": _one(LINK_LOCAL, {}, 6),
    "sparkrun's file": _one(
        SPARKRUN, {FIRST: "192.168.11.10/24", SECOND: "192.168.12.10/24"}, 9, 15
    ),
    "two files": Layout(
        {
            "/etc/netplan/50-mine.yaml": FLOW,
            PLAYBOOK: f"network: {{ethernets: {{{SECOND}: {{addresses: [192.168.101.10/24]}}}}}}\n",
        },
        BOTH,
        {FIRST: "/etc/netplan/50-mine.yaml:1", SECOND: f"{PLAYBOOK}:1"},
    ),
}
