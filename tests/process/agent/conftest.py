"""A scratch node with a systemd-run and a systemctl that really run and end things."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from factories import put
from scratch_root import Node
from waiting import HANG_S

from spark_cluster.node import own_program, units
from spark_cluster.node.host import Host

PROGRAMS = Path(__file__).with_name("node_programs")
"""A systemd-run and a systemctl in Python; each finds the node's root by where it lies."""


class SystemdRoot:
    """A scratch root on which units can be run."""

    def __init__(self, root):
        self.root = root
        (root / "run/systemd/system").mkdir(parents=True)
        for program in PROGRAMS.iterdir():
            self.command(program.name, f"#!{sys.executable} -IS\n{program.read_text()}")

    def command(self, name, text):
        """Give it a program of this name."""
        put(self.root / "usr/local/bin" / name, text, 0o755)

    def units(self):
        path = self.root / "units.json"
        return list(json.loads(path.read_text()).values()) if path.exists() else []

    @property
    def folders(self):
        folder = self.root / "var/lib/spark-cluster/units"
        return list(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def alter_worker(monkeypatch, tmp_path):
    """Have units run from a copy of the code, in which `worker.py` ends with more code."""

    def alter(code):
        copy = tmp_path / "altered"
        shutil.copytree(
            f"{own_program.HERE}/{own_program.STARTER}",
            copy / own_program.STARTER,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        (copy / "spark_cluster/__init__.py").touch()
        with (copy / own_program.STARTER / "worker.py").open("a") as worker:
            worker.write(code)
        monkeypatch.setattr(own_program, "HERE", str(copy))

    return alter


@pytest.fixture
def node(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    return Node(root)


@pytest.fixture
def host(systemd):
    """`host()`: a fresh host on the scratch node, with what it told."""

    def make():
        found = Host(root=systemd.root)
        found.lines, found.notes = [], []
        found.progress, found.note = found.lines.append, found.notes.append
        return found

    return make


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "TELL_S", HANG_S)  # the fake one itself does what it is told
    root = tmp_path / "spark1"
    root.mkdir()
    return SystemdRoot(root)
