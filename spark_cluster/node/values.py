"""Values that travel to a node, and what can be wrong there: content, secrets, resource errors.

Used on the laptop and on the node, so it imports the standard library only (Python >= 3.10).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path


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
