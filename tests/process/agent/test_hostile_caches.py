"""Engine caches and tuned kernels after a container has written there: nothing is followed."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hostile import container
from hostile.container import FILE_TRICKS, FOLDER_TRICKS, exchanged, leave, untouched

from spark_cluster.agent import operations
from spark_cluster.node import engine_caches
from spark_cluster.node.beneath import Folder
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError
from tests.factories import put

IMAGE = "ab" * 6
FILE = "E=8,N=64,device_name=NVIDIA_GB10.json"
KEY = "vllm/torch_compile_cache/0123456789"
MODEL = f"tuned/{IMAGE}/org%2Fm-tp1"
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
    """Keep what the tuner has written."""
    put(root / ".output" / FILE, json.dumps({"1": {"BLOCK_SIZE_M": 1}}))
    engine_caches.keep_tuned(Folder(root), root / MODEL, root / ".output")


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
              f"tuned/{IMAGE}", MODEL],
)  # fmt: skip
@pytest.mark.parametrize("trick", FOLDER_TRICKS)
def test_in_the_place_of_a_folder(tmp_path, root, trick, place):
    outside = container.outside(tmp_path / "outside")
    leave(trick, root / place, outside, FOLDER_TRICKS)
    tried(root)
    untouched(outside, root)


@pytest.mark.parametrize("place", ["triton/KERNEL/a.json", f"{MODEL}/{FILE}"])
@pytest.mark.parametrize("trick", FILE_TRICKS)
def test_in_the_place_of_a_file(tmp_path, root, trick, place):
    outside = container.outside(tmp_path / "outside")
    leave(trick, root / place, outside, FILE_TRICKS)
    tried(root)
    untouched(outside, root, read=trick == "hard link")


@pytest.mark.parametrize("place", ["vllm/torch_compile_cache", "triton", f"tuned/{IMAGE}", MODEL])
def test_a_folder_that_is_exchanged_for_a_link_meanwhile(tmp_path, root, place):
    outside = container.outside(tmp_path / "outside")
    with exchanged(root / place, outside.cron):
        for _ in range(20):
            tried(root)
    untouched(outside, root)


@pytest.mark.parametrize(
    "name",
    ["org%2Fm/a.json", "org%2Fm-tp0/a.json", "org%2Fm-tp1x/a.json", "org%2Fm-tp1/a", "-tp1/a.json",
     "org%2Fm-tp1/.a.json", "org%2Fm-tp1/a\nb.json", "a b-tp1/a.json", f"{'m' * 9}-tp99999/a.json"],
)  # fmt: skip
def test_names_that_no_one_of_ours_gave(root, name):
    ours = [{"image": IMAGE, "model": "org/m", "tp": 1, "file": FILE}]
    assert engine_caches.tuned(root) == ours
    put(root / "tuned" / IMAGE / name, "{}")
    assert engine_caches.tuned(root) == ours
