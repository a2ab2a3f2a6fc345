"""Checks of the ConnectX-7 link as one node sees it."""

from __future__ import annotations

from itertools import combinations

from spark_cluster.config.facts import Interface
from spark_cluster.doctor.check import check
from spark_cluster.doctor.observations import NotSeen, Observations, Verdict, fail, of_hca, ok, warn

FULL_RATE = 200_000
"""Mb/s that a port shows with a 200G cable."""

GID_TYPES = "types?"
"""The source with the first ten entries of the GID tables."""

FUNCTIONS = 4
"""Two ports of two twins each."""

MELLANOX = "0x15b3"
BRICKS = ("28.47.1088", "NVD0000000087")
"""Firmware reported to brick the ConnectX-7 of this PSID (community report)."""


@check("link.connectx-present", needs=("hcas",), effect="blocks", link=True, spark=True)
def connectx_present(seen: Observations) -> Verdict:
    """all four functions of the ConnectX-7 are present"""
    hcas = seen.hcas
    if len(hcas) >= FUNCTIONS:
        return ok(f"{len(hcas)} functions: {', '.join(h.name for h in hcas)}")
    if hcas:
        return warn(
            f"{len(hcas)} of {FUNCTIONS} functions: {', '.join(h.name for h in hcas)}",
            "connectx-half",
        )
    if MELLANOX in seen.tree("pci").values():
        return fail(
            "it is on the PCI bus, but there is no RDMA device",
            "connectx-without-driver",
        )
    _must_be_a_spark(seen)
    return fail("no RDMA device, and none of its functions on the PCI bus", "connectx-off-the-bus")


@check("link.port-up", needs=("hcas",), effect="blocks", link=True, spark=True)
def port_up(seen: Observations) -> Verdict:
    """both twins of the cabled port are up"""
    up = [h.interface for h in seen.hcas if h.up]
    shown = ", ".join(up)
    if not seen.hcas:
        _must_be_a_spark(seen)
    if not up:
        every = f"all {len(seen.hcas)} functions" if seen.hcas else "no function is there"
        return fail(f"{every} (Down)" if seen.hcas else every, "link-down")
    if len(up) in (2, 4) and len(seen.twins) == 2:
        return ok(f"{shown} up: {len(up) // 2} cable{'s' if len(up) == 4 else ''}")
    return fail(
        f"only {shown} up: {len(up)} function{'s' if len(up) != 1 else ''}, "
        "where one cable gives two and two give four",
        "link-half-up",
    )


def _must_be_a_spark(seen: Observations) -> None:
    """Leave open what only a Spark must have.

    Raises:
        NotSeen: the GPU is another one than a Spark's.
    """
    if seen.other_gpu:
        raise NotSeen("no RDMA device")


@check("link.rate", needs=("hcas", "speed"), effect="slows", link=True)
def rate(seen: Observations) -> Verdict:
    """the port runs at 200 Gb/s"""
    speeds = {path.split("/")[4]: text for path, text in seen.tree("speed").items()}
    twins = [twin.interface for twin in seen.twins]
    known = {name: int(speeds[name]) for name in twins if speeds.get(name, "-1").isdigit()}
    missing = [name for name in twins if name not in known]
    if missing:
        raise NotSeen(f"/sys/class/net/{missing[0]}/speed has no value")
    shown = ", ".join(f"{name} {speed} Mb/s" for name, speed in known.items())
    slow = [speed for speed in known.values() if speed < FULL_RATE]
    return fail(shown) if slow else ok(shown or "no function is up")


@check("link.pcie-width", needs=("width",), effect="slows", link=True, spark=True)
def pcie_width(seen: Observations) -> Verdict:
    """both PCIe paths of the ConnectX-7 have four lanes"""
    widths = of_hca(seen.tree("width"))
    if not widths:
        raise NotSeen("/sys/class/infiniband/*/device/current_link_width: not there")
    shown = ", ".join(f"{hca} x{width}" for hca, width in widths.items())
    narrow = [w for w in widths.values() if w.isdigit() and int(w) < 4]
    return warn(shown) if narrow else ok(shown)


@check("link.twin-address", needs=("hcas", "ip"), effect="slows", link=True)
def twin_address(seen: Observations) -> Verdict:
    """both twins have an address"""
    bare = [i.name for i in seen.twin_interfaces if not i.addresses]
    if len(bare) > 1:
        return fail(f"{' and '.join(bare)} have no IPv4 address", "link-not-configured")
    if bare:
        return fail(f"{bare[0]} has no IPv4 address", "twin-without-address")
    return ok(_addresses(seen.twin_interfaces) or "no function is up")


@check("link.twins-one-subnet", needs=("hcas", "ip"), effect="slows", link=True)
def twins_one_subnet(seen: Observations) -> Verdict:
    """the twins are in different subnets"""
    twins = seen.twin_interfaces
    for one, other in combinations(twins, 2):
        for address in one.addresses:
            if any(address.network.overlaps(a.network) for a in other.addresses):
                return fail(f"{one.name} and {other.name} are both in {address.network}")
    return ok(_addresses(twins) or "no twin has an address")


@check("link.mtu", needs=("hcas", "ip"), effect="slows", link=True)
def mtu(seen: Observations) -> Verdict:
    """the twins have the MTU that the inventory sets"""
    twins = seen.twin_interfaces
    shown = ", ".join(f"{i.name} {i.mtu}" for i in twins)
    if any(i.mtu != seen.mtu for i in twins):
        return warn(f"{shown}; the inventory says {seen.mtu}")
    return ok(shown or "no function is up")


@check("link.gid", needs=("hcas", "ip", GID_TYPES), effect="blocks", link=True)
def gid(seen: Observations) -> Verdict:
    """each twin has a RoCE v2 entry of its IPv4 address in its GID table"""
    addresses = {i.name: i.addresses for i in seen.twin_interfaces}
    twins = [twin for twin in seen.twins if addresses.get(twin.interface)]
    if twins and not seen.tree(GID_TYPES):
        raise NotSeen("/sys/class/infiniband/*/ports/1/gid_attrs: not there")
    missing = [f"{t.name} has none of {addresses[t.interface][0].ip}" for t in twins
               if t.gid_index is None]  # fmt: skip
    if missing:
        return fail("; ".join(missing))
    shown = ", ".join(f"{twin.name} index {twin.gid_index}" for twin in twins)
    return ok(shown or "no twin has an address")


@check("link.subnet-overlap", needs=("hcas", "ip"), effect="blocks", link=True)
def subnet_overlap(seen: Observations) -> Verdict:
    """no other network of the node overlaps with the link's"""
    fabric = seen.link_names
    ours = [(i.name, a) for i in seen.interfaces if i.name in fabric for a in i.addresses]
    others = [(i.name, a) for i in seen.interfaces if i.name not in fabric for a in i.addresses]
    for name, address in ours:
        for other, foreign in others:
            if address.network.overlaps(foreign.network):
                return fail(f"{name} {address} and {other} {foreign} overlap")
    return ok(", ".join(sorted({str(a.network) for _, a in ours})) or "no address on the link")


@check("link.firmware", needs=("fw_ver", "board_id"), effect="risks", link=True, spark=True)
def firmware(seen: Observations) -> Verdict:
    """the ConnectX-7 has no firmware that is known to be bad"""
    versions, boards = of_hca(seen.tree("fw_ver")), of_hca(seen.tree("board_id"))
    if not versions or set(boards) != set(versions):
        raise NotSeen("/sys/class/infiniband/*/fw_ver and board_id: not there")
    pairs = {(version, boards[hca]) for hca, version in versions.items()}
    shown = ", ".join(f"{version} ({board})" for version, board in sorted(pairs))
    return fail(shown) if BRICKS in pairs else ok(shown)


def _addresses(interfaces: tuple[Interface, ...]) -> str:
    return ", ".join(f"{i.name} {a}" for i in interfaces for a in i.addresses)
