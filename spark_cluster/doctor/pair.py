"""Checks of the nodes compared: what must be the same, and what must not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import combinations, permutations

from spark_cluster.config.discovery import COUNT
from spark_cluster.doctor.check import Pair, check
from spark_cluster.doctor.hardware import fwupd_devices
from spark_cluster.doctor.observations import NotSeen, Observations, Verdict, fail, of_hca, ok, warn
from spark_cluster.node.containers import ContainerState, read_sections
from spark_cluster.node.output import counted

CLOCK_S = 10.0
OWN_FLAGS = (
    *("--node-rank", "--headless", "--host", "--port", "--master-addr", "--master-port"),
    *("--api-server-count", "--data-parallel-start-rank"),
)
"""ContainerState arguments in which ranks may differ."""


@check("pair.os", needs=("os", "dgx"), effect="risks")
def system(nodes: Pair) -> Verdict:
    """the nodes have the same system"""

    def value(seen: Observations) -> str:
        seen.text("os")
        return f"{seen.facts.os}, DGX OS {seen.facts.dgx_version or 'none'}"

    return _same(nodes, value)


@check("pair.kernel", needs=("kernel",), effect="risks")
def kernel(nodes: Pair) -> Verdict:
    """the nodes run the same kernel"""
    return _same(nodes, lambda seen: seen.kernel)


@check("pair.driver", needs=("gpu",), effect="risks")
def driver(nodes: Pair) -> Verdict:
    """the nodes have the same driver"""

    def value(seen: Observations) -> str:
        seen.output("gpu")
        if seen.facts.gpu is None:
            raise NotSeen(f"{seen.node}: nvidia-smi names no GPU")
        return seen.facts.gpu.driver

    return _same(nodes, value)


@check("pair.firmware", needs=("fw_ver",), effect="risks", spark=True)
def firmware(nodes: Pair) -> Verdict:
    """the nodes' ConnectX-7 have the same firmware"""

    def value(seen: Observations) -> str:
        versions = sorted(set(of_hca(seen.tree("fw_ver")).values()))
        if not versions:
            raise NotSeen(f"{seen.node}: /sys/class/infiniband/*/fw_ver is not there")
        return ", ".join(versions)

    return _same(nodes, value)


@check("pair.system-firmware", needs=("devices",), effect="risks", spark=True)
def system_firmware(nodes: Pair) -> Verdict:
    """the nodes have the same system firmware"""
    versions = [_versions(seen) for seen in nodes]
    common = sorted(set.intersection(*(set(devices) for devices in versions)))
    differ = [
        f"{name}: {_each(nodes, [devices[name] for devices in versions])}"
        for name in common
        if len({devices[name] for devices in versions}) > 1
    ]
    if differ:
        return warn("; ".join(differ))
    return ok(f"{len(common)} devices have the same versions")


@check("pair.machine-id", needs=("machine_id",), effect="risks")
def machine_id(nodes: Pair) -> Verdict:
    """each node has a machine id of its own"""
    ids = {seen.node: seen.text("machine_id").strip() for seen in nodes}
    for one, other in combinations(ids, 2):
        if ids[one] == ids[other]:
            return fail(f"{one} and {other} both have {ids[one] or 'an empty one'}")
    return ok("all different")


@check("pair.host-keys", needs=("host_keys",), effect="risks")
def host_keys(nodes: Pair) -> Verdict:
    """each node has SSH host keys of its own"""
    if not any(seen.tree("host_keys") for seen in nodes):
        return ok("no node has SSH host keys")
    keys = {seen.node: _host_keys(seen) for seen in nodes}
    for one, other in combinations(keys, 2):
        shared = sorted(kind for kind, key in keys[one].items() if keys[other].get(kind) == key)
        if shared:
            return fail(f"{one} and {other} share {', '.join(shared)}")
    return ok("all different")


@check("pair.mtu", needs=("hcas", "ip"), effect="blocks")
def mtu(nodes: Pair) -> Verdict:
    """the nodes have the same MTU on the link"""

    def value(seen: Observations) -> str:
        return ", ".join(sorted({str(i.mtu) for i in seen.twin_interfaces})) or "no link"

    return _same(nodes, value, problem=fail)


@check("pair.same-port", needs=("hcas",), effect="blocks")
def same_port(nodes: Pair) -> Verdict:
    """the cable is in the same port of both nodes"""

    def value(seen: Observations) -> str:
        return ", ".join(twin.interface for twin in seen.twins) or "no function is up"

    return _same(nodes, value, problem=fail)


@check("pair.subnets", needs=("hcas", "ip"), effect="blocks")
def subnets(nodes: Pair) -> Verdict:
    """each twin shares a subnet with the same twin of the other node"""
    places = {seen.node: {i.name: i.addresses for i in seen.twin_interfaces} for seen in nodes}
    for one, other in combinations(places, 2):
        for name in (name for name in places[one] if name in places[other]):
            mine, theirs = places[one][name], places[other][name]
            if not mine or not theirs:
                continue  # link.twin-address
            if {a.ip for a in mine} & {a.ip for a in theirs}:
                return fail(f"{one} and {other} both have {mine[0].ip} on {name}")
            if not {a.network for a in mine} & {a.network for a in theirs}:
                return fail(f"{name}: {one} has {mine[0]}, {other} has {theirs[0]}")
    names = sorted({name for links in places.values() for name in links})
    return ok(f"{', '.join(names)}: joined" if names else "no function is up")


@check("pair.images", needs=("tools", "containers", "logs"), effect="blocks")
def images(nodes: Pair) -> Verdict:
    """the nodes serve from the same image"""
    used = {s.node: {e.image for e in s.engines if e.running and e.tp > 1} - {""} for s in nodes}
    serving = {node: ids for node, ids in used.items() if ids}
    if len(serving) < 2:
        return ok("no container runs over two nodes")
    shown = "; ".join(f"{n} {', '.join(i[:19] for i in sorted(ids))}" for n, ids in serving.items())
    return ok(shown) if len(set().union(*serving.values())) == 1 else fail(shown)


@check("pair.ray-version", needs=("tools", "containers", "logs", "versions"), effect="blocks")
def ray_version(nodes: Pair) -> Verdict:
    """the nodes have the same Ray and vLLM"""

    def value(seen: Observations) -> str:
        if not any(e.running and e.tp > 1 for e in seen.engines):
            return ""
        pairs = sorted(set(re.findall(r"^(ray|vllm)=(\S+)$", seen.output("versions"), re.M)))
        if not pairs:
            raise NotSeen(
                f"{seen.node}: nothing reports the versions of Ray and vLLM of what serves"
            )
        return ", ".join(f"{name} {version}" for name, version in pairs)

    known = {seen.node: value(seen) for seen in nodes}
    told_of = {node: text for node, text in known.items() if text}
    if len(told_of) < 2:
        return ok("no engine runs over two nodes")
    shown = "; ".join(f"{node} {text}" for node, text in told_of.items())
    return ok(shown) if len(set(told_of.values())) == 1 else fail(shown)


@check("pair.engine-args", needs=("tools", "containers", "logs"), effect="blocks")
def engine_args(nodes: Pair) -> Verdict:
    """all ranks have the same engine arguments"""
    ranks = {
        f"{seen.node} {e.name}": {k: v for k, v in e.arguments().items() if k not in OWN_FLAGS}
        for seen in nodes
        for e in seen.engines
        if e.running and e.is_server and e.tp > 1
    }
    if len(ranks) < 2:
        return ok("one server renders them for all" if ranks else "no engine runs over two nodes")
    (first, wanted), *others = ranks.items()
    for name, found in others:
        differ = sorted(f for f in wanted | found if wanted.get(f) != found.get(f))
        if differ:
            flag = differ[0]
            return fail(f"{flag}: {first} {_shown(wanted, flag)}, {name} {_shown(found, flag)}")
    return ok(f"{len(ranks)} ranks, {len(wanted)} arguments")


@check("pair.clock", needs=("clock",), effect="risks")
def clock(nodes: Pair) -> Verdict:
    """the nodes' clocks agree"""
    times = [seen.time for seen in nodes]
    apart = max(times) - min(times)
    return warn(f"{apart:.0f} s apart") if apart > CLOCK_S else ok(f"within {CLOCK_S:g} s")


def _same(
    nodes: Pair, value: Callable[[Observations], str], problem: Callable[[str], Verdict] = warn
) -> Verdict:
    """Compare one answer of all nodes."""
    values = [value(seen) for seen in nodes]
    return ok(values[0]) if len(set(values)) == 1 else problem(_each(nodes, values))


def _each(nodes: Pair, values: list[str]) -> str:
    return ", ".join(f"{s.node} {value}" for s, value in zip(nodes, values, strict=True))


def _shown(arguments: Mapping[str, str], flag: str) -> str:
    return arguments[flag] or "has it" if flag in arguments else "lacks it"


def _versions(seen: Observations) -> dict[str, str]:
    """Return the firmware version of each device that has one; of several with one name all."""
    found: dict[str, list[str]] = {}
    for device in fwupd_devices(seen.ran("devices")):
        if device.get("Name") and device.get("Version"):
            found.setdefault(str(device["Name"]), []).append(str(device["Version"]))
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def _host_keys(seen: Observations) -> dict[str, str]:
    """Return the host keys by kind.

    Raises:
        NotSeen: there is none.
    """
    keys = [text.split()[:2] for text in seen.tree("host_keys").values()]
    found = {words[0]: words[1] for words in keys if len(words) == 2}
    if not found:
        raise NotSeen(f"{seen.node}: no /etc/ssh/ssh_host_*_key.pub can be read")
    return found


# Checks of what a node needs of the others to serve with them: names, the same model.

_AVAHI_NAME = re.compile(r's "([\w-]{1,63})"')


@check("pair.names", needs=("hosts", "ip", "units"), effect="risks")
def names(nodes: Pair) -> Verdict:
    """each node finds the others by name"""
    renamed = [f"avahi announces {s.node} as {name}.local" for s in nodes if (name := _renamed(s))]
    if renamed:
        return warn("; ".join(renamed), "mdns-name-counts-up")
    lost = []
    for seen, peer in permutations(nodes, 2):
        addresses = {str(a.ip) for i in peer.interfaces for a in i.addresses}
        known = [
            line.split()
            for line in seen.text("hosts").split("\n")
            if not line.lstrip().startswith("#")
        ]
        if not any(w and w[0] in addresses and not w[0].startswith("127.") for w in known):
            lost.append(f"{seen.node} has no name for {peer.node}")
    if not lost:
        return ok("in /etc/hosts")
    _link_is_up(nodes)
    avahi = [seen.units.get("avahi-daemon", {}).get("ActiveState") for seen in nodes]
    if set(avahi) == {"active"}:
        return ok("through avahi")
    return warn("; ".join(lost), "peer-without-name")


def _renamed(seen: Observations) -> str:
    """Return the name to which avahi counted a node's own up after a conflict; empty without one.

    Raises:
        NotSeen: avahi runs, and does not answer.
    """
    if seen.units.get("avahi-daemon", {}).get("ActiveState") != "active":
        return ""
    answered = _AVAHI_NAME.fullmatch(seen.output("avahi").strip())
    if answered is None:
        raise NotSeen(f"{seen.node}: avahi does not tell its host name")
    name, own = answered[1].lower(), seen.facts.hostname.partition(".")[0].lower()
    return name if name != own and COUNT.sub("", name) == COUNT.sub("", own) else ""


def _link_is_up(nodes: Pair) -> None:
    """Raise NotSeen when it is not: with it go the addresses that names may lead to."""
    for seen in nodes:
        if seen.hcas and not seen.twins:
            raise NotSeen(f"the link of {seen.node} is down, and has no address to find a name of")


@check("pair.model-files", needs=("tools", "containers", "logs", "models"), effect="blocks")
def model_files(nodes: Pair) -> Verdict:
    """each node that serves has the whole model"""
    serving = {
        seen.node: (seen, [e for e in seen.engines if e.running and e.tp > 1]) for seen in nodes
    }
    serving = {node: pair for node, pair in serving.items() if pair[1]}
    if len(serving) < 2:
        return ok("no engine runs over two nodes")
    kept = {node: _kept(seen) for node, (seen, _) in serving.items()}
    used = sorted(
        {
            folder
            for folders in kept.values()
            for folder in folders
            if any(_uses(e, folder) for _, engines in serving.values() for e in engines)
        }
    )
    if not used:
        raise NotSeen("none of the engine's folders is one where models are looked for")
    for folder in used:
        listings = {node: folders.get(folder, {}) for node, folders in kept.items()}
        every = set().union(*(listing.items() for listing in listings.values()))
        for node, listing in listings.items():
            lacking = sorted({path for path, _ in every - set(listing.items())})
            if lacking:
                files = f"{counted(len(lacking), 'file')}: {', '.join(lacking[:3])}"
                return fail(f"{node}: missing or of another size in {folder}: {files}")
    return ok(f"{', '.join(used)}: the same files")


def _kept(seen: Observations) -> dict[str, dict[str, str]]:
    """Folder of each model to its files and their sizes; what begins with a dot is left out."""
    found: dict[str, dict[str, str]] = {}
    for folder, lines in read_sections(seen.output("models")).items():
        rows = (line.partition(" ") for line in lines)
        found[folder] = {
            path: size
            for size, _, path in rows
            if not any(part.startswith(".") for part in path.split("/"))
        }
    return found


def _uses(engine: ContainerState, folder: str) -> bool:
    """Return True when an engine has this model: mounted or named itself, or in a hub's cache."""
    if folder in engine.mounts or (engine.runtime == "venv" and folder in engine.command):
        return True
    name = folder.rpartition("models--")[2].replace("--", "/")
    above = any(folder.startswith(f"{source}/") for source in engine.mounts)
    return above and "models--" in folder and name in engine.words
