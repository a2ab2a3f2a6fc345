"""rdma link, rdma dev: the RDMA devices as iproute2 shows them."""

from __future__ import annotations

import json

from .state import hca_active, hcas, load

FIRMWARE_GUID = "4cbb:4703:0000:91{index:02x}"


def link_state(active: bool) -> tuple[str, str]:
    return ("ACTIVE", "LINK_UP") if active else ("DOWN", "DISABLED")


def main(argv: list[str]) -> int:
    state = load()
    words = [word for word in argv if not word.startswith("-")]
    if words[:1] in (["dev"], ["device"]):
        for index, hca in enumerate(hcas(state)):
            guid = FIRMWARE_GUID.format(index=index)
            print(
                f"{index}: {hca}: node_type ca fw {state['firmware']} "
                f"node_guid {guid} sys_image_guid {guid}"
            )
        return 0
    links = []
    for index, (hca, interface) in enumerate(hcas(state).items()):
        port, physical = link_state(hca_active(hca, state))
        text = f"link {hca}/1 state {port} physical_state {physical} netdev {interface}"
        record = {"ifindex": index, "ifname": hca, "port": 1, "state": port}
        links.append((text, record | {"physical_state": physical, "netdev": interface}))
    if {"-j", "-json", "--json"} & set(argv):
        print(json.dumps([record for _, record in links]))
    else:
        print("".join(f"{text}\n" for text, _ in links), end="")
    return 0
