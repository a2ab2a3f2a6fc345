"""ibdev2netdev: which interface belongs to which HCA."""

from __future__ import annotations

from .state import HCAS, hca_active, load


def main(_argv: list[str]) -> int:
    state = load()
    for hca, interface in HCAS.items():
        link = "Up" if hca_active(hca, state) else "Down"
        print(f"{hca} port 1 ==> {interface} ({link})")
    return 0
