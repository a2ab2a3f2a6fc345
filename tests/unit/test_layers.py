"""Imports go downwards only: the folders are layers, and no two modules import each other.

An import counts wherever it stands: in a function, or for types only.
"""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "spark_cluster"
LAYERS = (
    "errors", "node", "resources", "agent",
    "config", "models", "importers", "issues",
    "runner", "plan", "engine",
    "doctor", "bench", "dashboard", "cli",
    "__main__",
)  # fmt: skip
"""Of the package, the lowest first; roles and playbooks are above all but the command line."""
ABOVE_THEM = {"dashboard", "cli", "__main__"}
LAB = "spark_cluster_lab"
"""A distribution of its own, which imports what it needs; the product knows its entry points."""


def modules() -> dict[str, Path]:
    """Return each module of the product by its dotted name."""
    found = {}
    lab = ROOT / "packages/spark-cluster-lab"
    for folder in (ROOT / PACKAGE, ROOT / "roles", ROOT / "playbooks", lab / LAB):
        for path in folder.rglob("*.py"):
            if "assets" not in path.parts:  # these run inside the lab's vLLM environment
                name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> list[tuple[str, int]]:
    """Return the modules of ours that a module imports, with the lines."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in statements(tree(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in whole]
        for name in names:
            if name in MODULES and MODULES[name] != path:
                yield name, node.lineno  # type: ignore[attr-defined]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node; expressions, of which there are far more, hold none."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for below in getattr(node, name, ()):
            yield below
            yield from statements(below)


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == PACKAGE else parts[0]


def test_imports_go_downwards():
    wrong = []
    for module, path in MODULES.items():
        if module == PACKAGE or layer(module) == LAB:
            continue  # the first has the names of the API, for type checkers, and imports nothing
        for other, line in imports(path):
            ours, theirs = layer(module), layer(other)
            if other == PACKAGE or ours == theirs:
                continue
            if ours in ("roles", "playbooks"):
                up = theirs in {*ABOVE_THEM, LAB}
            else:
                up = theirs not in LAYERS or LAYERS.index(theirs) > LAYERS.index(ours)
            if up:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {ours} may not import {theirs}")
    assert not wrong, "\n".join(wrong)


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of one circle; none when there is none."""
    done: set[str] = set()
    for start in graph:
        path, waiting = [start], [iter(sorted(graph[start]))]
        while waiting and start not in done:
            following = next(waiting[-1], None)
            if following is None:
                done.add(path.pop())
                waiting.pop()
            elif following in path:
                return path[path.index(following) :]
            elif following not in done:
                path.append(following)
                waiting.append(iter(sorted(graph.get(following, ()))))
    return []


def test_no_modules_import_each_other():
    graph = {module: {name for name, _ in imports(path)} for module, path in MODULES.items()}
    graph[PACKAGE] = set()  # as above
    assert not cycle(graph), " -> ".join(cycle(graph))


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c"]),
        ({"a": {"c"}, "b": {"a"}, "c": {"b"}}, ["a", "c", "b"]),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}, []),
    ],
)
def test_a_circle_is_found(graph, found):
    assert cycle(graph) == found


def test_every_folder_is_a_layer():
    assert {layer(name) for name in MODULES} - {PACKAGE, "roles", "playbooks", LAB} == set(LAYERS)
