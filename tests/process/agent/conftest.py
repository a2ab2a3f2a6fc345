"""A scratch node with a systemd-run and a systemctl that really run and end things."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from factories import put
from scratch_root import Node
from waiting import HANG_S

from spark_cluster.node import own_program, units
from spark_cluster.node.host import Host

# As with systemd, a unit inherits nothing of who asks for it: not even by its environment does it
# belong to the command that is ended when the laptop is gone.
SYSTEMD_RUN = """
import json, os, subprocess, sys
options = sys.argv[1:sys.argv.index("--")]
argv = sys.argv[sys.argv.index("--") + 1:]
units = {root!r} + "/units.json"
known = json.loads(open(units).read()) if os.path.exists(units) else {{}}
unit = next(o.partition("=")[2] for o in options if o.startswith("--unit="))
process = subprocess.Popen(argv, start_new_session=True, env={{}}, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=open({root!r} + "/worker.err", "a"))
known[unit] = {{"pid": process.pid, "options": options, "argv": argv,
               "starts": known.get(unit, {{}}).get("starts", 0) + 1}}
open(units + ".new", "w").write(json.dumps(known))
os.replace(units + ".new", units)
"""

SYSTEMCTL = """
import json, os, signal, sys, time
action, *_options, unit = sys.argv[1:]
pid = json.loads(open({root!r} + "/units.json").read())[unit]["pid"]
assert action == "stop", sys.argv
children = open("/proc/%d/task/%d/children" % (pid, pid)).read().split()
for one in [pid, *map(int, children)]:
    os.kill(one, signal.SIGTERM)
while os.path.exists("/proc/%d" % pid) and ") Z " not in open("/proc/%d/stat" % pid).read():
    time.sleep(0.01)
"""


class SystemdRoot:
    """A scratch root on which units can be run."""

    def __init__(self, root):
        self.root = root
        (root / "run/systemd/system").mkdir(parents=True)
        for name, text in (("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL)):
            self.command(name, f"#!{sys.executable} -IS\n{text.format(root=str(root))}")

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
