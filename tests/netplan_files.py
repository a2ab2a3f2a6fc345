"""Netplan files as people have them for the link of a pair, `data/netplan.toml`: what each gives
the two interfaces of the cabled port, `FIRST` and `SECOND`."""

from dataclasses import dataclass

from cases import cases

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


LAYOUTS = {name: Layout(**one) for name, one in cases(__file__, "data/netplan.toml").items()}
