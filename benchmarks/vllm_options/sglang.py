"""What the source of a release of SGLang says of its options, read from its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from benchmarks.vllm_options.source import added, annotated, keys, literals, taken

ROOT, PICTURES = "sglang/srt", "sglang/multimodal_gen"
PARSERS = {
    "tool-call-parser": ("function_call/function_call_parser.py", "ToolCallParserEnum"),
    "reasoning-parser": ("parser/reasoning_parser.py", "DetectorMap"),
}
"""Options whose values are registered, and the table of these."""


def _files(source: Path) -> list[Path]:
    return [source / ROOT / "server_args.py", *(source / ROOT / "arg_groups").rglob("*.py")]


def _declared(path: Path) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the options that a file has, each with what tells its values."""
    for name, call in added(path):
        yield name, {word.arg: word.value for word in call.keywords}.get("choices")
    for _, field, kind in annotated(path):  # A[type, "help"], or A[type, Arg(help=..., ...)]
        if isinstance(kind, ast.Subscript) and isinstance(kind.slice, ast.Tuple):
            calls = [one for one in kind.slice.elts if isinstance(one, ast.Call)]
            given = {word.arg: word.value for one in calls for word in one.keywords}
            made = {ast.unparse(one.func) for one in calls}
            if ast.unparse(kind.value) == "A" and "Derived" not in made and "no_cli" not in given:
                names = [given.get("cli_name", ast.Constant(field))]
                names += getattr(given.get("aliases"), "elts", ())
                told = given.get("choices", kind.slice.elts[0])
                yield from ((ast.literal_eval(name), told) for name in names)


def options(source: Path) -> set[str]:
    """Return the options of the servers, also of the one for pictures, without dashes."""
    paths = [*_files(source), *(source / PICTURES).rglob("server_args.py")]
    found = {name for path in paths for name, _ in _declared(path)}
    return {name.removeprefix("--").replace("_", "-") for name in found}


def values(source: Path) -> dict[str, set[str]]:
    """Return the values of each option that takes some only; others are refused."""
    sets = literals(_files(source))
    found: dict[str, set[str]] = {}
    for name, kind in (pair for path in _files(source) for pair in _declared(path)):
        found[name.removeprefix("--").replace("_", "-")] = taken(kind, sets) or set()
    for option, (path, table) in PARSERS.items():
        found[option] = {"auto", *keys(source / ROOT / path, table)}
    return {option: known for option, known in found.items() if known}


def variables(_source: Path) -> set[str]:
    """Return nothing: SGLang reads variables in many places, and warns of none."""
    return set()
