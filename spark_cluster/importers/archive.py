"""The files of an archive (.tar.gz) whose checksum is known, fetched by HTTP."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import IO, Any

from spark_cluster.errors import Failed
from spark_cluster.importers.snapshot import Chosen, SourceFile
from spark_cluster.loader.registries import ARCHIVE_SCHEMES, Registry

TIMEOUT_S = 120.0
"""Seconds for the whole download."""

STALL_S = 20.0
"""Seconds without a byte after which a server is given up."""

LARGEST_ARCHIVE = 64 << 20
"""Bytes of an archive."""

LARGEST_CONTENT = 256 << 20
"""Bytes that an archive may unpack to; a small one can stand for an endless one."""

_BLOCK = 64 << 10


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to HTTP only: not to files of this machine or to FTP."""

    def redirect_request(self, *words: Any) -> urllib.request.Request | None:
        request, stream, code, _, headers, target = words
        if target.partition(":")[0] not in ARCHIVE_SCHEMES:
            why = "redirected to something that is not HTTP"
            raise urllib.error.HTTPError(request.full_url, code, why, headers, stream)
        return super().redirect_request(*words)


def files(registry: Registry, chosen: Chosen) -> list[SourceFile]:
    """Return the files that are taken.

    Raises:
        Failed: it cannot be fetched within the limits, is not the archive that the checksum
            names, or is none.
    """
    data = download(registry)
    found = hashlib.sha256(data).hexdigest()
    if found != registry.sha256:
        raise Failed(
            f"the archive of the registry '{registry.name}' has the sha256 {found}, "
            f"expected {registry.sha256}",
            where=registry.url,
            hint="it was changed or damaged: nothing of it is used",
        )
    try:
        return list(_members(data, chosen))
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise Failed(f"is not a .tar.gz: {error}", where=registry.url) from None


def download(registry: Registry) -> bytes:
    """Return the archive.

    A socket's limit is for each byte, so one thread fetches and another looks at the clock; what
    it leaves behind ends with the process, or with the next byte of the body.

    Raises:
        Failed: it cannot be fetched within the limits.
    """
    fetched: Future[bytes] = Future()

    def fetch() -> None:
        try:
            fetched.set_result(_fetch(registry, time.monotonic() + TIMEOUT_S))
        except BaseException as error:  # noqa: BLE001  (handed to who waits)
            fetched.set_exception(error)

    threading.Thread(target=fetch, name="archive", daemon=True).start()
    done, _ = wait([fetched], TIMEOUT_S)
    if not done:
        raise _too_slow(registry)
    return fetched.result()


def _fetch(registry: Registry, until: float) -> bytes:
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(registry.url, timeout=STALL_S) as answer:
            return b"".join(_blocks(answer, registry, until))
    except urllib.error.HTTPError as error:
        raise Failed(
            f"the server answers {error.code} {error.reason}", where=registry.url
        ) from None
    except http.client.HTTPException as error:
        raise Failed(f"cannot be fetched: {error!r}", where=registry.url) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise Failed(f"cannot be fetched: {reason}", where=registry.url) from None


def _too_slow(registry: Registry) -> Failed:
    return Failed(f"not fetched within {TIMEOUT_S:g} s", where=registry.url)


def _blocks(answer: IO[bytes], registry: Registry, until: float) -> Iterator[bytes]:
    size = 0
    while block := getattr(answer, "read1", answer.read)(_BLOCK):
        size += len(block)
        if size > LARGEST_ARCHIVE:
            raise Failed(f"larger than {LARGEST_ARCHIVE >> 20} MiB", where=registry.url)
        if time.monotonic() > until:
            raise _too_slow(registry)
        yield block


class _Unpacked(gzip.GzipFile):
    """The content of a .gz, as far as the limit."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > LARGEST_CONTENT:
            raise ValueError(f"it unpacks to more than {LARGEST_CONTENT >> 20} MiB")
        return super().read(size)


def _members(data: bytes, chosen: Chosen) -> Iterator[SourceFile]:
    with tarfile.open(fileobj=_Unpacked(fileobj=io.BytesIO(data)), mode="r|") as archive:
        for member in archive:
            path = member.name.removeprefix("./")
            if member.isdir() or not chosen.takes(path, member.size, regular=member.isreg()):
                continue
            content = archive.extractfile(member)
            if content is not None:
                yield SourceFile(path, content.read())
