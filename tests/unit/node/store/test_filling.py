"""What fills a cache: the first error ends all of it."""

import hashlib
import threading
from collections.abc import Iterator

import pytest

from spark_cluster.node.store.download import FileSource, Filling
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import SHA256, Manifest, StoredFile
from spark_cluster.node.values import ResourceError

CONTENTS = {"small.bin": b"a" * 10, "large.bin": b"b" * 1000}


class Failing(FileSource):
    """It cannot give the small file; the large one is looked at until that is known."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ended = threading.Event()

    def content(self, file: StoredFile, begin: int) -> Iterator[bytes]:
        self.asked.append(file.path)
        if file.path == "small.bin":
            raise OSError(28, "No space left on device")
        yield CONTENTS[file.path][begin:]

    def pause(self, error: Exception, failures: int) -> float:
        raise ResourceError(f"{error} {failures}")

    def alive(self, _size: int = 0) -> None:
        self.ended.wait(10)

    def close(self) -> None:
        self.ended.set()


def test_a_file_whose_half_was_still_read_is_not_begun_after_an_error(tmp_path):
    files = (
        StoredFile(name, len(content), hashlib.sha256(content).hexdigest(), SHA256)
        for name, content in CONTENTS.items()
    )
    manifest = Manifest("org/model", "0" * 40, tuple(sorted(files)))
    cache, source = HubCache(tmp_path / "hub", tmp_path / "ours"), Failing()
    large = next(file for file in manifest.files if file.path == "large.bin")
    cache.files.make(cache.blobs(manifest.repository))
    with cache.half(manifest.repository, large) as half:
        half.add(b"b" * 500)
    with pytest.raises(ResourceError, match="No space left"):
        Filling(cache, manifest, source, workers=2, kept_free=0).run()
    assert source.asked == ["small.bin"]
