"""Patches: where they lie, how they are mounted, and that a missing one is found in time."""

import pytest
from fake_programs import Said
from piped_cluster import Make, PipedCluster
from serve_plans import bare_server, located, snapshot_of

from spark_cluster.config.project import Project
from spark_cluster.config.recipe_settings import FOLDER, mounted_patches
from spark_cluster.config.recipes import load_recipe
from spark_cluster.engine import fetch
from spark_cluster.errors import Failed, Refused
from spark_cluster.resources import LaptopFile

TEXT = """\
name: r
model: {name: org/m, served_name: m}
image: {ref: "repo/image:1"}
patches:
  - {file: fix.py, target: /opt/engine/fix.py, why: a test}
  - {file: mine/other.py, origin: laptop, target: /opt/engine/other.py, why: another}
"""
IMAGE = "repo/image:1"
OF_MODEL = f"{snapshot_of('org/m')}/fix.py"


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/other.py").write_text("x = 1\n")
    (tmp_path / "r.yaml").write_text(TEXT)
    return located(load_recipe(tmp_path / "r.yaml", Project(tmp_path)))


def test_they_are_mounted_read_only(recipe, tmp_path, monkeypatch):
    """Another content of the laptop's file is another mount, so that a new container is made."""
    monkeypatch.chdir("/")
    first, second = mounted_patches(recipe)
    assert first.volume == f"{OF_MODEL}:/opt/engine/fix.py:ro"
    source, target, mode = second.volume.split(":")
    assert source.startswith("/var/lib/spark-cluster/patches/")
    assert (source.rpartition("/")[2], target, mode) == ("other.py", "/opt/engine/other.py", "ro")
    assert second.upload == tmp_path / "mine/other.py", "relative to the recipe"
    second.upload.write_text("x = 2\n")
    assert second.source != mounted_patches(recipe)[1].source


def test_the_laptops_file_is_sent_to_a_folder_of_root(recipe, tmp_path):
    folder, file = fetch.patch_files(mounted_patches(recipe))
    assert (folder.path, folder.mode) == (file.path.rpartition("/")[0], 0o700)
    assert file.content == LaptopFile(tmp_path / "mine/other.py")


def test_one_that_the_laptop_lacks(recipe, tmp_path):
    (tmp_path / "mine/other.py").unlink()
    with pytest.raises(Refused, match="is not on this machine") as caught:
        mounted_patches(recipe)
    assert "relative to the recipe" in caught.value.hint


@pytest.fixture(scope="module")
def cluster(lasting_cluster: Make) -> PipedCluster:
    return lasting_cluster("spark1", "spark2")


def require(
    cluster, recipe, *, there=(OF_MODEL,), in_image=("/opt/engine/fix.py", "/opt/engine/other.py"),
    status=0,
):  # fmt: skip
    """Look for a recipe's patches on nodes that have these files, and an image that has these."""

    def test(words, _stdin):
        known = words[-1] in there or words[-1].startswith(FOLDER)
        return Said(status=0 if known else 1)

    def docker(words, _stdin):
        assert words[:2] == ["run", "--rm"]
        assert IMAGE in words
        asked = words[words.index("sh", words.index("-c")) + 1 :]
        missing = [path for path in asked if path not in in_image]
        return Said("".join(f"{path}\n" for path in missing), "no such image", status)

    for node in cluster.nodes.values():
        node.programs.update(test=test, docker=docker)
    fetch.require_patches(cluster.play, cluster.play.nodes, IMAGE, mounted_patches(recipe))


def test_all_is_there(cluster, recipe):
    require(cluster, recipe)


@pytest.mark.parametrize(
    ("lacks", "error", "said", "where"),
    [
        ({"there": ()}, Refused, f"the patch {OF_MODEL} is not there", "spark1"),
        ({"in_image": ()}, Refused, r"image:1 has no /opt/engine/fix\.py", ""),
        ({"status": 125}, Failed, "no such image", ""),
    ],
    ids=["the model lacks it", "the image lacks its target", "the image cannot be looked into"],
)
def test_one_that_would_not_be_used(cluster, recipe, lacks, error, said, where):
    """Docker would make a target that the image lacks, and the patch would be in nobody's way."""
    with pytest.raises(error, match=said) as caught:
        require(cluster, recipe, **lacks)
    assert where in caught.value.where


def test_a_recipe_without_patches_asks_nothing(cluster, tmp_path):
    plain = load_recipe("gemma4-31b-nvfp4", Project(tmp_path))
    assert mounted_patches(plain) == ()
    asked = len(cluster.head.programs.calls)
    fetch.require_patches(cluster.play, cluster.play.nodes, IMAGE, ())
    assert len(cluster.head.programs.calls) == asked


@pytest.mark.parametrize(
    ("source", "place", "refused"),
    [
        ("/srv/models/a/b", "/", True),
        ("/srv/models/a/shadow", "/etc/shadow", True),
        ("/srv/models/a/b", "/srv/other", False),
        ("/srv/models/m/x", "/data/models/m/blobs/y", False),
    ],
    ids=["the whole node", "a file of root's", "what it may read anyway", "within the model"],
)
def test_no_path_of_a_recipe_is_a_link_that_a_container_left(cluster, source, place, refused):
    """Docker follows it; the model's own folder may be on another disk."""
    moved = {"/srv/models/m": "/data/models/m", source: place}

    def realpath(words, _stdin):
        assert words[:2] == ["-mz", "--"]
        return Said("".join(f"{moved.get(path, path)}\0" for path in words[2:]))

    for node in cluster.nodes.values():
        node.programs.update(realpath=realpath)
    server = bare_server(
        *cluster.play.nodes, model_path="/srv/models/m", mounts=(f"{source}:/x:ro",)
    )
    if not refused:
        fetch.require_real_mounts(cluster.play, server)
        return
    with pytest.raises(Refused, match=f"{source} leads to {place}, which no container may have"):
        fetch.require_real_mounts(cluster.play, server)
