"""The folder of an image's caches: made, given what was shared before, never through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from factories import put

from spark_cluster.node import launch_records
from spark_cluster.node.beneath import NotFollowed
from spark_cluster.node.engine_caches import folder_of, of_environment, prepare, short
from spark_cluster.node.host import Host
from spark_cluster.node.launch_records import LaunchRecord

ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
ROOT = "/srv/caches"


@pytest.fixture
def noted() -> list[str]:
    return []


@pytest.fixture
def node(tmp_path: Path, noted: list[str]) -> Host:
    (tmp_path / ROOT[1:]).mkdir(parents=True)
    return Host(root=tmp_path, note=noted.append)


def own(node: Host, image: str) -> Path:
    return node.path(folder_of(ROOT, short(image)))


def shared(node: Host) -> None:
    put(node.path(f"{ROOT}/vllm/torch_compile_cache/key/rank_0_0/model"), "compiled")
    put(node.path(f"{ROOT}/triton/kernel"), "k")
    put(node.path(f"{ROOT}/huggingface/hub/models--a--b/blobs/1"), "weights")


def test_a_folder_for_each_image(node: Host, noted: list[str]) -> None:
    prepare(node, ROOT, short(ONE))
    prepare(node, ROOT, short(OTHER))
    assert own(node, ONE).is_dir()
    assert own(node, OTHER).is_dir()
    assert own(node, ONE) != own(node, OTHER)
    assert noted == []
    assert of_environment("/opt/a") != of_environment("/opt/b")


def test_the_only_image_that_was_served_takes_over_what_it_compiled(
    node: Host, noted: list[str]
) -> None:
    shared(node)
    launch_records.add(node.root, LaunchRecord("gemma", image=ONE))
    prepare(node, ROOT, short(ONE))
    compiled = own(node, ONE) / "vllm/torch_compile_cache/key/rank_0_0/model"
    assert compiled.read_text() == "compiled"
    assert not node.path(f"{ROOT}/vllm").exists()
    assert node.path(f"{ROOT}/huggingface/hub/models--a--b/blobs/1").exists(), "nothing is moved"
    assert "this image's own" in noted[0]
    prepare(node, ROOT, short(OTHER))
    assert list(own(node, OTHER).iterdir()) == []


@pytest.mark.parametrize("images", [(), (OTHER,), (ONE, OTHER)])
def test_what_another_image_may_have_written_is_left(
    node: Host, noted: list[str], images: tuple[str, ...]
) -> None:
    shared(node)
    for number, image in enumerate(images):
        launch_records.add(node.root, LaunchRecord(f"r{number}", image=image))
    prepare(node, ROOT, short(ONE))
    assert list(own(node, ONE).iterdir()) == []
    assert node.path(f"{ROOT}/triton/kernel").exists()
    (told,) = noted
    assert "vllm, triton" in told
    assert "caches prune" in told


@pytest.mark.parametrize("place", ["images", f"images/{short(ONE)}"])
@pytest.mark.parametrize("what", ["link", "file", "fifo"])
def test_what_a_container_left_in_its_place_is_refused(
    node: Host, tmp_path: Path, place: str, what: str
) -> None:
    """Before it had a folder of its own a container could write next to it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    path = node.path(f"{ROOT}/{place}")
    path.parent.mkdir(exist_ok=True)
    if what == "link":
        path.symlink_to(outside)
    elif what == "file":
        path.write_text("")
    else:
        os.mkfifo(path)
    with pytest.raises(NotFollowed):
        prepare(node, ROOT, short(ONE))
    assert list(outside.iterdir()) == []
