"""The sections of a script's answer."""

from spark_cluster.node.containers import read_sections


def test_a_name_that_comes_again_has_the_lines_below_it():
    """A model's folder is listed by a glob and because a recipe names it, with others between."""
    text = "noise\n==> paris\n1 a\n==> words\n2 b\n==> paris\n1 a\n"
    assert read_sections(text) == {"paris": ["1 a"], "words": ["2 b"]}
