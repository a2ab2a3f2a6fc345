"""A project's own resources on real agents: apply, check mode, faults, journal, revert."""

import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from example_pages import write_files
from piped_cluster import Piped, PipedNode, PipedNodes, play_over

from spark_cluster import resources
from spark_cluster.cli.history import revert_run
from spark_cluster.config import extension
from spark_cluster.config.extension import using
from spark_cluster.config.project import Project
from spark_cluster.errors import Failed, InvalidFile
from spark_cluster.node.values import Secret
from spark_cluster.resources import File
from spark_cluster.runner import wire
from spark_cluster.runner.events import Options

PAGE = "extend-resource.md"

MOUNT = """#!/bin/sh
grep " $1 " {root}/etc/fstab >>{root}/proc/self/mounts || exit 32
"""
UMOUNT = """#!/bin/sh
sed -i "\\| $1 |d" {root}/proc/self/mounts
"""

BROKEN = """
from dataclasses import dataclass
from spark_cluster.resources import Resource

@dataclass(frozen=True)
class Broken(Resource):
    path: str
    def desired(self):
        return {"x": 1}
    def observe(self, host):
        return {"x": {}["nothing"]} if self.path == "/observe" else {"x": 0}
    def converge(self, host, actual):
        host.write(self.path, "text, not bytes")
"""

KEY = """
from dataclasses import dataclass, field
from spark_cluster.resources import Resource, Secret

@dataclass(frozen=True)
class Key(Resource):
    path: str
    value: Secret
    def desired(self):
        return {"value": str(self.value)}
    def observe(self, host):
        return {"value": (host.read(self.path) or b"").decode()}
    def converge(self, host, actual):
        host.write(self.path, self.value.encode(), mode=0o600)
"""


@pytest.fixture(autouse=True)
def no_project() -> Iterator[None]:
    with using(None):
        yield


@pytest.fixture
def node(piped_nodes: PipedNodes) -> PipedNode:
    """A node with commands `mount` and `umount` that keep a list of what is mounted."""
    made = piped_nodes["spark1"]
    made.put("etc/fstab", "UUID=1 / ext4 defaults 0 1\n")
    made.put("proc/self/mounts", "/dev/vda1 / ext4 rw 0 0\n")
    for name, text in (("mount", MOUNT), ("umount", UMOUNT)):
        made.put(f"usr/local/bin/{name}", text.format(root=made.root), 0o755)
    return made


def begin(folder: Path, node: PipedNode, run: str = "r1", **options):
    return play_over(folder, lambda _node: Piped(node), ["spark1"], Options(**options), run=run)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def load(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / "resources" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
    use(folder)


def use(folder: Path) -> Project:
    """Have a project in use until the end of the test."""
    made = Project(folder)
    made.load_resources()
    extension._in_use.set(lambda: made.extensions)
    return made


def run(folder, node, *wanted, run="r1", **options):
    play, events = begin(folder, node, run, **options)
    try:
        play.apply(play.nodes, list(wanted))
    finally:
        play.connections.close()
    return events.verdicts("spark1")


def test_the_example_of_the_page(folder, node):
    """Absent, converged, unchanged, what it wrote undone, and drifted."""
    write_files(PAGE, folder)
    playbook = use(folder).load_playbook(folder / "models.py")
    before = node.text("etc/fstab")

    def go(name, **options):
        play, events = begin(folder, node, name, **options)
        try:
            playbook.function(play)
        finally:
            play.connections.close()
        return list(events.verdicts("spark1").values())

    assert go("c1", check=True) == ["change", "unknown"]
    assert not (node.root / "models").exists()
    assert go("r1") == ["change", "change"]
    line = "nas:/models /models nfs4 ro,nofail 0 0\n"
    assert node.text("etc/fstab") == before + line
    assert node.text("proc/self/mounts").endswith(line)
    assert go("r2") == ["ok", "ok"]
    play, _ = begin(folder, node, "r9")
    done, _ = revert_run(play, "r1")
    play.connections.close()
    assert node.text("etc/fstab") == before
    assert not (node.root / "models").exists()
    left = {one.what: one.why for one in done["spark1"].left}
    assert left["Mount:/models"] == "what is mounted stays mounted until the next boot"
    assert go("r10") == ["change", "change"]
    node.put("etc/fstab", before + "other:/x /models nfs4 ro 0 0\n")
    assert go("c2", check=True) == ["ok", "change"]
    assert go("r3") == ["ok", "change"]
    assert node.text("etc/fstab") == before + line
    assert node.text("proc/self/mounts").count("/models") == 2, "mounted twice"
    assert not list(folder.rglob("resources/__pycache__"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/observe", r"Broken:/observe: KeyError: 'nothing' \(resources/broken\.py:11\)"),
        ("/converge", r"Broken:/converge: TypeError: .* \(resources/broken\.py:13\)"),
    ],
)
def test_a_fault_of_its_code(folder, node, path, message):
    load(folder, broken=BROKEN)
    with pytest.raises(Failed, match=message) as caught:
        run(folder, node, File("/a", content="1"), resources.Broken(path))
    assert caught.value.hint == (
        "this is a fault of the project's resources/broken.py: correct it there"
    )
    assert "spark1: role playbook" in caught.value.where
    assert node.text("a") == "1"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("{}['gone']", r"resources/broken\.py:3: 'gone'"),
        ("__import__('gone')", r"No module named 'gone' \(resources/broken\.py:3\)"),
    ],
)
def test_code_that_cannot_be_imported_on_the_node(folder, node, fault, said):
    """It names the file and line, as where its Python is older, and the node stays usable."""
    only_here = f"import os\nif os.getpid() != {os.getpid()}:\n    {fault}\n"
    load(folder, broken=only_here + BROKEN)
    with pytest.raises(Failed, match=said):
        run(folder, node, resources.Broken("/x"))
    assert run(folder, node, File("/a", content="1"), run="r2") == {"File:/a": "change"}


def test_a_link_that_leads_nowhere_is_not_passed_over(folder):
    (folder / "resources").mkdir()
    (folder / "resources/mount.py").symlink_to("/nowhere/mount.py")
    use(folder)  # the folder may be another program's
    (folder / "resources/broken.py").write_text(dedent(BROKEN))
    with pytest.raises(InvalidFile) as caught:
        use(folder)
    assert "resources/mount.py" in str(caught.value)


def test_a_secret_of_it_is_nowhere(folder, node, tmp_path):
    load(folder, key=KEY)
    key = Secret("hunter2-hunter2")
    play, events = begin(folder, node, diff=True)
    play.apply(play.nodes, [resources.Key("/key", key)])
    play.connections.close()
    assert node.text("key") == key
    assert "hunter2" not in repr(events)
    for path in (node.root / "var").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_a_changed_file_is_another_code(folder):
    load(folder, key=KEY)
    first = wire.digest()
    load(folder, key=f"{KEY}# changed")
    assert wire.digest() != first


def test_a_resource_of_the_project_can_use_any_module_of_ours(folder, node):
    """Also one of a part of the code that the agent gets when it is first imported."""
    models = "from spark_cluster.node.store.manifest import HUB\nassert HUB\n"
    load(folder, broken=models + BROKEN.replace('{}["nothing"]', "1"))
    assert run(folder, node, resources.Broken("/observe")) == {"Broken:/observe": "ok"}


def test_the_command_line_sends_them(folder, tmp_path):
    """The order in a run: checked before the first connection is begun."""
    from click.testing import CliRunner

    from spark_cluster.cli import cli

    load(folder, broken=BROKEN)
    (folder / "resources/broken.py").write_text("import requests, spark_cluster\n")
    (folder / "inventory.yaml").write_text("nodes: {a: {address: 127.0.0.1, port: 1}}\n")
    (folder / "p.py").write_text("def main(play): pass\n")
    done = CliRunner().invoke(cli, ["--project", str(folder), "playbook", str(folder / "p.py")])
    assert "broken.py:1: resource broken: imports requests" in str(done.exception)
    assert "connect" not in done.output
