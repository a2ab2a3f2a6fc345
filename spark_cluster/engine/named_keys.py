"""Keys of the endpoint by name, next to the inventory's: made, listed and revoked while it runs.

The head keeps the SHA-256 of each, its name and the day. HAProxy reads the file when it starts, and
is told of changes by its runtime API (HAProxy 2.6, management guide, 9.3: `add map`, `del map`).
Neither the proxy nor the engine is restarted, and no request is cut.

A run may be cut between the two. A key is therefore written into the file before the proxy accepts
it, and removed from the proxy before the file. What either of them has is listed and can be
revoked.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from spark_cluster.config.document import Document
from spark_cluster.engine.proxy import (
    ADMIN_SOCKET,
    DESCRIPTION,
    NAMED_HEADER,
    NAMED_KEYS,
    UNIT,
    described,
)
from spark_cluster.errors import Failed, UsageError
from spark_cluster.node import probes
from spark_cluster.resources import Line, Secret
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

PREFIX = "sk-spark-"
"""Of each key: texts in which it turns up are known to hold a secret (`config/secret_text.py`)."""

BYTES = 32
"""Random bytes of a key."""

MOST = 1000
"""Named keys of an endpoint."""

ANSWERS_S = 5.0
"""Seconds for an answer of the runtime API, which comes at once."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
INVENTORY = "inventory"
"""The inventory's own key in the proxy's log."""

_LINE = re.compile(r"([0-9A-F]{64})[ \t]*(.*)")
"""A line of HAProxy's map file. Any text may follow the digest; ours is `NAME/DATE`."""

FILE = Line(NAMED_KEYS, line=NAMED_HEADER, create=True, mode=0o600)
"""The file of named keys, which only root reads."""


@dataclass(frozen=True)
class NamedKey(Document):
    """A key of the endpoint, by its name.

    Attributes:
        name: as it was given.
        added: the day, YYYY-MM-DD; empty for a key that was put into the file by hand.
        in_force: the running proxy accepts it.
        kept: the head's file has it, so that the next start of the proxy accepts it.
    """

    name: str
    added: str
    in_force: bool
    kept: bool


@dataclass(frozen=True)
class _Entry:
    """An entry of the map: the digest of a key, and what HAProxy gives for it."""

    digest: str
    value: str

    @property
    def name(self) -> str:
        return self.value.partition("/")[0]


def check_name(name: str) -> None:
    """Raise UsageError for a name that a new key cannot have."""
    if not NAME.fullmatch(name) or name == INVENTORY:
        raise UsageError(
            f"{name!r} is no name for a key",
            hint="letters, digits and ._- up to 64, such as alice or ci-runner; "
            f"`{INVENTORY}` is the inventory's own",
        )


def new_key() -> str:
    """Return a new random key."""
    return PREFIX + secrets.token_urlsafe(BYTES)


def listed(session: Session, head: str) -> list[NamedKey]:
    """Return the named keys of the head's endpoint, by name.

    Raises:
        Failed: the proxy runs and does not answer.
    """
    kept, accepted = _kept(session), _accepted(session, head)[1]
    found = [
        NamedKey(entry.name, entry.value.partition("/")[2], entry in accepted, entry in kept)
        for entry in kept.keys() | accepted
    ]
    return sorted(found, key=lambda key: (key.name, key.added))


def add(play: Play, name: str, key: str, day: str) -> None:
    """Have the endpoint accept another key.

    Raises:
        UsageError: the endpoint asks for no key, or there is a key of that name already.
        Failed: the proxy could not be told; the key is in force when it starts again.
    """
    session, head = play.session(play.head), play.head.name
    _must_ask_for_keys(session, head)
    known = _kept(session).keys() | _accepted(session, head)[1]
    if any(entry.name == name for entry in known):
        raise UsageError(
            f"there is a key {name!r} already",
            where=head,
            hint=f"spark-cluster keys revoke {name} makes room for a new one",
        )
    if len(known) >= MOST:
        raise UsageError(f"there are {MOST} keys already", where=head, hint="revoke some of them")
    entry = _Entry(hashlib.sha256(key.encode()).hexdigest().upper(), f"{name}/{day}")
    play.apply(play.head, [FILE, Line(NAMED_KEYS, line=Secret(f"{entry.digest} {entry.value}"))])
    if not play.check:
        _have_accepted(session, head, entry)


def revoke(play: Play, name: str) -> None:
    """Have the endpoint refuse a key from now on; requests that it has begun go on.

    Raises:
        UsageError: neither the file nor the running proxy has a key of that name.
        Failed: the proxy could not be told; the key stays listed.
    """
    session, head = play.session(play.head), play.head.name
    kept = _kept(session)
    found = {e for e in kept.keys() | _accepted(session, head)[1] if e.name == name}
    if not found:
        raise UsageError(
            f"there is no key {name!r}", where=head, hint="spark-cluster keys list shows them"
        )
    if not play.check:
        _have_refused(session, head, found)
    lines = [kept[entry] for entry in found if entry in kept]
    play.apply(play.head, [Line(NAMED_KEYS, line=Secret(line), state="absent") for line in lines])
    if not play.check:  # a proxy that has started meanwhile has read the file as it was
        _have_refused(session, head, found)


def _must_ask_for_keys(session: Session, node: str) -> None:
    files = session.request("gather", files={"endpoint": DESCRIPTION})["files"]
    access = described(files["endpoint"])
    if access is None or not access.api_key:
        raise UsageError(
            "the endpoint there asks for no key" if access else "no proxy guards the endpoint",
            where=node,
            hint="give it the first one: `serve: {api_key: {env: NAME}}` in the inventory, then up",
        )


def _kept(session: Session) -> dict[_Entry, str]:
    """Return the entries of the head's file, each with its line."""
    text = session.request("gather", files={"keys": NAMED_KEYS})["files"]["keys"] or ""
    found = ((_LINE.fullmatch(line.strip()), line) for line in text.splitlines())
    return {_Entry(entry[1], entry[2]): line for entry, line in found if entry is not None}


def _accepted(session: Session, node: str) -> tuple[str, set[_Entry]]:
    """Return the number of the running proxy's map and its entries; none without a proxy."""
    shown = _talk(session, node, "show map") or ""
    ending = f"/{NAMED_KEYS.rpartition('/')[2]})"
    number = next(
        (line.split()[0] for line in shown.splitlines() if ending in line and line[:1].isdigit()),
        "",
    )
    if not number:
        return "", set()
    lines = (_talk(session, node, f"show map #{number}") or "").splitlines()
    found = (_LINE.fullmatch(line.partition(" ")[2].strip()) for line in lines)
    return f"#{number}", {_Entry(entry[1], entry[2]) for entry in found if entry is not None}


def _have_accepted(session: Session, node: str, entry: _Entry) -> None:
    number, accepted = _accepted(session, node)
    if not number:
        raise _not_told("it does not run, or takes no named keys", node)
    if entry not in accepted:  # it may have started, and read the file, just now
        _tell(session, node, [f"add map {number} {entry.digest} {entry.value}"])


def _have_refused(session: Session, node: str, entries: set[_Entry]) -> None:
    number, accepted = _accepted(session, node)
    _tell(session, node, [f"del map {number} {e.digest}" for e in entries & accepted])


def _tell(session: Session, node: str, commands: list[str]) -> None:
    answer = (_talk(session, node, *commands) or "").strip() if commands else ""
    if answer:
        raise _not_told(answer[:200], node)


def _not_told(why: str, node: str) -> Failed:
    return Failed(
        f"the proxy ({UNIT}) that runs was not told: {why}",
        where=node,
        hint="spark-cluster status shows whether it runs; `spark-cluster up` starts one that "
        "takes the keys of the file",
    )


def _talk(session: Session, node: str, *commands: str) -> str | None:
    """Return what the runtime API answers; None when no proxy runs that has one.

    Raises:
        Failed: the proxy does not answer.
    """
    done = session.run(
        [ADMIN_SOCKET, str(ANSWERS_S)],
        program=f"{probes.__name__}:talk",
        stdin=f"{'; '.join(commands)}\n",
        timeout=4 * ANSWERS_S,
    )
    if done.status == probes.NOT_RUNNING:
        return None
    if done.status != 0:
        said = done.stderr.strip().rpartition("\n")[2] or f"status {done.status}"
        raise Failed(
            f"the proxy ({UNIT}) does not answer on {ADMIN_SOCKET}: {said[:200]}",
            where=node,
            hint=f"look at it with `systemctl status {UNIT}` on the node, then run this again",
        )
    return done.stdout
