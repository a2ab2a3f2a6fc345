"""Engine caches and tuned kernels after a container has written there: nothing is followed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hostile import container
from hostile.container import FILE_TRICKS, FOLDER_TRICKS, exchanged, leave, untouched

from spark_cluster.agent import operations
from spark_cluster.node import tuned_kernels
from spark_cluster.node.beneath import Folder
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError
from tests.factories import put

IMAGE = "ab" * 6
FILE = "E=8,N=64,device_name=NVIDIA_GB10.json"
KEY = "vllm/torch_compile_cache/0123456789"
ENTRY = {"model": "org/m", "tp": 1, "gpu": "GB10", "file": FILE}
ALL = [KEY, "triton", "torchinductor", "vllm/modelinfos", f"tuned/{IMAGE}"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the caches on a node."""
    root = tmp_path / "node/caches"
    put(root / KEY / "rank_0_0/model", "x")
    put(root / "vllm/modelinfos/a.json", "{}")
    put(root / "triton/KERNEL/a.json", "{}")
    put(root / "torchinductor/aa/kernel.py", "k")
    keep(root)
    return root


def keep(root: Path) -> None:
    about = {key: ENTRY[key] for key in ("model", "tp", "gpu")}
    output = root / ".output"
    put(output / FILE, json.dumps({"1": {"BLOCK_SIZE_M": 1}}))
    tuned_kernels.keep(Folder(root), root / "tuned" / IMAGE, about, output)


def ask(root: Path, what: str, **request: Any) -> dict[str, Any]:
    asked = {"op": "caches", "what": what, "folder": "/caches", **request}
    return operations.act(Host(root=root.parent), asked)


def tried(root: Path) -> None:
    """Do all that root does with the caches; an error in words is as good as success."""
    ask(root, "state")
    ask(root, "usage")
    with contextlib.suppress(OSError, ResourceError):
        keep(root)
    with contextlib.suppress(OSError):
        ask(root, "remove", paths=ALL)


@pytest.mark.parametrize(
    "place", ["vllm", "vllm/torch_compile_cache", KEY, "triton", "triton/KERNEL", "tuned",
              f"tuned/{IMAGE}"],
)  # fmt: skip
@pytest.mark.parametrize("trick", FOLDER_TRICKS)
def test_in_the_place_of_a_folder(tmp_path: Path, root: Path, trick: str, place: str) -> None:
    outside = container.outside(tmp_path / "outside")
    leave(trick, root / place, outside, FOLDER_TRICKS)
    tried(root)
    untouched(outside, root)


@pytest.mark.parametrize("place", ["triton/KERNEL/a.json", "index.json", FILE])
@pytest.mark.parametrize("trick", FILE_TRICKS)
def test_in_the_place_of_a_file(tmp_path: Path, root: Path, trick: str, place: str) -> None:
    outside = container.outside(tmp_path / "outside")
    path = root / place if "/" in place else root / "tuned" / IMAGE / place
    leave(trick, path, outside, FILE_TRICKS)
    tried(root)
    untouched(outside, root, read=trick == "hard link")


@pytest.mark.parametrize("place", ["vllm/torch_compile_cache", "triton", f"tuned/{IMAGE}"])
def test_a_folder_that_is_exchanged_for_a_link_meanwhile(
    tmp_path: Path, root: Path, place: str
) -> None:
    outside = container.outside(tmp_path / "outside")
    with exchanged(root / place, outside.cron):
        for _ in range(20):
            tried(root)
    untouched(outside, root)


@pytest.mark.parametrize(
    "wrong", [{"file": "../../../outside/secret"}, {"file": 5}, {"sizes": 5}, {"sizes": ["1"]}]
)
def test_an_index_that_no_one_of_ours_wrote(root: Path, wrong: dict[str, Any]) -> None:
    index = root / "tuned" / IMAGE / "index.json"
    index.write_text(json.dumps({"entries": [{**ENTRY, "sizes": [1], **wrong}, 3, {}]}))
    assert tuned_kernels.read(root) == []
    index.write_text(json.dumps({"entries": 5}))
    assert tuned_kernels.read(root) == []
