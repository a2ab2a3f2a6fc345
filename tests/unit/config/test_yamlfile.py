"""YAML files: plain data, the place of every value, and what is said about a broken file."""

from pathlib import Path

import factories
import pytest
from cases import cases
from factories import put

from spark_cluster.config.yamlfile import Sourced, dotted, load, nearest, shown

CASES = cases(__file__, "yamlfile.toml")


def write(folder: Path, text: str | bytes) -> Path:
    return put(folder / "x.yaml", text)


def error_of(path: Path) -> str:
    return factories.error_of(load, path, "inventory", folder=path.parent)


def test_plain_data_and_places(tmp_path):
    source = load(write(tmp_path, "a:\n  b: [1, {c: x}]\n  d: 'q'\n"))
    assert source.data == {"a": {"b": [1, {"c": "x"}], "d": "q"}}
    assert source.origins[("a", "b", 1, "c")][:2] == (2, 11)
    assert source.origins[("a", "d")][:2] == (3, 3)
    assert type(source.data["a"]["d"]) is str


def test_a_text_that_is_read_again_is_data_of_its_own(tmp_path):
    text = "a: &x {b: [1, 0x1F]}\nc: *x\n"
    first, second = (load(put(tmp_path / name, text)) for name in ("x.yaml", "y.yaml"))
    first.data["a"]["b"].append(2)
    again = load(first.path)
    assert again.data == second.data == {"a": {"b": [1, 31]}, "c": {"b": [1, 31]}}
    assert again.origins == second.origins
    assert second.where(("c",)) == f"{shown(tmp_path / 'y.yaml')}:2"


@pytest.mark.parametrize(("text", "value"), [*CASES["scalars"], ("~", None), ("", None)])
def test_yaml_1_2_scalars(tmp_path, text, value):
    assert load(write(tmp_path, f"a: {text}\n")).data == {"a": value}


def test_aliases_and_merge_keys(tmp_path):
    source = load(write(tmp_path, "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  x: 3\n"))
    assert source.data["b"] == {"x": 3, "y": 2}
    assert source.where(("b", "x")).endswith(":4")
    assert source.where(("b", "y")).endswith(":1")


def test_keys_are_text(tmp_path):
    assert load(write(tmp_path, "8000: a\ntrue: b\n")).data == {"8000": "a", "true": "b"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *CASES["broken"],
        (
            b"a: 1\n\x7fELF\x00",
            "x.yaml:2: control character 0x7f; expected a YAML inventory, not a binary file",
        ),
        (b"a: 1\nb: \xff\xfe", "x.yaml:2: byte 0xff is not UTF-8 text; expected a YAML inventory"),
        ("a: " + "[" * 600, "x.yaml: nested too deeply"),
        ("a: " + "[" * 500_000, "x.yaml: nested too deeply"),
    ],
)
def test_broken_files(tmp_path, text, expected):
    assert error_of(write(tmp_path, text)).startswith(expected)


def test_missing_folder_and_too_large(tmp_path):
    assert error_of(tmp_path / "no.yaml") == "no.yaml: no such inventory"
    folder = tmp_path / "d"
    folder.mkdir()
    assert error_of(folder) == "d: this is a folder; expected a YAML inventory"
    large = write(tmp_path, "a: " + "x" * (1 << 20))
    assert error_of(large) == "x.yaml: larger than 1 MiB; expected a YAML inventory"


def test_endless_aliases_are_refused_quickly(tmp_path):
    lines = ["l0: &l0 [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"l{i}: &l{i} [{','.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "too many values" in error_of(write(tmp_path, "\n".join(lines)))


def test_a_line_that_may_hold_a_secret_is_not_shown(tmp_path):
    assert "hunter2" not in error_of(write(tmp_path, "a: 1\napi_key: hunter2: x\n"))


def test_a_long_line_is_neither_shown_nor_searched_for_secrets(tmp_path):
    """A search of this one would take hours."""
    text = error_of(write(tmp_path, "a: b: " + "key" * 300_000))
    assert text == (
        "x.yaml:1: a ':' in an unexpected place: check the indentation, or put the value in quotes"
    )


def test_problems_in_file_order_with_the_nearest_place(tmp_path):
    source = load(write(tmp_path, "b: 1\na:\n  c: 2\n"))
    from spark_cluster.config.yamlfile import Problem

    text = str(source.invalid([Problem(("a", "c", "d"), "bad"), Problem(("b",), "worse")]))
    name = shown(source.path)
    assert text == f"{name}:1: b: worse\n{name}:3: a.c.d: bad"


def test_shown_is_relative_below_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a" / "b.yaml") == "a/b.yaml"
    assert shown(Path("/etc/hosts")) == "/etc/hosts"


def test_dotted():
    assert dotted(("nodes", "spark1", "roles", 0)) == "nodes.spark1.roles[0]"
    assert Sourced(Path("f"), {}).where(("x",)) == "f:1"


@pytest.mark.parametrize(
    ("word", "name"),
    [*CASES["nearest"], ("q", None), ("", None), ("llama", None), ("qwen3.6-27b-fp8", None)],
)
def test_the_beginning_of_a_name_is_nearer_than_a_likeness(word, name):
    known = ["gemma4-31b-fp8-eager", "gemma4-31b-fp8", "qwen3.6-35b-a3b-fp8"]
    assert nearest(word, [*known, "qwen3-235b-a22b-gptq-int4"]) == name
