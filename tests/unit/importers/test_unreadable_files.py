"""Files that no recipe can be read of, and texts in them that are made to take long."""

import pytest
from factories import put

from spark_cluster.errors import InvalidFile
from spark_cluster.importers.files import read_file
from spark_cluster.importers.templated import fill
from spark_cluster.importers.vllm_recipes import spark_commands

LARGE = 1 << 20


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("x.yaml", b"\x00\x01\x02\xff", "byte 0xff is not UTF-8"),
        ("x", b"\xff\xfe", "not UTF-8"),
        ("x.yaml", b"a: " + b"x" * LARGE, "larger than 1 MiB"),
        ("x.sh", b"docker run " + b"x" * LARGE, "larger than 1 MiB"),
        ("x.yaml", b"", "the file is empty"),
    ],
)
def test_a_file_without_text_is_refused(tmp_path, name, raw, message):
    with pytest.raises(InvalidFile, match=message) as caught:
        read_file(put(tmp_path / name, raw))
    assert name in caught.value.where
    assert caught.value.hint


def test_a_missing_file(tmp_path):
    with pytest.raises(InvalidFile, match="no such file"):
        read_file(tmp_path / "no.yaml")


@pytest.mark.parametrize("name", ["x.yaml", "kit/compose.yaml"])
def test_aliases_that_grow_without_end(tmp_path, name):
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    rows.append("services: {engine: {image: x, command: *a8}}")
    path = put(tmp_path / name, "\n".join(rows))
    with pytest.raises(InvalidFile, match=r"aliases|too many values"):
        read_file(path.parent if name.startswith("kit") else path)


@pytest.mark.parametrize("guide", [None, 3, "", "## DGX Spark\n```\nvllm serve 'x\n```\n", "```"])
def test_a_guide_without_a_command(guide):
    assert spark_commands(guide) == []


def test_a_comment_with_an_endless_word_names_no_image():
    """A registry's file is read without anyone looking at it: no expression may take minutes."""
    for word, image in (("org/vllm:1", "org/vllm:1"), ("/" * 19_000, "")):
        guide = f"# DGX Spark\n```\n# image {word}\nvllm serve org/m\n```\n"
        (command,) = spark_commands(guide)
        assert command.launch.image == image


def test_many_places_of_a_long_value_are_refused_before_they_are_filled():
    """200 KB of a recipe would stand for gigabytes of a command."""
    values = {"a": "x" * 1000}
    with pytest.raises(InvalidFile, match="longer than 200000 characters"):
        fill("vllm serve m " + "{a}" * 201, values, "r.yaml:1")
    assert fill("vllm serve {a}", values, "r.yaml:1").endswith("x" * 1000)
