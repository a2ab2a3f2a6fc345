"""Registry digests of images that came by copy: `docker load` does not know where an image was
pulled, so a recipe's pinned digest would never be found again on the node that got the copy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from spark_cluster.node import durable, paths

FILE = paths.IMAGE_DIGESTS
"""On a node: id of an image to digests. An id is a hash of what it names, so this stays true."""

MOST = 100
"""Images that are kept, those written last."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def remembered(path: Path, image: str) -> list[str]:
    """Return the digests under which an image was pulled on the node that it came from."""
    return _read(path).get(image, [])


def remember(path: Path, image: str, digests: Iterable[str]) -> None:
    """Keep an image's digests.

    Raises:
        OSError: the file cannot be written.
    """
    known = _read(path)
    wanted = sorted(_valid([*known.pop(image, []), *digests]))
    if not wanted or not _DIGEST.fullmatch(image):
        return
    kept = dict([*known.items(), (image, wanted)][-MOST:])
    durable.make_folder(path.parent)
    durable.write_file(path, json.dumps(kept).encode())


def _read(path: Path) -> dict[str, list[str]]:
    """Return what the file holds; a damaged one costs a pull and no more."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    items = found.items() if isinstance(found, dict) else ()
    return {image: _valid(digests) for image, digests in items if isinstance(digests, list)}


def _valid(digests: Iterable[object]) -> list[str]:
    return list({one: None for one in digests if isinstance(one, str) and _DIGEST.fullmatch(one)})
