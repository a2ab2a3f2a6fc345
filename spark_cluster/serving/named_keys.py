"""Keys of the endpoint by name, next to the inventory's: made, listed and revoked while it runs.

The head keeps the SHA-256 of each, its name and the day. HAProxy reads the file when it starts, and
is told of changes by its runtime API (HAProxy 2.6, management guide, 9.3: `add map`, `del map`).
Neither the proxy nor the engine is restarted, and no request is cut.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import Failed, UsageError
from spark_cluster.resources import Line, Secret
from spark_cluster.serving.proxy import (
    ADMIN_SOCKET,
    DESCRIPTION,
    NAMED_HEADER,
    NAMED_KEYS,
    UNIT,
    described,
)

if TYPE_CHECKING:
    from spark_cluster.runner.play import Play
    from spark_cluster.runner.session import Session

PREFIX = "sk-spark-"
"""Of each key: texts in which it turns up are known to hold a secret (`config/secret_text.py`)."""

BYTES = 32
"""Random bytes of a key."""

MOST = 1000
"""Named keys of an endpoint."""

ANSWERS_S = 10.0
"""Seconds for an answer of the runtime API, which comes at once."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
INVENTORY = "inventory"
"""The inventory's own key in the proxy's log."""

_ENTRY = re.compile(rf"([0-9A-F]{{64}}) ({NAME.pattern})/(\d{{4}}-\d\d-\d\d)")

_TALK = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as proxy:
    proxy.settimeout(5)
    proxy.connect(sys.argv[1])
    proxy.sendall(sys.stdin.buffer.read())
    while block := proxy.recv(65536):
        sys.stdout.buffer.write(block)
"""


@dataclass(frozen=True)
class NamedKey:
    """A key of the endpoint, by its name.

    Attributes:
        name: as it was given.
        added: the day, YYYY-MM-DD.
        in_force: the proxy that runs takes it.
    """

    name: str
    added: str
    in_force: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as `keys --json` prints it."""
        return dict(vars(self))


def check_name(name: str) -> None:
    """Raise UsageError for a name that cannot be used."""
    if not NAME.fullmatch(name) or name == INVENTORY:
        raise UsageError(
            f"{name!r} is no name for a key",
            hint="letters, digits and ._- up to 64, such as alice or ci-runner; "
            f"`{INVENTORY}` is the inventory's own",
        )


def new_key() -> str:
    """Return a new random key."""
    return PREFIX + secrets.token_urlsafe(BYTES)


def listed(session: Session) -> list[NamedKey]:
    """Return the named keys of the head's endpoint, by name."""
    known = _read(session)
    taken = _map(session)[1] if known else set()
    found = [NamedKey(name, day, digest in taken) for digest, name, day in known]
    return sorted(found, key=lambda key: key.name)


def add(play: Play, name: str, key: str, day: str) -> None:
    """Have the endpoint take another key.

    Raises:
        UsageError: the endpoint asks for no key, or there is a key of that name already.
        Failed: the proxy could not be told; the key is in force when it starts again.
    """
    session, head = play.session(play.head), play.head.name
    _must_ask_for_keys(session, head)
    known = _read(session)
    if any(found == name for _, found, _ in known):
        raise UsageError(
            f"there is a key {name!r} already",
            where=head,
            hint=f"spark-cluster keys revoke {name} makes room for a new one",
        )
    if len(known) >= MOST:
        raise UsageError(f"there are {MOST} keys already", where=head, hint="revoke some of them")
    digest = hashlib.sha256(key.encode()).hexdigest().upper()
    value = f"{name}/{day}"
    play.apply(play.head, [_header(), Line(NAMED_KEYS, line=Secret(f"{digest} {value}"))])
    if not play.check:
        _tell(session, head, ["add map {map} " + f"{digest} {value}"])


def revoke(play: Play, name: str) -> None:
    """Have the endpoint refuse a key from now on; requests that it has begun go on.

    Raises:
        UsageError: there is no key of that name.
        Failed: the proxy could not be told; it takes the key until it is restarted.
    """
    session, head = play.session(play.head), play.head.name
    entries = [entry for entry in _read(session) if entry[1] == name]
    if not entries:
        raise UsageError(
            f"there is no key {name!r}", where=head, hint="spark-cluster keys list shows them"
        )
    lines = [f"{digest} {found}/{day}" for digest, found, day in entries]
    play.apply(play.head, [Line(NAMED_KEYS, line=Secret(line), state="absent") for line in lines])
    if not play.check:
        _tell(session, head, [f"del map {{map}} {digest}" for digest, _, _ in entries])


def _header() -> Line:
    return Line(NAMED_KEYS, line=NAMED_HEADER, create=True, mode=0o600)


def _must_ask_for_keys(session: Session, node: str) -> None:
    files = session.request("gather", files={"endpoint": DESCRIPTION})["files"]
    access = described(files["endpoint"])
    if access is None or not access.api_key:
        raise UsageError(
            "the endpoint there asks for no key" if access else "no proxy guards the endpoint",
            where=node,
            hint="give it the first one: `serve: {api_key: {env: NAME}}` in the inventory, then up",
        )


def _read(session: Session) -> list[tuple[str, str, str]]:
    """Return digest, name and day of each key in the head's file; other lines are left out."""
    text = session.request("gather", files={"keys": NAMED_KEYS})["files"]["keys"] or ""
    found = (_ENTRY.fullmatch(line) for line in text.splitlines()[: 2 * MOST])
    return [(entry[1], entry[2], entry[3]) for entry in found if entry is not None]


def _map(session: Session) -> tuple[str, set[str]]:
    """Return the number of the map in the proxy that runs and the digests in it, or nothing."""
    shown = _talk(session, "show map")
    ending = f"/{NAMED_KEYS.rpartition('/')[2]})"
    number = next(
        (line.split()[0] for line in shown.splitlines() if ending in line and line[:1].isdigit()),
        "",
    )
    if not number:
        return "", set()
    entries = _talk(session, f"show map #{number}").splitlines()
    return f"#{number}", {words[1] for line in entries if len(words := line.split()) > 1}


def _tell(session: Session, node: str, commands: Sequence[str]) -> None:
    number, _ = _map(session)
    answer = "no answer"
    if number:
        answer = _talk(session, *(command.format(map=number) for command in commands)).strip()
    if answer:
        raise Failed(
            f"the proxy ({UNIT}) that runs was not told: {answer[:200]}",
            where=node,
            hint="spark-cluster status shows whether it runs; `spark-cluster up` starts one that "
            "takes the keys of the file",
        )


def _talk(session: Session, *commands: str) -> str:
    """Return what the runtime API answers; empty when no proxy has one."""
    argv = ["python3", "-I", "-S", "-c", _TALK, ADMIN_SOCKET]
    done = session.run(argv, stdin=f"{'; '.join(commands)}\n", timeout=ANSWERS_S)
    return done.stdout if done.status == 0 else ""
