"""Which folders of a node a container may have."""

import ast
import re
from pathlib import Path, PurePosixPath

import pytest
from cases import cases

from spark_cluster.config.recipe import is_for_models, why_not_writable, why_refused
from spark_cluster.node import paths

CASES = cases(__file__, "node_paths.toml")


GROUPS = [(path, group) for group in ("refused", "allowed", "read_only") for path in CASES[group]]


@pytest.mark.parametrize(("path", "group"), GROUPS)
def test_a_folder_is_refused_or_allowed_or_may_only_be_read(path, group):
    assert bool(why_refused(path, read_only=True)) is (group == "refused")
    assert bool(why_refused(path, read_only=False)) is (group != "allowed")


@pytest.mark.parametrize("path", CASES["by_permission"])
def test_what_is_written_is_named_by_the_user(path):
    assert why_not_writable(path)
    assert not why_not_writable(f"{path}/", (path,))
    assert not why_not_writable(f"/{path}/sub", (f"{path}/",))
    assert why_not_writable(f"{path}s", (path,))
    assert why_not_writable(f"{path}/../etc", (path,))


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/infiniband"])
def test_memory_and_links_are_no_files(path):
    assert not why_not_writable(path)


@pytest.mark.parametrize("path", ["/srv/models/m", "/srv/models/a/b", "//srv//models/m/"])
def test_the_folder_of_models(path):
    """Root writes there; a container could change the models of others."""
    assert is_for_models(path)
    assert why_refused(path, read_only=False)
    assert not why_refused(path, read_only=True)


@pytest.mark.parametrize("path", ["/srv/models", "/srv", "/srv/models/../x", "/srv/modelsx/m"])
def test_what_is_no_place_of_a_model(path):
    assert not is_for_models(path)


def own_paths() -> list[str]:
    """Every path that the module names, with a word where a name is to be filled in."""
    found = [value for name, value in vars(paths).items() if name.isupper()]
    listed = [path for value in found for path in ([value] if isinstance(value, str) else value)]
    return sorted({path.format("x") for path in listed} - {paths.MODELS_FOLDER})


@pytest.mark.parametrize("path", own_paths())
def test_no_recipe_reaches_what_is_our_own(path):
    """Nor what is below, whatever the user allows; nor can it write to a folder above."""
    parents = [str(parent) for parent in PurePosixPath(path).parents]
    for reached in (path, f"{path}/sub"):
        assert why_not_writable(reached, (path, *parents)) or why_refused(reached, read_only=False)
        assert why_refused(reached, read_only=False)
        assert why_refused(reached, read_only=True) or reached.startswith("/usr/")
    for parent in parents:
        assert why_refused(parent, read_only=False), parent


LAB = "packages/spark-cluster-lab/spark_cluster_lab/"


def spelled(source: str) -> list[str]:
    """The texts of a module, docstrings apart, that are paths of our own on a node."""
    if not OWN_PATH.search(source):
        return []
    tree = ast.parse(source)
    told = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
    ]
    return [text for text in texts if OWN_PATH.search(text)]


OWN_PATH = re.compile(r"/(etc|var|run|usr|opt|srv)/\S*spark-(cluster|drop)(?!\.pem)")


def test_they_stand_in_one_module():
    root = Path(__file__).parents[3]
    home = root / "spark_cluster/node/paths.py"
    assert spelled(home.read_text())
    for folder in ("spark_cluster", "roles", "playbooks"):
        for path in sorted((root / folder).rglob("*.py")):
            if path != home and not str(path.relative_to(root)).startswith(LAB):
                assert not spelled(path.read_text()), path


def test_the_rule_of_one_module_finds_what_it_looks_for():
    assert spelled('A = f"/etc/sudoers.d/90-spark-cluster-{user}"')
    assert not spelled('"""/var/lib/spark-cluster"""')
