"""An image out of Docker and into it again; a program in Docker's place has its archive."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from hostile import container
from hostile.container import FILE_TRICKS, FOLDER_TRICKS

from spark_cluster.node.store import image_work
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.image_blobs import common_layers, export, load, without_layers
from spark_cluster.node.values import ResourceError

REPOSITORY, COMMIT, REF = "image/0123456789abcdef", "a" * 40, "repo/image:1"
LAYERS = {"l1/layer.tar": b"one" * 1000, "l2/layer.tar": b"two" * 500, "l3/layer.tar": b"three"}
DOCKER = """#!/bin/sh
echo "$*" >> "$FOLDER/asked"
case $1 in
save) test -f "$FOLDER/saved.tar" || { echo "no such image" >&2; exit 1; }
      cat "$FOLDER/saved.tar" ;;
load) test ! -e "$FOLDER/full" || { echo "no space left on device" >&2; exit 1; }
      cat > "$FOLDER/loaded.tar"; echo "Loaded image: repo/image:1" ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what Docker saves, and later what it was given."""
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("FOLDER", str(folder))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def save(folder: Path, *, index: bool = True, cut: int = 0) -> None:
    """Make the archive as Docker 20.10 does: folders, and a link for a layer that comes twice."""
    paths = [*LAYERS, "l4/layer.tar"]
    files = {**LAYERS, "config.json": b"{}"}
    if index:
        about = [{"Config": "config.json", "RepoTags": [REF], "Layers": paths}]
        files["manifest.json"] = json.dumps(about).encode()
    with tarfile.open(folder / "saved.tar", "w") as archive:
        for name, content in files.items():
            if "/" in name:
                made = tarfile.TarInfo(name.partition("/")[0])
                made.type = tarfile.DIRTYPE
                archive.addfile(made)
            one = tarfile.TarInfo(name)
            one.size = len(content)
            archive.addfile(one, io.BytesIO(content))
        link = tarfile.TarInfo("l4/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../l2/layer.tar"
        archive.addfile(link)
    if cut:
        whole = (folder / "saved.tar").read_bytes()
        (folder / "saved.tar").write_bytes(whole[:cut])


def loaded(folder: Path) -> dict[str, bytes]:
    with tarfile.open(folder / "loaded.tar") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def exported(tmp_path: Path):
    cache = HubCache(tmp_path / "images", tmp_path / "ours")
    return cache, *export(cache, REPOSITORY, COMMIT, REF, lambda _count: None)


def test_what_is_loaded_is_what_was_saved(docker: Path, tmp_path: Path) -> None:
    save(docker)
    cache, manifest, layers = exported(tmp_path)
    assert layers == [*LAYERS, "l4/layer.tar"]
    assert len(manifest.blobs) == len(manifest.files) - 1, "the layer that is there twice"
    load(cache, manifest, lambda _count: None)
    found = loaded(docker)
    assert {name: found[name] for name in LAYERS} == LAYERS
    assert found["l4/layer.tar"] == LAYERS["l2/layer.tar"]


def test_layers_that_the_other_node_has_are_left_out(docker: Path, tmp_path: Path) -> None:
    save(docker)
    cache, manifest, layers = exported(tmp_path)
    less = without_layers(manifest, layers, 2)
    load(cache, less, lambda _count: None)
    assert set(loaded(docker)) == {
        "config.json", "manifest.json", "l3/layer.tar", "l4/layer.tar",
    }  # fmt: skip


def test_what_was_written_is_not_written_again(docker: Path, tmp_path: Path) -> None:
    save(docker)
    exported(tmp_path)
    exported(tmp_path)
    assert (docker / "asked").read_text().count("save") == 1
    cache = HubCache(tmp_path / "images")
    next(iter((cache.folder(REPOSITORY) / "blobs").iterdir())).unlink()
    exported(tmp_path)
    assert (docker / "asked").read_text().count("save") == 2


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({}, "no such image"),
        ({"index": False}, "ended with status 0"),
        ({"cut": 2000}, "docker save repo/image:1"),
    ],
)
def test_what_docker_does_not_give(docker: Path, tmp_path: Path, how, why: str) -> None:
    if how:
        save(docker, **how)
    with pytest.raises(ResourceError, match=why):
        exported(tmp_path)


def test_docker_that_refuses_it_says_why(docker: Path, tmp_path: Path) -> None:
    save(docker)
    cache, manifest, _ = exported(tmp_path)
    (docker / "full").touch()
    with pytest.raises(ResourceError, match="no space left on device"):
        load(cache, manifest, lambda _count: None)


def test_the_program_does_either(docker: Path, tmp_path: Path) -> None:
    save(docker)
    where = {"hub": str(tmp_path / "images"), "ours": str(tmp_path / "ours")}
    given = {"repository": REPOSITORY, "commit": COMMIT, "ref": REF, "size": 9}
    made = image_work.done({"what": "export", **where, **given})
    assert len(made["layers"]) == 4
    done = image_work.done({"what": "load", **where, "manifest": made["manifest"]})
    assert done == {"loaded": "Loaded image: repo/image:1"}


@pytest.mark.parametrize(
    ("images", "count"),
    [
        ([], 0),
        ([["a", "b"]], 2),
        ([["a", "x", "c"], ["a"]], 1),
        ([["b", "a"]], 0),
        ([["a", "b", "c", "d"]], 3),
    ],
)
def test_layers_count_from_the_lowest(images, count: int) -> None:
    assert common_layers(["a", "b", "c"], images) == count


PLACES = (".", "blobs", "blobs/exporting.incomplete", "exported.json", "BLOB")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("trick", [*FILE_TRICKS, "link to a folder"])
def test_nothing_is_followed_in_the_files_of_an_image(docker, tmp_path, trick, place):
    host = container.outside(tmp_path / "outside")
    save(docker)
    cache, manifest, _ = exported(tmp_path)
    tricks = {**FILE_TRICKS, "link to a folder": FOLDER_TRICKS["link"]}
    folder = cache.folder(REPOSITORY)
    blob = f"blobs/{manifest.files[0].blob}"
    container.leave(trick, folder / place.replace("BLOB", blob), host, tricks)
    with contextlib.suppress(ResourceError, OSError):
        load(cache, manifest, lambda _count: None)
    with contextlib.suppress(ResourceError, OSError):
        exported(tmp_path)
    container.untouched(host, cache.root, docker, read=trick == "hard link")
