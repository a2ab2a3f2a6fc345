"""Roles and what they are given: the nodes, with what is true of them and how they are linked."""

from __future__ import annotations

import dataclasses
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from ipaddress import IPv4Interface
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from spark_cluster.config.extension import Extensions, where_raised
from spark_cluster.config.facts import Facts, Hca
from spark_cluster.config.inventory import Inventory, InventoryNode, fabric_addresses
from spark_cluster.config.inventory_schema import FIRST_HOST
from spark_cluster.config.schema import objects_of, parse, problems_of
from spark_cluster.config.yamlfile import did_you_mean, dotted, shown
from spark_cluster.errors import Failed, InvalidFile, Refused, SparkClusterError, UsageError
from spark_cluster.node.values import InvalidResource
from spark_cluster.resources.base import Resource

if TYPE_CHECKING:
    from fabric import Connection
    from jinja2 import Environment


@dataclass(frozen=True)
class Link:
    """A twin of the cabled ConnectX-7 port.

    Attributes:
        interface: its network interface.
        address: its address on the fabric, present or to be given.
        hca: its RDMA device; None when the node has none of that interface.
        ours: the address is for the `network` role to give; otherwise the user's own
            configuration has given it.
    """

    interface: str
    address: IPv4Interface
    hca: str | None = None
    ours: bool = True


@dataclass(frozen=True)
class Node:
    """A node, as roles see it.

    Attributes:
        name, address: as in the inventory.
        index: place in the inventory, from 0.
        user: the login user on the node.
        links: the fabric, first twin first; empty without one.
        cluster: all nodes of the inventory, this one included (their own `cluster` is empty).
        connect: returns what `connection` does; None outside a run.
    """

    name: str
    address: str = ""
    index: int = 0
    is_head: bool = True
    user: str = "root"
    facts: Facts = field(default_factory=Facts)
    links: tuple[Link, ...] = ()
    mtu: int = 9000
    cluster: tuple[Node, ...] = field(default=(), compare=False, repr=False)
    connect: Callable[[], Connection] | None = field(default=None, compare=False, repr=False)

    @property
    def head(self) -> Node:
        """The cluster's head."""
        return next((n for n in self.cluster if n.is_head), self)

    @property
    def connection(self) -> Connection:
        """fabric's `Connection` to the node, over the run's own SSH connection, in a playbook.

        Raises:
            Refused: the node is not reached over SSH, or this is no run.
            Unreachable: its connection was lost.
        """
        if self.connect is None:
            raise Refused("only a node of a run has a connection", where=self.name)
        return self.connect()

    @property
    def fabric_ip(self) -> str | None:
        """Address of the first twin."""
        return str(self.links[0].address.ip) if self.links else None


def topology_of(
    inventory: Inventory,
    names: Iterable[str],
    users: Mapping[str, str],
    ask: Callable[[str], Facts],
    connect: Callable[[str], Connection] | None = None,
) -> dict[str, Node]:
    """These nodes, each knowing all of them.

    Their facts are asked for when those of one, or what follows from them, are first read, which
    raises what `ask(name)` raises.

    Args:
        users: name to login user.
        connect: returns a node's `connection`, by its name.
    """
    wanted = {name: node for name, node in inventory.nodes.items() if name in set(names)}
    known = _Known(inventory, tuple(wanted), ask)
    own = {name: _identity(inventory, node, users, connect) for name, node in wanted.items()}
    members = tuple(_AskedNode.of(known, cluster=(), **of) for of in own.values())
    return {name: _AskedNode.of(known, cluster=members, **of) for name, of in own.items()}


@dataclass(frozen=True)
class _Known:
    """What is asked of the nodes of a cluster, once."""

    inventory: Inventory
    names: tuple[str, ...]
    ask: Callable[[str], Facts]

    @cached_property
    def links(self) -> dict[str, tuple[Link, ...]]:
        return links_of(self.inventory, {name: self.ask(name) for name in self.names})


class _AskedNode(Node):
    """A node that asks for its facts when they, or what follows from them, are first read.

    A copy of it (`dataclasses.replace`) has them.
    """

    known: _Known

    @classmethod
    def of(cls, known: _Known, **own: Any) -> Node:
        """Make one of all fields but `facts` and `links`, which __init__ would want."""
        made = cls.__new__(cls)
        vars(made).update(own, known=known)
        return made

    @cached_property
    def facts(self) -> Facts:
        return self.known.ask(self.name)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        return self.known.links[self.name]


def _identity(
    inventory: Inventory,
    node: InventoryNode,
    users: Mapping[str, str],
    connect: Callable[[str], Connection] | None,
) -> dict[str, Any]:
    """Return the fields of a node that are known without its facts."""
    return {
        "name": node.name,
        "address": node.address,
        "index": node.index,
        "is_head": node.is_head,
        "user": users.get(node.name, "root"),
        "mtu": inventory.mtu,
        "connect": partial(connect, node.name) if connect is not None else None,
    }


def links_of(inventory: Inventory, facts: Mapping[str, Facts]) -> dict[str, tuple[Link, ...]]:
    """Return the twins of each node, with addresses in subnets that the nodes share.

    Where the user has configured one node only, the others get addresses in its subnets.
    """
    alone = {
        name: links(inventory, node, facts[name])
        for name, node in inventory.nodes.items()
        if name in facts
    }
    return {
        name: tuple(
            _joined(inventory, facts, name, link, [k[at] for k in others if at < len(k)])
            for at, link in enumerate(found)
        )
        for name, found in alone.items()
        for others in [[k for other, k in alone.items() if other != name]]
    }


def _joined(
    inventory: Inventory, facts: Mapping[str, Facts], name: str, link: Link, peers: list[Link]
) -> Link:
    """Return a link with the address that fits the same twins of the other nodes."""
    node, interface = inventory.nodes[name], facts[name].interface(link.interface)
    if not link.ours or node.fabric != "detect":
        return link
    present = interface.addresses if interface is not None else ()
    given = [address for address in present if address in facts[name].given_addresses]
    networks = {peer.address.network for peer in peers if not peer.ours}
    if not networks and given and len(facts) < len(inventory.nodes):
        # It may be for an address of a node that is not in this run.
        return replace(link, address=given[0])
    if len(networks) != 1 or link.address.network in networks:
        return link
    (network,) = networks
    numbers = (FIRST_HOST + node.index, *range(1, min(network.num_addresses - 1, FIRST_HOST)))
    taken = {peer.address.ip for peer in peers}
    free = [
        IPv4Interface((network[n], network.prefixlen))
        for n in numbers
        if n < network.num_addresses - 1 and network[n] not in taken
    ]
    kept = [address for address in given if address.network == network]
    return replace(link, address=next(iter([*kept, *free]), link.address))


def links(inventory: Inventory, node: InventoryNode, facts: Facts) -> tuple[Link, ...]:
    """The node's twins with their addresses.

    With `fabric: detect` a twin keeps an address that it already has, or that a netplan file of
    the user's gives it, so that what a user configured is never fought; without one, or with one
    that an earlier run gave (the pool may be another one now), it gets its place in the inventory's
    pool. Named interfaces get what the inventory says, unless it says that they have it already
    (`configure: false`), or the user's netplan gives it.
    """
    if node.fabric != "detect":
        hcas = {h.interface: h.name for h in facts.hcas}
        return tuple(
            Link(
                one.name,
                one.address,
                hcas.get(one.name),
                ours=one.configure and one.address not in facts.netplan.given(one.name),
            )
            for one in node.fabric
        )
    found = []
    for hca, address in zip(cabled_port(facts), fabric_addresses(inventory, node), strict=False):
        interface = facts.interface(hca.interface)
        present = interface.addresses if interface is not None else ()
        given = facts.netplan.given(hca.interface)
        theirs = [*given, *(one for one in present if one not in facts.given_addresses)]
        ours = address not in given and (not theirs or address in present)
        found.append(Link(hca.interface, address if ours else theirs[0], hca.name, ours))
    return tuple(found)


def port_of(interface: str) -> str:
    """Return the port of a twin, by the end of its name.

    A port's two twins differ in their PCI domain only.

    >>> port_of("enp1s0f1np1"), port_of("enP2p1s0f1np1")
    ('f1np1', 'f1np1')
    """
    place = re.search(r"f\d+(np\d+)?$", interface)
    return place[0] if place else interface


def ports_up(facts: Facts) -> dict[str, list[Hca]]:
    """Return the twins that are up, by their port."""
    ports: dict[str, list[Hca]] = {}
    for hca in facts.hcas:
        if hca.up:
            ports.setdefault(port_of(hca.interface), []).append(hca)
    return ports


def cabled_port(facts: Facts) -> tuple[Hca, ...]:
    """The up twins of the port that has a cable; of two cabled ports, the first."""
    best = sorted(ports_up(facts).items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(best[0][1]) if best else ()


# A role: facts and settings in, resources out. Here is what makes a folder one.

RoleFunction = Callable[..., Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Role:
    """A loaded role.

    Args:
        name: the name of its folder.
        path: its `__init__.py`.
        settings_model: its pydantic model `Settings`.
        function: its generator function `role(node, settings)`.
    """

    name: str
    path: Path
    settings_model: type[BaseModel]
    function: RoleFunction

    def settings_for(self, node: InventoryNode, /, **given: Any) -> BaseModel:
        """Its settings on a node: the inventory's, and on top those that a playbook gives.

        Raises:
            InvalidFile: the inventory's are wrong, with their lines.
            UsageError: those that the playbook gives are wrong.
        """
        source, objects = node.settings_for(self.name), objects_of(self.settings_model)
        lacking = [name for name in objects if name not in given]
        if lacking:
            raise UsageError(
                f"settings of role {self.name} on {node.name}: {lacking[0]}: missing; expected "
                f"{objects[lacking[0]].description}"
            )
        data = {**source.data, **{k: v for k, v in given.items() if k not in objects}}
        try:
            made = parse(self.settings_model, data)
            return made.model_copy(update={name: given[name] for name in objects})
        except ValidationError as error:
            problems = problems_of(self.settings_model, data, error)
        if not any(problem.key[:1] and problem.key[0] in given for problem in problems):
            raise source.invalid(problems)
        lines = [f"{dotted(problem.key)}: {problem.message}" for problem in problems]
        raise UsageError(f"settings of role {self.name} on {node.name}: " + "; ".join(lines))

    def resources(
        self, node: Node, entry: InventoryNode, given: Mapping[str, Any]
    ) -> list[Resource]:
        """Return the resources that it declares for a node, tagged with its name.

        Args:
            entry: the node in the inventory.
            given: settings on top of the inventory's.

        Raises:
            InvalidFile, UsageError: as `settings_for`.
            Failed: its code raised something, with the line; nothing was sent to any node.
            SparkClusterError: it refuses the node.
        """
        settings = self.settings_for(entry, **given)
        try:
            return tagged(self.function(node, settings), self.name)
        except SparkClusterError:
            raise
        except Exception as error:
            calls = reversed(traceback.extract_tb(error.__traceback__))
            line = next((call.lineno for call in calls if call.filename == str(self.path)), 0)
            kind = type(error).__name__
            prefix = "" if isinstance(error, InvalidResource) else f"the role raised {kind}: "
            raise Failed(
                f"{prefix}{error}",
                where=f"{self.path}:{line}",
                hint=f"this is a bug in the role {self.name}, found for node {node.name}; "
                "none of its resources were sent to any node",
            ) from error


def tagged(resources: Iterable[Resource], role: str) -> list[Resource]:
    """Return the resources, each with its role's name among its tags."""
    return [
        r if role in r.tags else dataclasses.replace(r, tags=(*r.tags, role)) for r in resources
    ]


def load_role(name: str, folder: Path, extensions: Extensions) -> Role:
    """Load the role in a folder.

    Args:
        extensions: of the project that it is used in.

    Raises:
        InvalidFile: it lacks `Settings` or `role`, or raises while it is imported.
    """
    path = folder / "__init__.py"
    what = f"role {name}"
    if not path.is_file():
        raise InvalidFile(f"{what}: no such file; expected the role's code", where=shown(path))
    module = extensions.load_module(path, f"roles.{name}", what)
    settings = getattr(module, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise InvalidFile(
            f"{what}: no class Settings(pydantic.BaseModel)",
            where=_line(module, path, "Settings"),
            hint="write one, if only `class Settings(BaseModel): pass`",
        )
    function = getattr(module, "role", None)
    if not inspect.isgeneratorfunction(function):
        raise InvalidFile(
            f"{what}: no generator function role(node, settings)",
            where=_line(module, path, "role"),
            hint="a role yields resources: `def role(node, settings): yield File(...)`",
        )
    return Role(name, path, settings, function)


def _line(module: ModuleType, path: Path, name: str) -> str:
    """Return the line where the module defines a name; its first line when it does not."""
    thing = getattr(module, name, None)
    if inspect.isfunction(thing) and thing.__code__.co_filename == str(path):
        return f"{shown(path)}:{thing.__code__.co_firstlineno}"
    return f"{shown(path)}:1"


@dataclass(frozen=True, slots=True)
class Playbook:
    """A loaded playbook.

    Args:
        name: the file's name without `.py`.
        path: the file.
        function: its `main(play, ...)` (or `play(play, ...)`).
    """

    name: str
    path: Path
    function: Callable[..., Any]


def load_playbook(path: Path, extensions: Extensions) -> Playbook:
    """Load the playbook in a file.

    Args:
        extensions: of the project that it is used in.

    Raises:
        InvalidFile: it has no such function, or raises while it is imported.
    """
    what = f"playbook {path.stem}"
    module = extensions.load_module(path, f"playbooks.{path.stem}", what)
    function = next(
        (f for f in (getattr(module, n, None) for n in ("main", "play")) if inspect.isfunction(f)),
        None,
    )
    if function is None or not inspect.signature(function).parameters:
        raise InvalidFile(
            f"{what}: no function main(play)",
            where=f"{shown(path)}:1",
            hint="a playbook is one: `def main(play): play.apply(play.nodes, 'network')`",
        )
    return Playbook(path.stem, path, function)


# Renders the Jinja templates of roles; a variable that does not exist is an error.


def render(folder: Path, template: str, /, **values: Any) -> str:
    """The text of a template.

    Lines that hold only a `{% ... %}` leave nothing behind (trim_blocks, lstrip_blocks), and the
    newline at the end of the file stays.

    Args:
        folder: the role's `templates` folder.
        template: the file's name in it.
        values: the variables.

    Raises:
        InvalidFile: there is no such template, or it is wrong, or a variable is missing; with the
            template's line.
    """
    from jinja2 import TemplateError, TemplateNotFound, TemplateSyntaxError

    path = folder / template
    try:
        return _environment(folder).get_template(template).render(values)
    except TemplateNotFound as error:
        there = [str(p.relative_to(folder)) for p in sorted(folder.rglob("*")) if p.is_file()]
        raise InvalidFile(
            "no such template",
            where=shown(folder / str(error.name)),
            hint=did_you_mean(str(error.name), there, "templates"),
        ) from None
    except TemplateSyntaxError as error:
        file = Path(error.filename) if error.filename else path
        raise InvalidFile(str(error.message), where=f"{shown(file)}:{error.lineno}") from None
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        where = where_raised(error, folder / "__init__.py") or shown(path)
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        raise InvalidFile(f"{kind}{error}", where=where) from error


@lru_cache(maxsize=64)
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Configuration files, not web pages: escaping for HTML would damage them.
    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
