"""The hub cache on a real folder: what is there, what is damaged, what must not be followed."""

import os
from pathlib import Path

import pytest
from cases import each_case, each_row
from model_content import COMMIT, REPOSITORY, content, file_of, model

from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import INCOMPLETE, BadManifest, Manifest, StoredFile
from spark_cluster.node.store.verify import verify
from spark_cluster.node.values import ResourceError

CONTENTS = {
    "config.json": b"{}",
    "model.safetensors": content(300_000, 1),
    "deep/er/extra.bin": content(1000, 2),
}


@pytest.fixture
def cache(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "hub")


def test_what_is_missing_counts_half_files(cache):
    manifest = model(cache.root, CONTENTS)
    blob = cache.blob(REPOSITORY, manifest.files[-1].blob)
    blob.rename(f"{blob}{INCOMPLETE}")
    os.truncate(f"{blob}{INCOMPLETE}", 100_000)
    missing = cache.missing(manifest)
    assert [file.path for file in missing.blobs] == ["model.safetensors"]
    assert (missing.begun, missing.size) == (100_000, 200_000)
    with pytest.raises(ResourceError, match=r"model\.safetensors is not complete"):
        cache.publish(manifest)


def test_broken_links_are_made_again(cache):
    manifest = model(cache.root, CONTENTS)
    link = cache.snapshot(REPOSITORY, COMMIT) / "config.json"
    link.unlink()
    link.symlink_to("/etc/passwd")
    with pytest.raises(ResourceError, match="does not lead to its repository's blobs"):
        cache.found(REPOSITORY, COMMIT)
    assert cache.missing(manifest).links == ("config.json",)
    cache.publish(manifest)
    assert link.read_bytes() == b"{}"
    link.unlink()
    link.symlink_to("../../blobs/gone")
    with pytest.raises(ResourceError, match="broken"):
        cache.found(REPOSITORY, COMMIT)


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "", "a\nb", "a\\b", "x\x1b[2J"]
)
def test_a_name_outside_of_the_folder_is_refused(path):
    listed = {**vars(file_of("a", b"")), "path": path}
    with pytest.raises(BadManifest):
        Manifest.from_document({"repository": "o/m", "commit": COMMIT, "files": [listed]})


@each_case(__file__, "false_manifests.json")
def test_a_manifest_that_cannot_be_true_is_refused(case):
    document = {"repository": "o/m", "commit": COMMIT, "files": [vars(file_of("a", b""))]}
    assert Manifest.from_document(document).size == 0
    with pytest.raises(BadManifest):
        Manifest.from_document({**document, **case})


def test_a_branch_cannot_be_written_outside_of_refs(cache):
    manifest = model(cache.root, CONTENTS)
    for name in ("../main", "/etc/x", "a/../../b"):
        with pytest.raises(ResourceError, match="not the name of a branch"):
            cache.publish(manifest, name)


def test_what_has_no_hash_is_said(cache):
    manifest = model(cache.root, CONTENTS)
    odd = StoredFile("odd.bin", 3, "W-abc", "")
    cache.blob(REPOSITORY, odd.blob).write_bytes(b"abc")
    whole = Manifest(REPOSITORY, COMMIT, (*manifest.files, odd))
    assert verify(cache, whole).unchecked == ("odd.bin",)


@each_row(__file__, "half_models.json", "models")
def test_what_another_tool_has_downloaded_is_used_only_if_it_is_whole(cache, contents, words):
    model(cache.root, {name: text.encode() for name, text in contents.items()})
    with pytest.raises(ResourceError, match=words):
        cache.found(REPOSITORY, COMMIT)
