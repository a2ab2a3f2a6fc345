"""Cost of a run of the engine benchmark, with the processes that outlive it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import FAR_S, HANG_S

from benchmarks.engine import measure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts processes as Linux can")


def run(folder, *command):
    script = [sys.executable, measure.__file__, str(folder / "cost"), str(folder / "out"), "--"]
    subprocess.run([*script, *command], check=True, stdin=subprocess.DEVNULL, timeout=HANG_S)
    return json.loads((folder / "cost").read_text()), (folder / "out").read_text()


def test_output_status_and_time_are_kept(tmp_path):
    cost, output = run(tmp_path, "sh", "-c", "echo out; echo err >&2; sleep 0.1; exit 3")
    assert output == "out\nerr\n"
    assert cost["status"] == 3
    assert cost["wall"] >= 0.1


def test_what_the_command_leaves_behind_is_ended_and_its_cpu_time_counts(tmp_path):
    burn = (
        f"import os,time\nwhile os.times().user < 0.2: pass\nopen('burnt','w')\ntime.sleep({FAR_S})"
    )
    left = f'cd {tmp_path}; setsid {sys.executable} -c "{burn}" & echo $! > pid'
    wait = f"; while [ ! -e {tmp_path}/burnt ]; do sleep 0.02; done"
    started = time.monotonic()
    cost, _ = run(tmp_path, "sh", "-c", left + wait)
    assert time.monotonic() - started < HANG_S
    assert cost["cpu"] >= 0.2
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
