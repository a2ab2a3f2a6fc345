"""Which of several launches is meant: the ranks of one server are one, others are offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.errors import InvalidFile
from spark_cluster.importers.importer import Offer, Source

_PER_RANK = (
    *("node-rank", "headless", "nnodes", "master-addr", "master-port"),
    *("host", "port", "api-key"),
)
"""Flags that differ between the ranks of one server."""


class SeveralServers(InvalidFile):
    """Files or services start different servers, and the user has named none of them."""


def same_server(sources: Sequence[Source]) -> Source | None:
    """Return the first rank of the server that all these start; None where they differ."""
    first = min(sources, key=lambda one: _rank(one.launch))
    if any(_identity(one.launch) != _identity(first.launch) for one in sources):
        return None
    if len(sources) > 1 and first.launch.nodes > 1:
        first.notes.append(f"{len(sources)} launches are the ranks of one server")
    return first


def chosen(found: Mapping[str, Source], usual: Sequence[str], where: str) -> str:
    """Return the name of the server that is meant; the others become its offers.

    Args:
        found: what starts a server, by file or service.
        usual: names by which people call what they start.
        where: the file or folder, for messages.

    Raises:
        SeveralServers: nothing tells which one is meant.
    """
    server = same_server([*found.values()])
    name = next((name for name, one in found.items() if one is server), "")
    if name:
        return name
    chats = [name for name, one in found.items() if one.launch.kind == "chat"]
    depth = min(name.count("/") for name in found)
    shallow = [name for name in found if name.count("/") == depth]
    for likely in (list(usual), shallow, chats):
        server = same_server([found[name] for name in likely]) if likely else None
        if server is not None:
            server.offers += [
                Offer(f"--variant {name}", f"{one.kind} that serves {one.launch.model}")
                for name, one in found.items()
                if name not in likely
            ]
            return next(name for name in likely if found[name] is server)
    raise several(f"{len(found)} different servers are started here", found, where)


def several(why: str, found: Mapping[str, Source], where: str) -> SeveralServers:
    """Return the error that the user has to name one of these servers."""
    named = "; ".join(f"{name} ({one.launch.model})" for name, one in found.items())
    hint = f"name one of them: --variant {next(iter(found))}"
    return SeveralServers(f"{why}: {named}", where=where, hint=hint)


def _rank(launch: Launch) -> int:
    rank = launch.args.get("node-rank", 0)
    return rank if isinstance(rank, int) else int("headless" in launch.args)


def _identity(launch: Launch) -> tuple[str, str, dict[str, EngineValue]]:
    args = {flag: value for flag, value in launch.args.items() if flag not in _PER_RANK}
    return launch.model, launch.image, args
