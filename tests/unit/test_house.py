"""The house keeps its size: code lines a room, files, late imports, owners of names.

A budget is a means. A new feature pays with lines of its room, or changes the table here in the
same commit and says why. Counted are lines with code on them: blank lines, comments and docstrings
cost nothing.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from test_layers import MODULES, PACKAGE, imports, layer, statements, tree

BUDGETS = {
    "errors": 50,  # naming: how an OSError is told, for all rooms
    "node": 8_409,  # dockerd.py: names of archives; host.py: proxies; http.py: whose port
    "resources": 3_910,
    "agent": 1_878,
    "config": 5_631,  # yamlfile.py: pipes; launch.py: quotes; limits of netplan, YAML, mDNS
    "runner": 2_870,  # session.py: floods; dialer.py: held ports; sessions while a node is off
    "models": 2_098,  # layers.py, config.py: sparse, compressed, delta attention; searched blocks
    "plan": 4_023,  # runtime.py: what a server takes beside weights and cache; towers, videos, MTP
    "issues": 2_939,  # pasted, wrapped, cut-off lines, floods; what vLLM takes by version; drafters
    "importers": 4_784,  # kits: compose files, scripts, also those in containers; presets, limits
    "engine": 8_903,  # runtime.py: limits of patterns; readiness_checks.py: prompts; lies of nodes
    "doctor": 2_461,
    "bench": 5_767,
    "dashboard": 350,
    "cli": 8_564,  # hints to paste; screens of 80 columns; lists while a node is off
    "roles, playbooks": 1_959,
    "spark_cluster_lab": 5_500,
    "__main__": 5,
    PACKAGE: 20,
}
"""Code lines a room at most: what there is today and room for a feature or two."""

FILES, ONE_IMPORTER, LATE_IMPORTS, LONG_FUNCTIONS, MEDIAN = 323, 40, 200, 40, 9
LONG = 40
"""Lines of a function, with its docstring."""

SHARED_CLASSES: dict[str, str] = {
    "Settings": "of a role: each has its own, found by this name",
}
"""Class names with several owners, each with the reason."""

NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(text: str, module: ast.Module | None = None) -> int:
    """Return the number of lines with code: tokens that are neither comments nor docstrings.

    Args:
        module: the text, parsed.
    """
    documented: set[int] = set()
    module = module or ast.parse(text)
    for node in (module, *statements(module)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            said = node.body[0]
            documented.update(range(said.lineno, (said.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def room(module: str) -> str:
    named = layer(module)
    return {"roles": "roles, playbooks", "playbooks": "roles, playbooks"}.get(named, named)


def nodes_of(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[str, ast.AST]]:
    for module, path in OURS.items():
        yield from ((module, node) for node in statements(tree(path)) if isinstance(node, kind))


OURS = {module: path for module, path in MODULES.items() if layer(module) != "spark_cluster_lab"}
"""The product; the lab is a distribution of its own and has one budget, its lines."""


def test_rooms_keep_their_lines() -> None:
    lines: Counter[str] = Counter()
    for module, path in MODULES.items():
        if "standins" not in path.parts:
            lines[room(module)] += code_lines(path.read_text(), tree(path))
    assert set(lines) == set(BUDGETS)
    over = {name: f"{lines[name]} > {most}" for name, most in BUDGETS.items() if lines[name] > most}
    assert not over


def test_files_are_concepts() -> None:
    importers = defaultdict(set)
    for module, path in OURS.items():
        for other, _ in imports(path):
            importers[other].add(module)
    single = [
        module
        for module in OURS
        if len(importers[module]) == 1 and layer(module) != "resources"  # a kind a file, by rule
    ]
    assert len(OURS) <= FILES
    assert len(single) <= ONE_IMPORTER, single


def test_imports_stand_at_the_top() -> None:
    late = [
        f"{module}:{inner.lineno}"
        for module, function in nodes_of((ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in statements(function)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith(PACKAGE)
    ]
    assert len(set(late)) <= LATE_IMPORTS


def test_a_name_has_one_owner() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for module, node in nodes_of(ast.ClassDef):
        owners[node.name].add(module)  # type: ignore[attr-defined]
    several = {name: sorted(found) for name, found in owners.items() if len(found) > 1}
    assert several.keys() == SHARED_CLASSES.keys(), several


def lengths(modules: Iterable[Path]) -> list[int]:
    return [
        (node.end_lineno or 0) - node.lineno + 1
        for path in modules
        for node in statements(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_functions_are_short() -> None:
    found = lengths(OURS.values())
    assert sum(length > LONG for length in found) <= LONG_FUNCTIONS
    assert statistics.median(found) <= MEDIAN


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""Docs.\n\nMore.\n"""\n\nx = 1  # a comment\n', 1),
        ("# only\n\n", 0),
        ('def f():\n    """Docs."""\n    return (\n        1\n    )\n', 4),
        ('x = """a\nb\n"""\n', 3),
    ],
)
def test_what_is_a_line_of_code(text: str, lines: int) -> None:
    assert code_lines(text) == lines
