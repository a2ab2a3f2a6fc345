"""ibdev2netdev: which interface belongs to which HCA."""

from __future__ import annotations

from .state import hca_active, hcas, load


def main(_argv: list[str]) -> int:
    state = load()
    for hca, interface in hcas(state).items():
        link = "Up" if hca_active(hca, state) else "Down"
        print(f"{hca} port 1 ==> {interface} ({link})")
    return 0
