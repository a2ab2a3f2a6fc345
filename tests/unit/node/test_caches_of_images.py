"""The folder of an image's caches: made, and never through a link."""

import os
from pathlib import Path

import pytest

from spark_cluster.node.beneath import NotFollowed
from spark_cluster.node.engine_caches import folder_of, of_environment, prepare, short
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError

ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
ROOT = "/srv/caches"


@pytest.fixture
def node(tmp_path: Path) -> Host:
    (tmp_path / ROOT[1:]).mkdir(parents=True)
    return Host(root=tmp_path)


def own(node: Host, image: str) -> Path:
    return node.path(folder_of(ROOT, short(image)))


def test_a_folder_for_each_image(node):
    prepare(node, ROOT, short(ONE))
    prepare(node, ROOT, short(OTHER))
    assert own(node, ONE).is_dir()
    assert own(node, OTHER).is_dir()
    assert own(node, ONE) != own(node, OTHER)
    assert of_environment("/opt/a") != of_environment("/opt/b")


def test_an_image_that_is_made_to_look_like_another_one_does_not_get_its_caches(node):
    """The digits in a folder's name can be found in a day, and what is there is executed."""
    alike = ONE[:19] + "2" * 52
    assert own(node, alike) == own(node, ONE)
    for _ in range(2):
        prepare(node, ROOT, short(ONE), ONE)
    with pytest.raises(ResourceError, match="another image") as caught:
        prepare(node, ROOT, short(alike), alike)
    assert ONE in caught.value.message
    prepare(node, ROOT, short(OTHER), OTHER)
    prepare(node, ROOT, short(ONE), ONE)


@pytest.mark.parametrize("place", ["images", f"images/{short(ONE)}"])
@pytest.mark.parametrize("what", ["link", "file", "fifo"])
def test_what_a_container_left_in_its_place_is_refused(node, tmp_path, place, what):
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
