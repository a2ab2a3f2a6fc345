"""What `docker image inspect` tells, and what is no such answer."""

import json

import pytest
from cases import cases

from spark_cluster.node.dockerd import DockerImage, image_answer, parse_images

ONE = cases(__file__, "image.json")


def test_an_image():
    made = DockerImage(
        *("sha256:1", ("vllm/v:1",), ("vllm/v@sha256:2",), 5),
        *("2026-11-20T10:00:00Z", "linux", "arm64", "v8", {"a": "b"}),
    )
    assert parse_images(json.dumps([ONE])) == (made,)
    assert image_answer({"status": 0, "stdout": json.dumps([ONE])}) == made


@pytest.mark.parametrize("odd", [None, 7, "x", [], {}, [[]], {"a": []}])
def test_a_field_of_another_type_is_not_there(odd):
    """A node that lies, or a Docker of another version."""
    for field in ONE:
        (found,) = parse_images(json.dumps([{**ONE, field: odd}]))
        assert all(isinstance(text, str) for text in (*found.names, *found.digests))
        assert isinstance(found.id, str)
        assert isinstance(found.size, int)


@pytest.mark.parametrize("printed", ["", "no such image", "{}", "[1]", '[["x"]]', "[" * 100_000])
def test_what_is_no_list_of_images(printed):
    with pytest.raises(ValueError, match="printed no list of objects"):
        parse_images(printed)
    assert image_answer({"status": 0, "stdout": printed}) is None


@pytest.mark.parametrize(
    "done", [None, {"status": 1, "stdout": "[]\n"}, {"status": 0, "stdout": "[]"}]
)
def test_an_image_that_is_not_there(done):
    assert image_answer(done) is None
