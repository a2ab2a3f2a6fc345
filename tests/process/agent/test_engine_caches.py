"""The engine's caches on a node: records of launches, sizes of what is there, removal of parts."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from spark_cluster.agent import operations
from spark_cluster.node import engine_caches, paths
from spark_cluster.node.engine_caches import LaunchRecord
from spark_cluster.node.host import Host
from tests.factories import put

SHORT, AOT = "0a1b2c3d4e", "torch_aot_compile/" + "cd" * 32
ONE = LaunchRecord("gemma", "vllm", arguments="a" * 64, keys=(SHORT,), last=10.0)


OWN = "images/0123456789ab"
"""The folder of an image's caches."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Caches as vLLM 0.32, Triton, Inductor and FlashInfer leave them, of one image."""
    for path, size in cases(__file__, "caches.json", OWN=OWN, SHORT=SHORT, AOT=AOT).items():
        put(tmp_path / path, "x" * size)
    return tmp_path


def entries(root: Path) -> dict[str, engine_caches.CacheEntry]:
    return {entry.path: entry for entry in engine_caches.usage(root)}


# -- records -------------------------------------------------------------------------------------


def test_a_record_is_kept_for_root_alone(tmp_path: Path) -> None:
    engine_caches.add_launch(tmp_path, ONE)
    path = tmp_path / paths.LAUNCHES.lstrip("/")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert engine_caches.launches(tmp_path) == [ONE]


def test_a_repeated_launch_keeps_its_keys(tmp_path: Path) -> None:
    """A warm start may log less than the cold one did."""
    engine_caches.add_launch(tmp_path, ONE)
    engine_caches.add_launch(tmp_path, replace(ONE, arguments="b" * 64, last=20.0))
    engine_caches.add_launch(tmp_path, replace(ONE, keys=(AOT,), last=30.0, run="new"))
    found = engine_caches.launches(tmp_path)
    assert [record.last for record in found] == [30.0, 20.0]
    assert (found[0].keys, found[0].run) == ((AOT, SHORT), "new")


def test_records_are_bounded(tmp_path: Path) -> None:
    many = [
        replace(ONE, recipe=f"r{n}", last=float(n)) for n in range(engine_caches.MOST_LAUNCHES + 9)
    ]
    engine_caches.write_launches(tmp_path, many)
    found = engine_caches.launches(tmp_path)
    assert len(found) == engine_caches.MOST_LAUNCHES
    assert found[0].recipe == many[-1].recipe
    keys = tuple(f"torch_aot_compile/{n:064}" for n in range(engine_caches.MOST_KEYS))
    engine_caches.write_launches(tmp_path, [replace(record, keys=keys) for record in many])
    path = tmp_path / paths.LAUNCHES.lstrip("/")
    assert path.stat().st_size <= engine_caches.LARGEST_RECORDS
    assert engine_caches.launches(tmp_path)[0].recipe == many[-1].recipe


HUGE = f'{{"launches": [{{"recipe": "a", "compile_s": 1{"0" * 400}}}]}}'


@pytest.mark.parametrize("text", [*cases(__file__, "no_records.json"), None, "[" * 100_000, HUGE])
def test_what_is_no_record_is_left_out(text: str | None) -> None:
    assert engine_caches.parse_launches(text) == []


def test_a_record_of_another_version_is_read(tmp_path: Path) -> None:
    """An older one has all flags and no digest: it still says whose the compiled code is."""
    older = {"recipe": "a", "engine": "vllm", "tp": 2, "flags": {"x": "1"}, "keys": [SHORT]}
    text = json.dumps({"launches": [older]})
    assert engine_caches.parse_launches(text) == [LaunchRecord("a", "vllm", keys=(SHORT,))]


# -- usage ---------------------------------------------------------------------------------------


def test_every_entry_has_its_kind_and_size(root: Path) -> None:
    found = entries(root)
    assert {path: entry.kind for path, entry in found.items()} == {
        f"{OWN}/vllm/torch_compile_cache/{SHORT}": "compile",
        f"{OWN}/vllm/torch_compile_cache/{AOT}": "compile",
        f"{OWN}/vllm/modelinfos": "vllm",
        f"{OWN}/triton": "triton",
        f"{OWN}/torchinductor": "inductor",
        f"{OWN}/huggingface": "downloads",
        f"{OWN}/flashinfer/.cache/flashinfer/0.6.1": "flashinfer",
        "huggingface": "huggingface",
    }
    large = found[f"{OWN}/vllm/torch_compile_cache/{AOT}"]
    assert (large.files, large.whole) == (2, True)
    assert large.bytes >= 20_000


def test_a_key_counts_once_a_rank_has_left_something(root: Path) -> None:
    (root / OWN / "vllm/torch_compile_cache" / ("f" * 10) / "rank_1_0").mkdir(parents=True)
    put(root / "images/another/vllm/torch_compile_cache" / AOT / "rank_0_0/model", "y")
    found = engine_caches.compiled_keys(root)
    assert {name: sorted(keys) for name, keys in found.items()} == {
        OWN.removeprefix("images/"): sorted([SHORT, AOT]),
        "another": [AOT],
    }


def test_what_all_images_shared_before_is_listed_and_removed(root: Path) -> None:
    put(root / "vllm/torch_compile_cache" / SHORT / "rank_0_0/x", "x")
    put(root / "triton/a", "x")
    shared = {f"vllm/torch_compile_cache/{SHORT}", "triton"}
    assert shared <= entries(root).keys()
    assert set(engine_caches.remove(root, shared)) == shared


def test_a_count_that_takes_too_long_is_a_lower_bound(root, monkeypatch):
    monkeypatch.setattr(engine_caches, "MOST_FILES", 3)
    assert not all(entry.whole for entry in engine_caches.usage(root))


def test_caches_that_are_not_there_are_none(tmp_path: Path) -> None:
    assert engine_caches.usage(tmp_path / "none") == []
    assert engine_caches.compiled_keys(tmp_path / "none") == {}


# -- removal -------------------------------------------------------------------------------------


def test_only_what_is_chosen_is_removed(root: Path) -> None:
    chosen = {f"{OWN}/vllm/torch_compile_cache/{AOT}", f"{OWN}/triton", "huggingface"}
    removed = engine_caches.remove(root, {*chosen, "../etc", "vllm", "", OWN, "images"})
    assert sorted(removed) == [f"{OWN}/triton", f"{OWN}/vllm/torch_compile_cache/{AOT}"]
    assert (root / OWN / "triton").is_dir(), "the containers mount what is above it"
    assert (root / "huggingface/hub/models--a--b/blobs/1").exists()
    assert engine_caches.compiled_keys(root) == {OWN.removeprefix("images/"): [SHORT]}


def test_what_a_cut_left_of_a_removal_goes_with_the_next(root: Path) -> None:
    left = root / OWN / "vllm/torch_compile_cache/.removing-0123456789ab/rank_0_0/model"
    put(left, "x")
    assert not any(".removing-" in path for path in entries(root))
    engine_caches.remove(root, set())
    assert not left.parent.parent.exists()


# -- the operation -------------------------------------------------------------------------------


def ask(host: Host, **request: Any) -> dict[str, Any]:
    return operations.act(host, {"op": "caches", **request})


def test_a_launch_is_recorded_with_the_keys_of_its_log(tmp_path: Path) -> None:
    host = Host(root=tmp_path)
    log = tmp_path / "server.log"
    lines = [
        f"INFO Using cache directory: /c/vllm/torch_compile_cache/{SHORT}/rank_0_0/backbone for",
        f"INFO saved AOT compiled function to /c/vllm/torch_compile_cache/{AOT}/rank_0_0/model",
        f"(pid=2) Using cache directory: /c/vllm/torch_compile_cache/{SHORT}/rank_1_0/backbone for",
    ]
    log.write_text("\n".join(lines))
    asked = {
        "what": "known",
        "log": ["cat", str(log)],
        "pattern": r"torch_compile_cache/[^ ]+/rank",
    }
    found = ask(host, run="c1", **asked)
    assert found["known"] is False
    assert found["found"] == [f"torch_compile_cache/{key}/rank" for key in (SHORT, AOT)]
    record = replace(ONE, keys=(SHORT, AOT), run="c1")
    ask(host, what="record", record=json.loads(json.dumps(asdict(record))))
    kept = engine_caches.launches(tmp_path)[0]
    assert kept.keys == (SHORT, AOT)
    assert kept.last > 1e9
    assert ask(host, run="c1", **asked) == {"known": True, "found": []}
    log.unlink()
    assert ask(host, run="c2", **asked)["found"] == []


def test_a_record_of_another_form_is_an_error(tmp_path: Path) -> None:
    assert "form" in ask(Host(root=tmp_path), what="record", record={"a": 1})["error"]
