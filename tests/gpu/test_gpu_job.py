"""The main job on a real GPU: an answer, its memory, nothing to do twice, killed, down."""

import time
from typing import Any

import pytest
from commandline import Ran
from lab_model import complete
from waiting import until

pytestmark = pytest.mark.gpu

URL = "http://127.0.0.1:8000"
QUERY = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]

SLACK_MIB = 64
"""Between two readings of a server that has no requests."""


def compute_apps(user: Any) -> dict[int, int]:
    """PID to MiB, read without any of our code."""
    printed = user.run_there(*QUERY)
    rows = [line.split(",") for line in printed.splitlines() if line.strip()]
    return {int(pid): int(used) for pid, used in rows}


def engine_core(user: Any) -> int:
    """The process of the engine that holds the GPU."""
    (pid,) = compute_apps(user)
    title = user.run_there("cat", f"/proc/{pid}/cmdline").replace("\0", " ")
    assert "VLLM::EngineCor" in title
    return pid


def ask() -> str:
    """A completion from outside of the command line."""
    return complete(URL, 60)


def test_up_serves_on_the_gpu(user):
    shown(user, "facts")
    user("plan", "--tp", "1")
    ran = user("up", "--tp", "1")
    assert "Paris" in ran.printed
    assert ask() == "Paris"
    assert "Application startup complete" in user("logs", "--tail", "2000").printed


def test_its_memory_is_that_of_nvidia_smi(user):
    user("vram")
    (node,) = user.json("vram")["nodes"]
    found = {process["pid"]: process["used_mib"] for process in node["processes"]}
    expected = compute_apps(user)
    assert found.keys() == expected.keys()
    assert all(abs(found[pid] - used) <= SLACK_MIB for pid, used in expected.items())
    assert any("VLLM::EngineCor" in process["name"] for process in node["processes"])
    assert node["used_mib"] > 1024, "the cache alone is 1 GiB"


def test_again_nothing_is_changed(user):
    document = user.json("up", "--tp", "1")
    assert document["changed"] == 0
    assert "Paris" in document["answer"]
    (memory,) = document["memory"]
    assert memory["before"] > 1024
    status = user.json("status")
    assert status["state"] == "serving", status


def test_a_killed_engine_is_told_and_repaired(user):
    pid = engine_core(user)
    user.run_there("kill", "-9", str(pid))
    begun = time.monotonic()
    document = until(lambda: fault(user), what="status sees it")
    told = f"status told of the killed engine after {time.monotonic() - begun:.1f} s\n"
    (user.out / "detected.txt").write_text(told)
    assert document["problems"]
    shown(user, "status")
    user("up", "--tp", "1")
    assert ask() == "Paris"
    assert engine_core(user) != pid


def shown(user: Any, *words: str) -> None:
    """Keep what a command says to people, whatever its exit status."""
    started = user.start(*words)
    out, err = started.process.communicate(timeout=120)
    user.keep(Ran(started.words, started.process.returncode, out, err, 0.0))


def fault(user: Any) -> dict[str, Any]:
    """The document of `status`, once it is not served any more."""
    document: dict[str, Any] = user.status(timeout=60)
    return {} if document["state"] == "serving" else document


def test_down_gives_the_memory_back(user):
    (used,) = compute_apps(user).values()
    assert used > 1024
    ran = user("down")
    assert compute_apps(user) == {}
    assert "gpu1" in ran.printed
    shown(user, "doctor")
    assert user.json("vram")["nodes"][0]["processes"] == []
