"""ClockCap, on a node whose nvidia-smi and systemctl share the state of a clock."""

import sys

import pytest

from spark_cluster.resources import ClockCap
from spark_cluster.resources import clock_cap as module

CAP = ClockCap("spark-clock-cap", max_mhz=2100)
SMI = """
assert sys.argv[1:] == ["--query-gpu=clocks.sm", "--format=csv,noheader,nounits"], sys.argv
text = open(CLOCK).read()
print(text)
sys.exit(9 if "NVML" in text else 0)
"""
SYSTEMCTL = """
assert sys.argv[1:] == ["restart", "spark-clock-cap.service"], sys.argv
open(CLOCK, "w").write("2100")
"""


@pytest.fixture
def gpu(node, monkeypatch):
    """`gpu.clock(2400)`: what nvidia-smi tells."""
    monkeypatch.setattr(module, "_FALLS_WITHIN_S", 0.3)
    node.bin.mkdir()
    node.clock = lambda text: node.put("/clock", str(text))
    for name, body in (("nvidia-smi", SMI), ("systemctl", SYSTEMCTL)):
        path = node.bin / name
        clock = str(node.path("/clock"))
        path.write_text(f"#!{sys.executable} -IS\nimport sys\nCLOCK = {clock!r}\n{body}")
        path.chmod(0o755)
    return node


@pytest.mark.parametrize("clock", [208, 2100, 2115])
def test_what_is_within_the_limit_is_left(gpu, clock):
    gpu.clock(clock)
    assert gpu.apply(CAP).verdict == "ok"


def test_a_cap_that_was_lifted_by_hand_is_set_again(gpu):
    gpu.clock(2418)
    told = gpu.check(CAP)
    assert told.verdict == "change"
    done = gpu.apply(CAP)
    assert done.event["changes"] == {"in_force": [False, True]}
    assert "2418 MHz" in gpu.progress[-1]
    assert gpu.apply(CAP).verdict == "ok"


def test_a_cap_that_has_no_effect_is_a_failure(gpu):
    gpu.clock(2418)
    path = gpu.bin / "systemctl"
    path.write_text("#!/bin/sh\nexit 0\n")
    assert "did not converge: in_force is False" in gpu.apply(CAP).error


@pytest.mark.parametrize("text", ["Failed to initialize NVML", "", "[N/A]"])
def test_a_driver_that_tells_no_clock_is_left(gpu, text):
    """As one that an earlier resource has updated, until the reboot; `provision` tells of it."""
    gpu.clock(text)
    assert gpu.apply(CAP).verdict == "ok"
