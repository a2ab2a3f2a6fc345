"""Which of several launches is meant: the ranks of one server are one, others are offered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.errors import InvalidFile
from spark_cluster.importers.importer import Offer, Source
from spark_cluster.importers.kitfiles import DEEPEST, KitFolder

MOST_NAMED, MOST_FOLLOWED = 200, 20
"""Names of files that are read in a text of a kit, and texts that are followed from them."""

_USUAL = re.compile(r"(?:docker-)?compose\.ya?ml|(?:start|run|serve|launch|up)\.sh")
_NAMED = re.compile(r"(?<![\w./-])[\w./-]+\.(?:sh|bash|ya?ml)\b")
_FAMILY = re.compile(r"(?:nvidia-)?([a-z]{2,})")

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


def chosen(found: Mapping[str, Source], likely: Sequence[Sequence[str]], where: str) -> str:
    """Return the name of the server that is meant; the others become its offers.

    Args:
        found: what starts a server, by file or service.
        likely: names of those that are likely meant, the likeliest first.
        where: the file or folder, for messages.

    Raises:
        SeveralServers: nothing tells which one is meant.
    """
    server = same_server([*found.values()])
    name = next((name for name, one in found.items() if one is server), "")
    if name:
        return name
    chats = [name for name, one in found.items() if one.launch.kind == "chat"]
    shallow = [name for name in found if name.count("/") == next(iter(found)).count("/")]
    known = [name for name, one in found.items() if "$" not in one.launch.model]
    for names in (*likely, known, shallow, chats):
        server = same_server([found[name] for name in names]) if names else None
        if server is not None:
            server.offers += [
                Offer(f"--variant {name}", f"{one.kind} that serves {one.launch.model}")
                for name, one in found.items()
                if name not in names
            ]
            return next(name for name in names if found[name] is server)
    raise several(f"{len(found)} different servers are started here", found, where)


def likely_of(kit: KitFolder, found: Mapping[str, Source]) -> list[list[str]]:
    """Return the files of a kit by whose name people start things; those that serve the model that
    its title names first; the one to which its start script or its README leads first."""
    usual = [name for name in found if _USUAL.fullmatch(Path(name).name)]
    starts = [one for one in kit.files if one.parent == kit.root and _USUAL.fullmatch(one.name)]
    title = f"{kit.root.resolve().name} {kit.readme.lstrip().partition(chr(10))[0]} ".lower()
    named = {name: source.repository or source.launch.model for name, source in found.items()}
    models = {name: one.rstrip("/").rpartition("/")[2].lower() for name, one in named.items()}
    families = [family[1] for family in map(_FAMILY.match, models.values()) if family]
    first = min((one for one in families if one in title), key=title.find, default="/")
    titled = [name for name, model in models.items() if first in model]
    led = leads_to(kit, "\n".join([*map(kit.text, starts), kit.readme]), found)
    return [usual, titled, [led] if led else []]


def leads_to(kit: KitFolder, text: str, found: Iterable[str]) -> str:
    """Return the file of these that a text names first; else the one to which the files lead that
    it names, and those that they name; empty where there is none."""
    names, texts = {(kit.root / name).resolve(): name for name in found}, [text]
    for _ in range(DEEPEST):
        named = (word for one in texts for word in islice(_NAMED.findall(one), MOST_NAMED))
        words = dict.fromkeys(named)
        files = dict.fromkeys(file for word in words if (file := kit.named(word)))
        if known := next((names[file] for file in files if file in names), ""):
            return known
        texts = [kit.text(file) for file in islice(files, MOST_FOLLOWED)]
    return ""


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
