"""Where a model's config and weights are found on this machine, and files that are none."""

import json
from pathlib import Path
from typing import Any

import pytest
from cases import each_row
from checkpoints import SMALL

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.checkpoint import stored_tensors, weight_files
from spark_cluster.models.lookup import Folders, find, hub_cache


def folder_of(path: Path, **changed: Any) -> Path:
    """Make a model's folder."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**SMALL, **changed}))
    return path


def test_names_are_found_whatever_their_case():
    assert find("GOOGLE/gemma-4-31b-IT").layers == 60
    found = find("somebody/My-Gemma-Q4", base="google/gemma-4-31B-it")
    assert (found.name, found.layers) == ("somebody/My-Gemma-Q4", 60)


@each_row(__file__, "lookup.toml", "a_name_that_is_not_known_says_what_to_do")
def test_a_name_that_is_not_known_says_what_to_do(name, words):
    with pytest.raises(UsageError, match=words):
        find(name)


def test_a_folder_comes_first(tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "google/gemma-4-31B-it")
    assert find("google/gemma-4-31B-it", tmp_path).layers == 2, "of the project"
    monkeypatch.chdir(tmp_path)
    assert find("google/gemma-4-31B-it").layers == find(folder).layers == 2


def test_the_hubs_cache(tmp_path):
    cache = tmp_path / "models--me--mine"
    for revision, layers in (("aaa", 4), ("bbb", 8)):
        folder_of(cache / "snapshots" / revision, num_hidden_layers=layers)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("aaa\n")
    assert find("me/mine", cache_dir=tmp_path).layers == 4
    (cache / "refs" / "main").write_text("gone")
    assert find("me/mine", cache_dir=tmp_path).layers in (4, 8)


def test_where_the_cache_is(monkeypatch):
    for name, place in (
        ("XDG_CACHE_HOME", "/huggingface/hub"),
        ("HF_HOME", "/hub"),
        ("HF_HUB_CACHE", ""),
    ):
        for other in ("HF_HUB_CACHE", "HF_HOME"):
            monkeypatch.delenv(other, raising=False)
        monkeypatch.setenv(name, "/a")
        assert str(hub_cache()) == f"/a{place}"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "\x00\x01", '"text"', "[" * 100_000, '{"a":' * 100_000,
     '{"num_hidden_layers": ' + "9" * 5000 + "}"],
    ids=lambda text: text[:9] or "empty",
)  # fmt: skip
def test_a_file_that_is_no_config(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidFile) as error:
        find(tmp_path)
    assert "config.json" in error.value.where


# --- weights ---------------------------------------------------------------------------------


def safetensors(*sizes: int) -> bytes:
    """Return a file of tensors of these sizes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for number, size in enumerate(sizes):
        header[f"t{number}"] = {"dtype": "U8", "data_offsets": [begin, begin + size]}
        begin += size
    return headed(json.dumps(header)) + bytes(begin)


def headed(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


def weights_bytes(folder: Path) -> int | None:
    source, name = Folders(), str(folder)
    found = stored_tensors(source, name, source.listing(name), str)
    return None if found is None else sum(tensor.size * tensor.count for tensor in found)


def test_weights_from_headers(tmp_path):
    assert weights_bytes(tmp_path) is None
    (tmp_path / "model-1.safetensors").write_bytes(safetensors(100, 24))
    (tmp_path / "model-2.safetensors").write_bytes(safetensors(7))
    assert weights_bytes(tmp_path) == 131
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors"}})
    )
    assert weights_bytes(tmp_path) == 124


@each_row(__file__, "lookup.toml", "an_index_that_is_none")
def test_an_index_that_is_none(tmp_path, text, words):
    (tmp_path / "model.safetensors").write_bytes(safetensors(1))
    (tmp_path / "model.safetensors.index.json").write_text(text.replace("DEEP", "[" * 100_000))
    with pytest.raises(InvalidFile, match=words):
        weights_bytes(tmp_path)


@pytest.mark.parametrize(
    "total", ["1e400", "Infinity", "NaN", "9" * 400, "-1", "[]", "{}", '"1"', "true"]
)
def test_any_size_in_an_index(tmp_path, total):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {}, "metadata": {"total_size": ' + total + "}}")
    assert weights_bytes(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", b"\xff" * 8,
        safetensors(10)[:20], headed("[" * 100_000), headed('{"a": {"data_offsets": [0, 1e400]}}'),
        headed("{}x"),
    ],
    ids=lambda content: str(content[:12]),
)  # fmt: skip
def test_a_broken_file_of_weights_leaves_the_shape(content, tmp_path):
    (folder_of(tmp_path) / "model.safetensors").write_bytes(content)
    assert (find(tmp_path).layers, find(tmp_path).stored) == (2, None)
    with pytest.raises(InvalidFile, match=r"no safetensors header|no place"):
        weights_bytes(tmp_path)


def test_files_that_hold_the_weights_once():
    assert weight_files(["model.safetensors", "adapter_model.safetensors"]) == ["model.safetensors"]
    both = ["consolidated-1.safetensors", "model-1.safetensors", "original/x.safetensors"]
    assert weight_files(both) == ["model-1.safetensors"]
    assert weight_files(["consolidated.safetensors"]) == ["consolidated.safetensors"]
    assert weight_files(["pytorch_model.bin"]) == []
