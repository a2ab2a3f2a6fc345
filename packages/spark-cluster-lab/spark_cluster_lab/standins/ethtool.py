"""ethtool: for the ConnectX-7 ports; the real one for every other interface."""

from __future__ import annotations

import subprocess
from typing import Any

from .state import HCAS, hca_active, load

REAL = "/usr/sbin/ethtool"
DRIVER = """driver: mlx5_core
version: 6.17.0-1021-nvidia
firmware-version: {firmware} ({board})
expansion-rom-version:
bus-info: {bus}
supports-statistics: yes
supports-test: yes
supports-eeprom-access: no
supports-register-dump: no
supports-priv-flags: yes
"""
SETTINGS = """Settings for {interface}:
\tSupported ports: [ Backplane ]
\tSupported pause frame use: Symmetric
\tSupports auto-negotiation: Yes
\tSpeed: {speed}
\tDuplex: {duplex}
\tAuto-negotiation: on
\tPort: Direct Attach Copper
\tPHYAD: 0
\tTransceiver: internal
\tLink detected: {link}
"""
HCA_OF = {interface: hca for hca, interface in HCAS.items()}


def bus(interface: str) -> str:
    """PCI address of a port: both functions of both domains."""
    domain = 2 if interface.startswith("enP2p1") else 0
    return f"{domain:04d}:01:00.{1 if 'f1' in interface else 0}"


def settings(interface: str, state: dict[str, Any]) -> str:
    up = hca_active(HCA_OF[interface], state)
    return SETTINGS.format(
        interface=interface,
        speed=f"{state['link_speed']}Mb/s" if up else "Unknown!",
        duplex="Full" if up else "Unknown! (255)",
        link="yes" if up else "no",
    )


def main(argv: list[str]) -> int:
    interface = next((word for word in argv if word in HCA_OF), "")
    options = [word for word in argv if word != interface]
    state = load()
    if interface and options in (["-i"], ["--driver"]):
        print(
            DRIVER.format(firmware=state["firmware"], board=state["board_id"], bus=bus(interface)),
            end="",
        )
        return 0
    if interface and not options:
        print(settings(interface, state), end="")
        return 0
    return subprocess.run([REAL, *argv], check=False).returncode
