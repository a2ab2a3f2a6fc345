"""Image, against a docker that keeps real state in a file."""

import pytest
from resource_samples import DIGEST, WRONG, image

from spark_cluster.node import dockerd, paths
from spark_cluster.resources import Image

REF = "vllm/vllm-openai:v0.12.0"


@pytest.fixture
def docker(docker):
    with docker.state("docker") as state:
        state["registry"] = {
            REF: image(),
            f"vllm/vllm-openai@{DIGEST}": image(),
            f"vllm/vllm-openai@{WRONG}": image(digest=DIGEST),
        }
    return docker


def test_a_copy_of_a_pinned_image_is_not_pulled_again(docker):
    """`docker load` keeps no digest of a registry."""
    copied = image(number="2", digest=None)
    with docker.state("docker") as state:
        state["images"] = {REF: copied}
    pinned, path = Image(REF, digest=DIGEST), docker.path(paths.IMAGE_DIGESTS)
    assert docker.check(pinned).verdict == "change"
    for damaged in ("", "[]", '{"a": 1}'):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(damaged)
        assert docker.check(pinned).verdict == "change"
    dockerd.remember(path, copied["Id"], [DIGEST, "not a digest"])
    assert docker.apply(pinned).verdict == "ok"
    dockerd.remember(path, copied["Id"], [WRONG])
    assert dockerd.remembered(path, copied["Id"]) == sorted([DIGEST, WRONG])
    with docker.state("docker") as state:
        state["images"] = {REF: image(number="3", digest=None)}
    assert docker.check(pinned).verdict == "change"


def test_an_archive_gives_no_other_image_a_name(docker):
    """A recipe names the archive, and its neighbours start images by their tags."""
    own, theirs = image(number="2", digest=None), image(number="3", digest=None)
    with docker.state("docker") as state:
        state["images"] = {REF: own}
        state["archives"] = {"a.tar": {"a:1": theirs, REF: theirs, "new:1": theirs}}
    docker.path("/srv/a.tar").parent.mkdir(parents=True, exist_ok=True)
    docker.path("/srv/a.tar").write_text("x")
    assert docker.apply(Image("a:1", archive="/srv/a.tar")).verdict == "change"
    with docker.state("docker") as state:
        assert state["images"] == {REF: own, "a:1": theirs}


def test_what_the_catalogue_explains_gets_no_hint_here(docker):
    """P05: the laptop adds cause and fix of a known issue to an error that has no hint."""
    said = "Error response from daemon: error from registry: Incorrect Repository Format"
    with docker.state("docker") as state:
        state["registry"][REF] = said
    result = docker.apply(Image(REF))
    assert said in result.event["error"]
    assert result.event["hint"] == ""


@pytest.mark.parametrize(
    "ref", ["a", "a:1", "nvcr.io/nvidia/vllm:26.02-py3", "localhost:5000/a/b_c:X", f"a:1@{DIGEST}"]
)
def test_references(ref):
    assert Image(ref).name == ref
