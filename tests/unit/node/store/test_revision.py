"""Snapshots that other tools have downloaded are used if they are whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_content import COMMIT, REPOSITORY, model

from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import INCOMPLETE
from spark_cluster.node.values import ResourceError


@pytest.fixture
def cache(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "hub")


def test_a_whole_snapshot_is_used(cache):
    index = json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}).encode()
    shard = {"model-00001-of-00001.safetensors": b"weights"}
    made = model(cache.root, {**shard, "model.safetensors.index.json": index})
    assert cache.found(REPOSITORY, COMMIT) == made


def test_a_snapshot_with_a_config_only_is_not_the_model(cache):
    model(cache.root, {"config.json": b"{}", "tokenizer.json": b"{}"})
    with pytest.raises(ResourceError, match=r"2 files .* no weights"):
        cache.found(REPOSITORY, COMMIT)


def test_a_shard_is_missed_by_the_numbers_of_the_others(cache):
    model(cache.root, {f"model-0000{n}-of-00003.safetensors": b"x" for n in (1, 3)})
    with pytest.raises(
        ResourceError,
        match=r"1 of 3 weight files are not there \(model-00002-of-00003\.safetensors\)",
    ):
        cache.found(REPOSITORY, COMMIT)


def test_a_half_file_of_another_tool_is_not_the_file(cache):
    made = model(cache.root, {"config.json": b"{}", "model.safetensors": b"weights"})
    blob = cache.blob(REPOSITORY, made.files[1].blob)
    blob.rename(f"{blob}{INCOMPLETE}")
    with pytest.raises(ResourceError, match="broken"):
        cache.found(REPOSITORY, COMMIT)


def test_a_snapshot_that_is_a_link_is_not_used(cache, tmp_path):
    model(cache.root, {"model.safetensors": b"weights"})
    snapshot = cache.snapshot(REPOSITORY, COMMIT)
    snapshot.rename(tmp_path / "elsewhere")
    snapshot.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a link"):
        cache.found(REPOSITORY, COMMIT)


def test_the_kept_manifest_is_used_before_the_links(tmp_path):
    cache = HubCache(tmp_path / "hub", tmp_path / "ours")
    made = model(cache.root, {"config.json": b"{}", "model.safetensors": b"weights"})
    cache.records.keep(made)
    cache.blob(REPOSITORY, made.files[1].blob).unlink()
    assert cache.known(REPOSITORY, COMMIT) == made
    assert cache.missing(made).size == 7
