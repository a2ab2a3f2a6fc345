"""Copies of models, images and folders from a node that has them to nodes that lack them, over the
fabric if possible.

The nodes form a chain: the source sends to the first, which sends on what has arrived. Each node's
part is a unit that goes on when the laptop is gone; the next call joins it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from spark_cluster.config.ports import COPIES
from spark_cluster.config.schema import Document
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine import firewall
from spark_cluster.engine.link_check import hops
from spark_cluster.errors import Failed, Refused, SparkClusterError, UsageError
from spark_cluster.node.output import duration, gigabytes
from spark_cluster.node.store.copy_receiving import MANAGEMENT_MB_S, WARNING
from spark_cluster.node.store.manifest import MOST_FILES, Manifest
from spark_cluster.resources import Directory, File, LaptopFile, Resource
from spark_cluster.runner.events import Progress
from spark_cluster.runner.play import Play

LIMIT_S = 24 * 3600.0
"""Seconds; the nodes keep the same limit."""
SHORTEST_S = 1e-3
"""Seconds that a copy takes at least, whatever a node says."""
FABRIC_GB_S = 5
"""GB/s that a link of 2 x 100 Gbit/s takes with ease: far more than most disks write."""

OPEN = (
    f"nftables does not work here, so there is no firewall: anyone on the network can connect to "
    f"the port on which this node sends (of {COPIES[0]} to {COPIES[-1]}), and gets nothing without "
    "the key of this copy. `apt install nftables` on the node changes that"
)


@dataclass(frozen=True)
class Copied(Document):
    """What a copy has done for one node.

    Attributes:
        node: its name.
        sender: the name of the node that it came from; empty when nothing was missing.
        moved: bytes that came over the network.
        kept: bytes that were there already.
        seconds: of wall time.
        fabric: it went over the fabric, to the end.
    """

    node: str
    sender: str = ""
    moved: int = 0
    kept: int = 0
    seconds: float = 0.0
    fabric: bool = False

    def __str__(self) -> str:
        """A line about it."""
        if not self.moved:
            return f"{self.node}: nothing to copy, {gigabytes(self.kept)} are there"
        way = "the fabric" if self.fabric else "the management network"
        rate = round(self.moved / max(self.seconds, SHORTEST_S))
        speed = f", {gigabytes(rate)}/s" if self.seconds else ""
        kept = f"; {gigabytes(self.kept)} were there" if self.kept else ""
        return (
            f"{self.node}: {gigabytes(self.moved)} from {self.sender} over {way} in "
            f"{self.seconds:.1f} s{speed}{kept}"
        )


@dataclass(frozen=True)
class Route:
    """The way from a node to the next one.

    Attributes:
        addresses: of the sender: those on the fabric, else its management address.
        fabric: they are on the fabric.
        spare: of the sender, its management address: for when no byte comes over the fabric.
    """

    source: Node
    target: Node
    addresses: tuple[str, ...]
    fabric: bool
    spare: tuple[str, ...] = ()


def route(source: Node, target: Node) -> Route:
    """Return the sender's addresses that the receiver reaches: on the fabric, else management.

    Raises:
        Refused: there is no address at all.
    """
    found = hops([source, target])
    fabric = tuple(
        str(hop.ours.address.ip)
        for hop in found
        if hop.source.name == source.name
        and _present(source, hop.ours)
        and _present(target, hop.theirs)
    )
    if fabric:
        spare = (source.address,) if source.address and source.address not in fabric else ()
        return Route(source, target, fabric, fabric=True, spare=spare)
    if not source.address:
        raise Refused(f"{source.name} has no address that {target.name} could copy from")
    return Route(source, target, (source.address,), fabric=False)


def _present(node: Node, link: Link) -> bool:
    """Return whether an interface of the fabric is up and already has its address."""
    interface = node.facts.interface(link.interface)
    return interface is not None and interface.up and link.address in interface.addresses


def copy(
    play: Play,
    manifest: Manifest,
    source: Node,
    targets: Sequence[Node],
    *,
    hub: str = "",
    folder: str = "",
    revision: str = "",
    encrypt: bool = True,
    streams: int = 0,
) -> list[Copied]:
    """Have a revision on the targets, each blob checked by its hash; one result for each target.

    What the source is still downloading is waited for.

    Args:
        hub: folder of the hub cache, the same on all of them.
        folder: a plain folder instead, whose manifest the source has made (see `copy_folder`).
        revision: a branch or tag that gets the commit on the targets.
        encrypt: in TLS; without, the receiver proves that it knows the secret of this copy
            and the content is checked all the same, but who listens on the way can read it.
        streams: to each address of a sender; 0 for the usual number.

    Raises:
        UsageError: the source is a target.
        SparkClusterError: a node cannot send or receive, with the reason and the fix.
    """
    if source.name in {node.name for node in targets}:
        raise UsageError(f"{source.name} would copy to itself", hint="name other nodes with --to")
    base: dict[str, Any] = {"hub": hub, "folder": folder, "manifest": manifest.document()}
    base["name"] = f"{manifest.repository}@{manifest.commit[:12]}"
    asked = play.on_each(targets, lambda n: play.session(n).request("copy", what="missing", **base))
    missing = [node for node in targets if not asked[node.name]["nothing"]]
    if play.check or not missing:
        return [Copied(node.name, kept=manifest.size) for node in targets if node not in missing]
    routes = [route(a, b) for a, b in pairwise([source, *missing])]
    for way in routes:
        if not way.fabric:
            _warn(play, way, int(asked[way.target.name]["bytes"]))
    what = folder or manifest.repository
    more = {"revision": revision, "streams": streams}
    done = _Chain(play, base, routes, what, encrypt, more).run()
    copied = {way.target.name: _copied(way, done[way.target.name]) for way in routes}
    return [copied.get(node.name) or Copied(node.name, kept=manifest.size) for node in targets]


def copy_image(play: Play, image: Mapping[str, Any], source: Node, target: Node) -> Copied:
    """Give the target's Docker an image of the source's; it is to be looked at afterwards.

    Args:
        image: `ref`, its `id`, `digests` of its registry and `size` in bytes.

    Raises:
        SparkClusterError: a node cannot send or receive, with the reason and the fix.
    """
    ref, way = str(image["ref"]), route(source, target)
    given = {name: image[name] for name in ("id", "digests", "size")}
    base = {**given, "image": ref, "name": f"{image['id']} to {target.name}"}
    return _copied(way, _Chain(play, base, [way], ref).run()[target.name])


def guard(play: Play, senders: Sequence[Node]) -> None:
    """Close the ports on which these nodes send to all but the other nodes of the run.

    A node goes on where nftables does not work; the user is told. `down` opens the ports again.
    """
    if play.inventory.trusted_network:
        return
    works = list(firewall.WORKS)
    tried = play.on_each(senders, lambda node: play.session(node).run(works).status)
    able = [node for node in senders if tried[node.name] == 0]
    for node in senders:
        if node not in able:
            play.note(OPEN, warning=True, node=node)
    ports, serve = ((COPIES[0], COPIES[-1]),), play.inventory.serve
    endpoint = serve.port if serve.bind != "loopback" else None
    play.apply(able, play.role("firewall", state="copies", ports=ports, endpoint_port=endpoint))


def _copied(way: Route, done: Mapping[str, Any]) -> Copied:
    fabric = way.fabric and not done.get("switched")
    moved, kept, seconds = int(done["moved"]), int(done["kept"]), float(done["seconds"])
    return Copied(way.target.name, way.source.name, moved, kept, seconds, fabric)


def _warn(play: Play, way: Route, size: int) -> None:
    slow, quick = size / (MANAGEMENT_MB_S * 1e6), size / (FABRIC_GB_S * 1e9)
    play.note(
        f"no fabric between {way.source.name} and {way.target.name}: {size / 1e9:.1f} GB go over "
        f"{way.addresses[0]}, on 1 Gbit/s about {duration(slow)} instead of {duration(quick)}; "
        "`spark-cluster provision` sets the link up",
        warning=True,
        node=way.target,
    )


@dataclass(frozen=True)
class _Chain:
    """A copy along a chain of nodes.

    Attributes:
        base: what each node's part is told: the `name` of the copy, and what is copied.
        what: it, as the user knows it.
        more: for those who receive.
    """

    play: Play
    base: Mapping[str, Any]
    routes: Sequence[Route]
    what: str
    encrypt: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Have all nodes do their part at the same time; name to result.

        Raises:
            SparkClusterError: a part has failed; the first one, with which the others are ended.
        """
        senders = [way.source for way in self.routes]
        nodes = [senders[0], *(way.target for way in self.routes)]
        self.play.apply(nodes, self.play.role("copies"))
        guard(self.play, senders)
        known = self.play.on_each(nodes, lambda node: self._begin(node, sends=node in senders))
        failed: list[Failed] = []

        def work(node: Node) -> dict[str, Any]:
            try:
                return self._work(node, known)
            except Failed as error:
                failed.append(error)
                if error is failed[0]:
                    self._end(nodes)
                raise

        try:
            return self.play.on_each(nodes, work)
        except SparkClusterError as error:
            raise (failed[0] if failed else error) from None

    def _begin(self, node: Node, *, sends: bool) -> dict[str, Any] | None:
        """Return the secrets and the port of a node's sender, if it has one: those of a sender
        that runs already, else new ones."""
        ports, name = list(COPIES), self.base["name"]
        session = self.play.session(node)
        reply = session.request("copy", what="begin", name=name, sends=sends, ports=ports)
        found: dict[str, Any] | None = reply["secrets"]
        if sends and found is None:
            raise Failed("it is to send, and gives no key for it", where=node.name)
        return found

    def _end(self, nodes: Sequence[Node]) -> None:
        """End all parts that still run: a sender whose receiver has failed waits for it, and the
        other way round. A node that is lost goes on by itself."""

        def end(node: Node) -> None:
            with contextlib.suppress(SparkClusterError):
                self.play.session(node).request("copy", what="end", name=self.base["name"])

        self.play.on_each(nodes, end)

    def _work(self, node: Node, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        before = next((way for way in self.routes if way.target.name == node.name), None)
        after = next((way for way in self.routes if way.source.name == node.name), None)
        names = (before.source.name if before else "", after.target.name if after else "")
        receive, serve = None, None
        if before:
            receive = {"sender": names[0], **self.more}
            receive |= self._places(before, known[before.source.name])
        if after:
            serve = self._places(after, known[node.name])
        return self.play.session(node).request(
            "copy",
            self._shown(node),
            what="work",
            label=f"{self.base['name']} from {names[0]} to {names[1]}",
            receive=receive,
            serve=serve,
            encrypted=self.encrypt,
            timeout=LIMIT_S,
            **self.base,
        )

    def _places(self, way: Route, secrets: Mapping[str, Any]) -> dict[str, Any]:
        """Where a sender listens, and its secrets. Without encryption there is no spare address:
        who allows that for a cable has not allowed it for a network."""
        spare = list(way.spare) if self.encrypt else []
        return {"addresses": list(way.addresses), "spare": spare, "secrets": dict(secrets)}

    def _shown(self, node: Node) -> Any:
        what = f"copy of {self.what}"

        def on_event(event: dict[str, Any]) -> None:
            if event.get("event") == "progress" and event["text"].startswith(WARNING):
                self.play.note(event["text"].removeprefix(WARNING), warning=True, node=node)
            elif event.get("event") == "progress":
                self.play.bus.emit(Progress(node.name, what, event["text"]))
            elif event.get("event") == "note":
                self.play.note(event["text"], node=node)

        return on_event


# Plain folders: from one node to the others, and from the laptop to one node and on from there.

ROLE = "models"
"""Its name stands for all models in `--tags` and `--skip-tags`."""

SENT_TO_EACH = 512 * 1024 * 1024
"""Bytes of a folder of the laptop up to which each node gets it from there; larger ones are sent to
one node, and copied to the others over the fabric."""


def is_large(local: Path) -> bool:
    """Return whether a folder of the laptop is sent once only."""
    return sum(p.stat().st_size for p in local.rglob("*") if p.is_file()) > SENT_TO_EACH


def is_sent_once(given: Mapping[str, Any]) -> bool:
    """Return whether the folder of a model on the laptop is sent to one node only.

    Args:
        given: settings of the role `models`.
    """
    folder = given.get("directory")
    return given["source"] == "directory" and folder is not None and is_large(folder)


def bring_folder(play: Play, nodes: Sequence[Node], given: Mapping[str, Any]) -> None:
    """Have a folder of the laptop on all nodes: it is sent to the first, and copied from there.

    A file that has arrived is not sent again; one that was cut is begun again.

    Args:
        given: settings of the role `models`.
    """
    path = given["path"]
    if not play.options.selection.wants_part([node.name for node in nodes], ROLE):
        return
    first, *others = nodes
    play.apply([first], uploads(given["directory"], path, given.get("below", "")))
    if play.check or not others:
        return
    for one in copy_folder(play, path, first, others):
        if one.sender:
            play.note(f"{given['name']} on {one}")


def copy_folder(
    play: Play,
    path: str,
    source: Node,
    targets: Sequence[Node],
    *,
    exact: bool = False,
    encrypt: bool = True,
    streams: int = 0,
) -> list[Copied]:
    """Have a folder's files on the targets, at the same path; files of other names stay there.

    The source's files are hashed, those that have not changed since the last time are not read.

    Args:
        path: absolute, on the nodes.
        exact: hidden files, too, and the time of each file's last change.
        encrypt, streams: see `copy`.

    Raises:
        UsageError: the path is not absolute, or the source is a target.
        SparkClusterError: a node cannot send or receive, with the reason and the fix.
    """
    if not path.startswith("/"):
        raise UsageError(f"{path} is not an absolute path", hint="name the folder on the nodes")

    told = play.progress_of(source, f"read {path}")
    reply = play.session(source).request(
        "copy", told, what="folder", folder=path, exact=exact, timeout=LIMIT_S
    )
    manifest = Manifest.from_document(reply["manifest"])
    # One node after the other: in a chain a node would send on what it still has of an old file,
    # whose name is the same.
    return [
        one
        for target in targets
        for one in copy(
            play, manifest, source, [target], folder=path, encrypt=encrypt, streams=streams
        )
    ]


def uploads(local: Path, path: str, below: str = "") -> list[Resource]:
    """The files of a folder of the laptop, and their folders, as resources of a node.

    Hidden files are left out. Which files a recipe may send is checked when it is read.

    Args:
        below: as `Directory` takes it.

    Raises:
        Refused: it has no file, or too many.
    """
    found = (path.relative_to(local) for path in local.rglob("*") if path.is_file())
    files = sorted(path for path in found if not any(one.startswith(".") for one in path.parts))
    if not 0 < len(files) <= MOST_FILES:
        raise Refused(
            f"{local} has {len(files)} files; expected 1 to {MOST_FILES}",
            hint="name the folder that the model's files are in; names with a leading dot are "
            "left out",
        )
    parents = sorted({parent for file in files for parent in file.parents})
    folders = [f"{path}/{parent}" if parent.name else path for parent in parents]
    made: list[Resource] = [Directory(folder, mode=0o755, below=below) for folder in folders]
    return made + [File(f"{path}/{file}", content=LaptopFile(local / file)) for file in files]
