"""TunedKernels: the real program, with a docker that runs a stand-in for vLLM's tuner."""

import fcntl
import json
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import each_row

from spark_cluster.node import durable, engine_caches, kernel_tuner
from spark_cluster.node.beneath import Folder
from spark_cluster.node.values import ResourceError
from spark_cluster.resources import TunedKernels
from tests.factories import put
from tests.waiting import HANG_S

FILE = "E=8,N=64,device_name=NVIDIA_GB10.json"
IMAGE = "sha256:" + "ab" * 32
TUNER = Path(__file__).parents[2] / "tuner_stand_in.py"

MADE = TunedKernels(
    "org/m", "vllm/vllm-openai:v0.32.0", "/srv/caches", tp=1,
    words=("--model", "/srv/m", "--tp-size", "1"), sizes=(1, 2), volumes=("/srv/m:/srv/m:ro",),
)  # fmt: skip


def install(node: Any, *without: str) -> None:
    """Install a docker with an image that has vLLM, Ray and the tuner, but for what is named."""
    inside = node.root / "image"
    found = {
        "ray": "ray.py",
        "vllm": "vllm/__init__.py",
        "version": "vllm-0.32.0.dist-info/METADATA",
        "tuner": kernel_tuner.TUNER,
    }
    texts = {"version": "Name: vllm\nVersion: 0.32.0\n", "tuner": TUNER.read_text()}
    for what, place in found.items():
        if what not in without:
            put(inside / place, texts.get(what, ""))
    given = (
        f"log={node.bin}/docker.log image={IMAGE} inside={kernel_tuner.INSIDE} root={node.root} "
        f"image_root={inside} python={Path(sys.executable).resolve()}"
    )
    program = Path(__file__).with_name("node_programs").joinpath("docker").read_text()
    put(node.bin / "docker", f"#!/bin/sh\n{given}\n{program}", 0o755)
    node.put("model/config.json", json.dumps({"num_experts": 8, "moe_intermediate_size": 64}))


@pytest.fixture
def tuned(node: Any) -> Any:
    install(node)
    return node


def runs(node: Any) -> list[str]:
    lines = (node.bin / "docker.log").read_text().splitlines()
    return [line for line in lines if line.startswith("run --rm --init")]


PLACE = f"srv/caches/tuned/{'ab' * 6}/org%2Fm-tp1"


def kept(node: Any) -> list[int]:
    """The batch sizes in the one file."""
    (entry,) = engine_caches.tuned(node.root / "srv/caches")
    assert (entry["image"], entry["model"], entry["tp"]) == ("ab" * 6, "org/m", 1)
    document = json.loads((node.root / PLACE / entry["file"]).read_text())
    return sorted(engine_caches.sizes_in(document))


def test_tuned_once_and_then_left(tuned):
    assert tuned.check(MADE).verdict == "change"
    result = tuned.apply(MADE)
    assert (result.verdict, result.error) == ("change", " | ")
    folder = tuned.root / PLACE
    document = json.loads((folder / FILE).read_text())
    assert document.keys() == {"triton_version", "1", "2"}
    assert document["2"]["BLOCK_SIZE_N"] == 64
    assert kept(tuned) == [1, 2]
    assert [tuned.apply(MADE).verdict, tuned.check(MADE).verdict] == ["ok", "ok"]
    assert len(runs(tuned)) == 2
    assert {path.name for path in folder.parent.iterdir()} == {folder.name}
    lock = tuned.root / durable.TUNING_LOCK.lstrip("/")
    assert [path.stat().st_mode & 0o777 for path in (lock.parent, lock)] == [0o700, 0o600]


def test_the_container_has_no_network_and_the_tuners_own_arguments(tuned):
    tuned.apply(replace(MADE, sizes=(4,), env={"VLLM_X": "1"}))
    (line,) = runs(tuned)
    for part in ("--network none", "--gpus all", "--volume /srv/m:/srv/m:ro", "--env VLLM_X=1"):
        assert part in line
    words = f"--entrypoint python3 {IMAGE}  --model /srv/m --tp-size 1"
    assert f"{words} --tune --save-dir /spark-cluster-tuned/output --batch-size 4" in line


def test_only_what_lacks_is_tuned_unless_it_is_asked_for_again(tuned):
    tuned.apply(replace(MADE, sizes=(1,)))
    tuned.apply(MADE)
    assert [line.rpartition(" ")[2] for line in runs(tuned)] == ["1", "2"]
    tuned.apply(replace(MADE, renew=True))
    assert len(runs(tuned)) == 4
    other = replace(MADE, tp=2)
    assert tuned.check(other).verdict == "change", "another size is another result"


def test_what_was_measured_before_a_failure_is_kept(tuned):
    result = tuned.apply(replace(MADE, sizes=(1, 13, 16)))
    assert result.verdict == "failed"
    assert "AttributeError: 'Config' object has no attribute 'num_local_experts'" in result.error
    assert kept(tuned) == [1]


def test_the_limit_ends_it_and_keeps_what_is_done(tuned):
    tuned.apply(replace(MADE, sizes=(1,)))
    result = tuned.apply(replace(MADE, sizes=(1, 7, 16), limit_s=0.3))
    assert result.verdict == "failed"
    assert "batch sizes none are tuned, 7, 16 are not" in result.error
    assert (tuned.bin / "docker.log").read_text().endswith(f"rm --force {kernel_tuner.CONTAINER}\n")
    assert kept(tuned) == [1]


@each_row(__file__, "no_tuners.json", "without")
def test_an_image_that_cannot_tune(node, without, said, hint):
    install(node, *without)
    result = node.apply(MADE)
    what, _, todo = result.error.partition(" | ")
    assert (result.verdict, said in what, hint in todo) == ("failed", True, True), result.error
    assert engine_caches.tuned(node.root / "srv/caches") == []


def test_a_line_without_end_takes_no_memory(capsys):
    """What an image prints is not trusted, and its reader is root's."""
    endless = "head --bytes=67108864 /dev/zero | tr '\\0' x; exit 3"
    tracemalloc.start()
    try:
        with pytest.raises(ResourceError, match=r"ended with status 3: x{100}"):
            kernel_tuner._run(["sh", "-c", endless], time.monotonic() + HANG_S)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        capsys.readouterr()
    assert most < 32 << 20


def test_one_at_a_time(tuned):
    """Another one would end the container of the first."""
    lock = tuned.root / durable.TUNING_LOCK.lstrip("/")
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = tuned.apply(MADE)
    assert (result.verdict, "another tuning runs on this node" in result.error) == ("failed", True)
    assert "rm --force" not in (tuned.bin / "docker.log").read_text()
    assert tuned.apply(MADE).verdict == "change"


def test_a_tuner_that_was_sent_is_mounted(node):
    install(node, "tuner")
    node.put("srv/tuner.py", TUNER.read_text())
    result = node.apply(replace(MADE, sizes=(1,), tuner="/srv/tuner.py"))
    assert result.verdict == "change", result.error
    (line,) = runs(node)
    assert f"--volume {node.root}/srv/tuner.py:{kernel_tuner.INSIDE}:ro" in line
    assert f"{IMAGE} {kernel_tuner.INSIDE} --model" in line


NO_FILES = [({FILE: text}, "E=8") for text in ("[]", "{", '"x"', "[" * 100_000)]
NO_FILES += [({}, "expected one file"), ({FILE: "{}", "E=9.json": "{}"}, "expected one file")]


@pytest.mark.parametrize(("files", "said"), NO_FILES)
def test_what_no_tuner_writes(tmp_path, files, said):
    (tmp_path / "output").mkdir()
    for name, text in files.items():
        put(tmp_path / "output" / name, text)
    with pytest.raises(ResourceError, match=said):
        engine_caches.keep_tuned(Folder(tmp_path), tmp_path / "tuned/x", tmp_path / "output")


def test_only_numbers_of_tokens_are_sizes(tmp_path):
    put(tmp_path / "output" / FILE, json.dumps({"triton_version": "3", "9" * 5000: {}, "16": {}}))
    engine_caches.keep_tuned(Folder(tmp_path), tmp_path / "tuned/x", tmp_path / "output")
    assert engine_caches.tuned_sizes(Folder(tmp_path), tmp_path / "tuned/x") == {16}
