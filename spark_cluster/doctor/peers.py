"""Checks of what a node needs of the others to serve with them: names, the same model."""

from __future__ import annotations

import re
from itertools import permutations

from spark_cluster.discovery import COUNT
from spark_cluster.doctor.check import Pair, check
from spark_cluster.doctor.observations import Observations
from spark_cluster.doctor.verdict import NotSeen, Verdict, fail, ok, warn
from spark_cluster.node.containers import ContainerState, read_sections

_AVAHI_NAME = re.compile(r's "([\w-]{1,63})"')


@check(
    "pair.names",
    title="each node finds the others by name",
    needs=("hosts", "ip", "units"),
    effect="risks",
)
def names(nodes: Pair) -> Verdict:
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


@check(
    "pair.model-files",
    title="each node that serves has the whole model",
    needs=("tools", "containers", "logs", "models"),
    effect="blocks",
)
def model_files(nodes: Pair) -> Verdict:
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
                return fail(
                    f"{node}: {len(lacking)} files of {folder} are missing or another size: "
                    f"{', '.join(lacking[:3])}"
                )
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
    """Return True when a container has this model: mounted itself, or in a hub's cache."""
    if folder in engine.mounts:
        return True
    name = folder.rpartition("models--")[2].replace("--", "/")
    above = any(folder.startswith(f"{source}/") for source in engine.mounts)
    return above and "models--" in folder and name in engine.words
