"""An image of Docker's as the contents of a model: what copies models copies it, too.

`docker save` writes the layers as plain tar files, whose SHA-256 is what the image's own
configuration lists (opencontainers/image-spec, config.md, `rootfs.diff_ids`). They become blobs of
a hub cache of their own; `docker load` reads the same archive again, made of the blobs. It needs no
layer that the node has below the same layers (moby, image/tarexport/load.go); the containerd store
needs all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

from spark_cluster.node.open_files import write_whole
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import SHA256, BadManifest, Manifest, StoredFile
from spark_cluster.node.values import ResourceError

INDEX = "manifest.json"
"""File of the archive that names the layers in their order."""
KEPT = "exported.json"
"""File next to the blobs, once all of them are there."""
PIECE = 4 << 20
LARGEST_INDEX = 16 << 20

OnBytes = Callable[[int], None]


def export(
    cache: HubCache, repository: str, commit: str, ref: str, on_bytes: OnBytes
) -> tuple[Manifest, list[str]]:
    """Write an image of this node's into the cache; one that is there already is not read again.

    Returns:
        Its files, and the paths of its layers, the lowest first.

    Raises:
        ResourceError: Docker does not give it.
        OSError: it cannot be written.
    """
    with alone(cache, repository):
        kept = _kept(cache, repository, commit)
        if kept is None:
            cache.files.make(cache.blobs(repository), 0o700)
            files = _Saved(cache, repository, on_bytes).read(ref)
            document = {"repository": repository, "commit": commit, "files": files}
            kept = Manifest.from_document(document)
            path = cache.folder(repository) / KEPT
            cache.files.write(path, json.dumps(kept.document()).encode(), 0o600)
        return kept, layers_of(cache, kept)


def _kept(cache: HubCache, repository: str, commit: str) -> Manifest | None:
    """Return what an earlier export has written, if it is whole."""
    try:
        text = cache.files.read(cache.folder(repository) / KEPT, LARGEST_INDEX)
        found = Manifest.from_text(text)
    except (OSError, BadManifest):
        return None
    same = (found.repository, found.commit) == (repository, commit)
    return found if same and not cache.lacking(found).paths else None


class _Saved:
    """What `docker save` writes, as blobs."""

    def __init__(self, cache: HubCache, repository: str, on_bytes: OnBytes) -> None:
        self.cache, self.repository, self.on_bytes = cache, repository, on_bytes
        self.files: dict[str, StoredFile] = {}

    def read(self, ref: str) -> list[dict[str, Any]]:
        """Run it, and return its files. Raises ResourceError."""
        argv = ["docker", "save", ref]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL
            ) as saving,
        ):
            try:
                # What Docker says when it gives nothing is the better reason.
                with (
                    contextlib.suppress(tarfile.ReadError),
                    tarfile.open(fileobj=saving.stdout, mode="r|") as archive,
                ):
                    for member in archive:
                        self._take(archive, member)
            except BaseException:
                saving.kill()
                raise
            status = saving.wait()
            errors.seek(0)
            said = errors.read(2000).decode(errors="replace").strip()
        if status or INDEX not in self.files:
            raise ResourceError(f"docker save {ref}: {said or f'ended with status {status}'}")
        return [vars(file) for file in self.files.values()]

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = posixpath.normpath(member.name)
        if member.issym():  # a layer that the image has twice
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            if target in self.files:
                same = self.files[target]
                self.files[name] = StoredFile(name, same.size, same.blob, same.algorithm)
            return
        source = archive.extractfile(member)
        if source is not None:  # no folder
            self.files[name] = self._kept(name, source)

    def _kept(self, name: str, source: IO[bytes]) -> StoredFile:
        part = self.cache.incomplete(self.repository, "exporting")
        self.cache.files.remove(part)
        digest, size = hashlib.sha256(), 0
        handle = self.cache.files.create(part)
        try:
            while piece := source.read(PIECE):
                write_whole(handle, piece)
                digest.update(piece)
                size += len(piece)
                self.on_bytes(len(piece))
            blob = digest.hexdigest()
            self.cache.files.settle(handle, part, self.cache.blob(self.repository, blob))
        finally:
            os.close(handle)
        return StoredFile(name, size, blob, SHA256)


def layers_of(cache: HubCache, manifest: Manifest) -> list[str]:
    """Return the paths of the layers, the lowest first.

    Raises:
        ResourceError: the archive does not name them.
    """
    index = next((file for file in manifest.files if file.path == INDEX), None)
    try:
        if index is None or index.size > LARGEST_INDEX:
            raise ValueError
        with os.fdopen(cache.open(manifest.repository, index), "rb") as opened:
            found = json.loads(opened.read(LARGEST_INDEX))
        return [posixpath.normpath(str(path)) for path in found[0]["Layers"]]
    except (OSError, ValueError, LookupError, TypeError):
        raise ResourceError("docker save has written an archive without its manifest") from None


def load(cache: HubCache, manifest: Manifest, on_bytes: OnBytes) -> str:
    """Give Docker an image of the cache, without the layers that the manifest leaves out.

    Returns:
        What Docker says that it has loaded.

    Raises:
        ResourceError: Docker refuses it.
    """
    with (
        tempfile.TemporaryFile() as printed,
        subprocess.Popen(
            ["docker", "load"], stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT
        ) as loading,
    ):
        # Docker that ends early says why itself.
        with contextlib.suppress(BrokenPipeError):
            _write(cache, manifest, loading.stdin, on_bytes)
        with contextlib.suppress(BrokenPipeError):
            if loading.stdin is not None:
                loading.stdin.close()
        status = loading.wait()
        printed.seek(0)
        said = printed.read(4000).decode(errors="replace").strip()
    if status:
        raise ResourceError(f"docker load: {said.rpartition(chr(10))[2] or status}")
    return said


def _write(cache: HubCache, manifest: Manifest, out: IO[bytes] | None, on_bytes: OnBytes) -> None:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for file in manifest.files:
            about = tarfile.TarInfo(file.path)
            about.size, about.mode = file.size, 0o644
            with os.fdopen(cache.open(manifest.repository, file), "rb") as opened:
                archive.addfile(about, opened)
            on_bytes(file.size)


def common_layers(wanted: Sequence[str], images: Sequence[Sequence[str]]) -> int:
    """Return the number of the lowest layers that one of the images has in the same order."""

    def shared(image: Sequence[str]) -> int:
        return next(
            (n for n, (a, b) in enumerate(zip(wanted, image, strict=False)) if a != b),
            min(len(wanted), len(image)),
        )

    return max(map(shared, images), default=0)


def without_layers(manifest: Manifest, layers: Sequence[str], count: int) -> Manifest:
    """Return the files without the lowest `count` layers; one that is needed higher up stays."""
    left_out = set(layers[:count]) - set(layers[count:])
    files = [vars(file) for file in manifest.files if file.path not in left_out]
    return Manifest.from_document(
        {"repository": manifest.repository, "commit": manifest.commit, "files": files}
    )
