"""An image that scripts of others change, on real Docker: built once a node, without network."""

import hashlib
from typing import Any

import lab_recipes
import pytest
from commandline import CommandLine, until
from factories import put
from on_nodes import containers

from spark_cluster_lab import LabNode

pytestmark = pytest.mark.lab

NAME = "lab-mods"
UP = ("up", "--tp", "2", "--recipe", NAME)
IMAGE = "spark-cluster/lab-mods:mods"
ALLOWED = (*UP, "--allow-build")
SCRIPT = """\
#!/bin/bash
set -e
cp changed.txt /etc/changed
ls /sys/class/net > /etc/links
echo "$PWD $WORKSPACE_DIR $GREETING" > /etc/where
"""


@pytest.fixture(scope="module")
def user(user: CommandLine) -> CommandLine:
    put(user.home / f"recipes/{NAME}.mods/fix/run.sh", SCRIPT)
    put(user.home / f"recipes/{NAME}.mods/fix/changed.txt", "changed\n")
    write(user)
    return user


def write(user: CommandLine, **changed: Any) -> None:
    """The lab's recipe, its image changed by the script as it is now."""
    folder = user.home / f"recipes/{NAME}.mods/fix"
    files = [
        {
            "path": path.name,
            "file": f"{NAME}.mods/fix/{path.name}",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.iterdir())
    ]
    step = {"name": "fix", "files": files, "env": {"GREETING": 'a "b" $c'}}
    data = lab_recipes.shipped(name=NAME)
    build = {"base": data["image"], "steps": [step], "why": "a test", **changed}
    lab_recipes.write(user, data | {"image": {"ref": IMAGE, "build": build}})


def inside(node: LabNode, path: str) -> str:
    look = ["docker", "run", "--rm", "--entrypoint", "cat", IMAGE, path]
    return node.run(look).stdout.strip()


def built(node: LabNode) -> str:
    shown = ["docker", "image", "inspect", "-f", "{{.Id}}", IMAGE]
    return node.run(shown).stdout.strip()


def test_each_node_builds_it_once_without_a_network(user, spark1, spark2):
    assert "Paris" in user.json(*ALLOWED)["answer"]
    for node in (spark1, spark2):
        assert inside(node, "/etc/changed") == "changed"
        assert inside(node, "/etc/links") == "lo", "the build sees no network"
        assert inside(node, "/etc/where").startswith("/workspace/mods/fix ")
        assert inside(node, "/etc/where").endswith('a "b" $c')
    before = [built(node) for node in (spark1, spark2)]
    assert user.json(*ALLOWED)["changed"] == 0
    assert [built(node) for node in (spark1, spark2)] == before


def of_builds(node: LabNode) -> list[str]:
    """Containers of build steps, running or not."""
    return [name for name in containers(node, all=True) if not name.startswith("spark-")]


def test_a_script_that_fails_or_never_ends(user, spark1):
    before = built(spark1)
    script = user.home / f"recipes/{NAME}.mods/fix/run.sh"
    put(script, "echo the patch does not apply >&2\nexit 1\n")
    write(user)
    ran = user(*ALLOWED, status=1)
    assert "building spark-cluster/lab-mods:mods failed" in ran.printed
    assert "the patch does not apply" in ran.printed
    assert of_builds(spark1) == []
    put(script, "sleep 600\n")
    write(user, timeout_s=20)
    assert "20 s" in user(*ALLOWED, status=1).printed
    assert built(spark1) == before, "the image that was there stays"
    until(lambda: not of_builds(spark1), 60, "the step's container is gone")
