"""Imports and their moment: nothing heavy for --help, and little before the first packet."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import each_row

CHECKOUT = Path(__file__).parents[3]
HEAVY = (
    "aiohttp", "asyncio", "concurrent.futures", "difflib", "fabric", "invoke", "jinja2", "numpy",
    "paramiko", "pydantic", "ray", "rich", "ruamel.yaml", "scipy", "unittest",
)  # fmt: skip
LATER = ("fabric", "jinja2", "paramiko", "ray", "rich")
"""What has to wait until the connections are on their way."""

INVENTORY = "nodes: {{spark1: {{address: 127.0.0.1, port: {port}}}}}\n"

AT_FIRST_THREAD = """\
import json, sys, threading
from concurrent.futures import Future
from spark_cluster.cli import main
start = threading.Thread.start
seen = []

def first(thread):
    if not seen:
        seen.extend(sys.modules)
    start(thread)

threading.Thread.start = first
try:
    main()
finally:
    print(json.dumps({"first": seen, "all": list(sys.modules)}))
"""
"""The first threads are those that connect."""


def python(code: str, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(cwd)}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=cwd, env=environment
    )


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["exec", "--help"], ["up", "--help"]])
def test_help_imports_nothing_heavy(args, tmp_path):
    code = (
        "import sys\n"
        "from spark_cluster.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)\n"
    )
    done = python(code, *args, cwd=tmp_path)
    assert done.stderr.strip() == "[]"
    assert done.returncode == 0


@each_row(__file__, "startup.toml", "connecting_begins_before_the_remainder_is_imported")
def test_connecting_begins_before_the_remainder_is_imported(words, tmp_path, closed_port):
    (tmp_path / "inventory.yaml").write_text(INVENTORY.format(port=closed_port))
    done = python(AT_FIRST_THREAD, *words.split(), cwd=tmp_path)
    modules = json.loads(done.stdout.splitlines()[-1])
    assert [name for name in LATER if name in modules["first"]] == []
    assert not {"aiohttp", "ray"} & set(modules["all"])
    order = [name for name in modules["all"] if name in ("fabric", "jinja2", "rich")]
    assert order[0] == "fabric" or order == ["rich"], "rich alone: it shows why no one was reached"


def test_up_reads_no_formulas_before_something_is_to_be_started(tmp_path):
    """They and the catalogue's rules are for a plan: when all is up, none is made."""
    code = "import sys, playbooks.up; print([m for m in sys.modules if '.plan.' in m])"
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "spark_cluster.plan.planner" not in done.stdout
    assert "spark_cluster.plan.fit" not in done.stdout


def test_the_time_counts_from_the_start_of_the_process(tmp_path):
    code = (
        "import time\n"
        "before = time.monotonic()\n"
        "from spark_cluster import cli\n"
        "print(cli.STARTED - before, time.monotonic() - cli.STARTED)\n"
    )
    began = time.monotonic()
    done = python(code, cwd=tmp_path)
    whole = time.monotonic() - began
    first, elapsed = map(float, done.stdout.split())
    assert 0 <= first <= elapsed <= whole
