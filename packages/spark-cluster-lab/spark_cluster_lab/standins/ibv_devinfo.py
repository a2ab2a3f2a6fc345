"""ibv_devinfo: the HCAs as libibverbs sees them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .state import HCAS, hca_active, hcas, load

BLOCK = """hca_id:\t{hca}
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t{firmware}
\tnode_guid:\t\t\t4cbb:4703:0000:91{index:02x}
\tsys_image_guid:\t\t\t4cbb:4703:0000:9100
\tvendor_id:\t\t\t0x02c9
\tvendor_part_id:\t\t\t4129
\thw_ver:\t\t\t\t0x0
\tboard_id:\t\t\t{board}
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\t{state}
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t{mtu}
\t\t\tsm_lid:\t\t\t0
\t\t\tport_lid:\t\t0
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tEthernet
"""
RDMA_MTUS = ((4096, 5), (2048, 4), (1024, 3), (512, 2), (256, 1))
HEADERS = 60
"""What RoCE needs of an Ethernet frame in addition to the data, rounded up."""


def rdma_mtu(ethernet: int) -> str:
    """The largest RDMA MTU that fits, as the tool prints it: 9000 -> '4096 (5)'."""
    size, code = next((m for m in RDMA_MTUS if m[0] + HEADERS <= ethernet), RDMA_MTUS[-1])
    return f"{size} ({code})"


def block(index: int, hca: str, state: dict[str, Any]) -> str:
    try:
        ethernet = int(Path(f"/sys/class/net/{HCAS[hca]}/mtu").read_text())
    except OSError:
        ethernet = 1500
    return BLOCK.format(
        hca=hca,
        index=index,
        firmware=state["firmware"],
        board=state["board_id"],
        state="PORT_ACTIVE (4)" if hca_active(hca, state) else "PORT_DOWN (1)",
        mtu=rdma_mtu(ethernet),
    )


def main(argv: list[str]) -> int:
    state = load()
    there = hcas(state)
    if "-l" in argv or "--list" in argv:
        print(f"{len(there)} HCAs found:")
        print("".join(f"\t{hca}\n" for hca in there))
        return 0
    wanted = argv[argv.index("-d") + 1] if "-d" in argv else ""
    if wanted and wanted not in there:
        print(f"IB device '{wanted}' wasn't found", file=sys.stderr)
        return 255
    chosen = [hca for hca in there if wanted in ("", hca)]
    print("\n".join(block(list(HCAS).index(hca), hca, state) for hca in chosen))
    return 0
