"""Values that travel to a node, and what can be wrong there: content, secrets and their masks,
resource errors, and the words for a fault of the node or of a project's code.

Used on the laptop and on the node, so it imports the standard library only (Python >= 3.10).
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus


class InvalidResource(ValueError):
    """A resource was declared with values that can never work; raised on construction."""


class ResourceError(Exception):
    """A resource cannot be observed or changed: what happened, and what to do.

    Args:
        message: one line that names the thing.
        hint: what to do next.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Missing(ResourceError):
    """Something this resource stands on is not there.

    In check mode, when an earlier resource will make it, the verdict is `unknown (after: ...)`;
    otherwise it is a failure.

    Args:
        claim: what is missing, as another resource `provides()` it, e.g. `user:nvidia`.
    """

    def __init__(self, claim: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.claim = claim


class Unknown(Exception):
    """Raised in check mode when the effect of this resource can only be known by running it."""


class Skip(Exception):
    """This resource is left as it is, although it differs; the text says why (`skipped`)."""


class RebootNeeded(Exception):
    """The document stops here: the laptop reboots the node and sends the rest."""


class Secret(str):
    """Text that never appears in an argument list, a log, a diff or the journal."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(***)"


@dataclass(frozen=True)
class Blob:
    """Content that stays on the laptop until the node says that it lacks it.

    Args:
        sha256: hex digest.
        size: bytes.
    """

    sha256: str
    size: int


@dataclass(frozen=True)
class LaptopFile:
    """Content of a file of the laptop; of any size, since little of it is in memory at a time.

    What is sent is a Blob; the file is read when a node lacks it.

    Args:
        path: on the laptop.
    """

    path: Path

    def blob(self) -> Blob:
        """Its digest and size now. Raises OSError when it cannot be read."""
        found, size = hashlib.sha256(), 0
        with self.path.open("rb") as source:
            while piece := source.read(1 << 20):
                found.update(piece)
                size += len(piece)
        return Blob(found.hexdigest(), size)


PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?(==[^\s*,;]+| @ \S+)( ;.*)?")
"""The form of a pinned requirement of Python, for the laptop and for the node."""


# Code of the user's project that runs on a node, and where in it an exception came from.

PROJECT_PACKAGE = "spark_cluster_project"
"""The package that a project's own code is imported as, on the laptop and on the node; its
resources are in `resources` below it. agent/bootstrap.py has the name again."""

PROJECT_RESOURCES = f"{PROJECT_PACKAGE}.resources"


def project_place(error: BaseException) -> str:
    """Return `resources/mount.py:12`, the innermost line of the project's code in a traceback.

    Returns:
        `""` when no line of it was involved.
    """
    import traceback  # late: the laptop wants only the names above, at once

    if isinstance(error, SyntaxError) and f"/{PROJECT_PACKAGE}/" in (error.filename or ""):
        return f"{_within(str(error.filename))}:{error.lineno or 1}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if f"/{PROJECT_PACKAGE}/" in frame.filename:
            return f"{_within(frame.filename)}:{frame.lineno}"
    return ""


def _within(filename: str) -> str:
    """A file's path as in the project's folder."""
    return filename.rpartition(f"/{PROJECT_PACKAGE}/")[2]


# Messages for faults of a node.


def explain(error: OSError, root: Path = Path("/")) -> str:
    """Describe an operating system's error: where, and how bad."""
    name = str(error.filename or "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        folder = Path(name).parent if name else root
        while not folder.exists():
            folder = folder.parent
        found = os.statvfs(folder)
        if error.errno == errno.ENOSPC and found.f_bavail and found.f_files and not found.f_favail:
            return f"no inode left on the disk of {folder} (df -i shows it)"
        free = found.f_bavail * found.f_frsize // 1024
        return f"no space left on the disk of {folder} ({free} KiB free)"
    text = error.strerror or str(error)
    return f"{name}: {text.lower()}" if name else text


OUR_FAULT = "this is a bug in spark-cluster, not a fault of the node: please report it"


def unforeseen(error: Exception) -> tuple[str, str]:
    """Return an exception that nothing foresaw in words, with its place, and whose fault it is."""
    text = f"{type(error).__name__}: {error}"
    own = project_place(error)
    if own:
        file = own.rpartition(":")[0]
        return f"{text} ({own})", f"this is a fault of the project's {file}: correct it there"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(place.filename).name}:{place.lineno})", OUR_FAULT


# Takes secret values out of everything that is shown, logged or sent back.
#
# A secret is found as it is, and as the usual programs write it: in JSON, in Python's `repr`, in a
# URL, quoted for a shell, in base64, and each of the longer lines of one that has several.

MASK = "***"
LONG = 8
"""Characters from which a line of a secret, or its base64 text, is masked by itself."""

_FIXED = ("event", "verdict", "req", "op", "id", "sha256")


def mask(value: Any, secrets: Iterable[str]) -> Any:
    """A copy of a JSON value in which each secret is replaced, wherever a text holds it.

    Protocol words (`event`, `verdict`) and names (`id`) stay, so that a short secret cannot break
    a message; the laptop masks names when it shows them.
    """
    forms = _all_forms(frozenset(s for s in secrets if s))
    return _mask(value, forms) if forms else value


@lru_cache(maxsize=64)
def _all_forms(secrets: frozenset[str]) -> tuple[str, ...]:
    """Each form of each secret, the longest first."""
    forms = {form for secret in secrets for form in _forms(secret)}
    return tuple(sorted(forms, key=len, reverse=True))


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms in which a secret may be written."""
    lines = [line for line in secret.split("\n") if len(line.strip()) >= LONG]
    for text in {secret, secret.strip(), *lines, *(line.strip() for line in lines)} - {""}:
        yield from _written(text)


def _written(text: str) -> Iterator[str]:
    """A text as it is, and as programs write it."""
    yield text
    yield from _base64(text)
    for write in _WRITERS:
        once = write(text)
        yield once
        yield from (again(once) for again in _ESCAPES)


@lru_cache(maxsize=64)
def marks_of(secrets: frozenset[str]) -> tuple[bytes, ...]:
    """The bytes by which a content is recognised as one that holds one of these secrets.

    A secret shorter than LONG characters is in too many files that do not hold it. So are the
    single lines of a longer one, which can be a whole configuration file.
    """
    texts = {text for secret in secrets for text in (secret, secret.strip()) if len(text) >= LONG}
    forms = {form for text in texts for form in _written(text)}
    return tuple(form.encode(errors="surrogateescape") for form in forms)


def _base64(text: str) -> Iterator[str]:
    """The part of its base64 text that is the same wherever it stands in what was encoded."""
    data = text.encode(errors="surrogateescape")
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        end = len(encoded) - (1 if (before + len(data)) % 3 else 0)
        inner = encoded[(0, 2, 3)[before] : end]
        if len(inner) >= LONG:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")


def _repr(text: str) -> str:
    return repr(text + "'\"")[1:-4].replace("\\'", "'")  # both quotes in it: as it is in "..."


def _repr_bytes(text: str) -> str:
    data = text.encode(errors="surrogateescape")
    return repr(data + b"'\"")[2:-4].replace("\\'", "'")


_ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    _repr,
    lambda text: _repr(text).replace("'", "\\'"),
    _repr_bytes,
    lambda text: _repr_bytes(text).replace("'", "\\'"),
)
"""JSON in ASCII and UTF-8; Python's text and bytes, each in double and in single quotes. Also used
twice: a traceback that shows JSON."""
_WRITERS: tuple[Callable[[str], str], ...] = (
    *_ESCAPES,
    lambda text: text.replace("'", "'\"'\"'"),
    lambda text: text.replace("'", "'\\''"),
    *(partial(quote, safe="", errors="surrogateescape"), partial(quote, errors="surrogateescape")),
    partial(quote_plus, errors="surrogateescape"),
)
"""A shell's two ways, and those of a URL: a value, a path, a form."""


def secrets_in(value: Any) -> set[str]:
    """The secrets of a request, as resources travel."""
    if isinstance(value, Mapping):
        own = {value["$secret"]} if isinstance(value.get("$secret"), str) else set()
        return own.union(*(secrets_in(v) for v in value.values()))
    if isinstance(value, list):
        return set().union(*(secrets_in(v) for v in value))
    return set()


def _mask(value: Any, forms: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        for form in forms:
            value = value.replace(form, MASK)
        return value
    if isinstance(value, Mapping):
        return {k: v if k in _FIXED else _mask(v, forms) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mask(v, forms) for v in value]
    return value


# Time on a node: this boot, which differs from the last one, and looks until something is so.

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id(root: Path = Path("/")) -> str:
    """Return the id of the boot; empty where there is none."""
    path = root / BOOT_ID.lstrip("/")
    return path.read_text().strip() if path.exists() else ""


def looks(within_s: float, every_s: float) -> Iterator[None]:
    """Yield for each look at something that is to become so: at least once, and at last when the
    time is over. Who has seen it leaves the loop.
    """
    until = time.monotonic() + within_s
    yield
    while time.monotonic() < until:
        time.sleep(every_s)
        yield
