"""What the source of a release says of its options, read from its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ARGUMENTS = "vllm/engine/arg_utils.py"
PARSERS = {"tool-call-parser": "tool_parsers", "reasoning-parser": "reasoning"}
"""Options whose values are registered, and the package that has the table."""
LOADERS = "vllm/model_executor/model_loader/__init__.py"
BACKENDS = "vllm/v1/attention/backends/registry.py"
NAMED = {"speculative-config.method": "SpeculativeMethod", "kv-cache-dtype": "CacheDType"}
"""Options whose values are checked after they were read, by the name of the set."""


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _added(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield the long options that a file adds, with their calls."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            for given in node.args:
                if isinstance(given, ast.Constant) and str(given.value).startswith("--"):
                    yield str(given.value).removeprefix("--"), node


def options(source: Path) -> set[str]:
    """Return the options of `vllm serve`, without dashes and without `no-`."""
    entrypoints = sorted((source / "vllm/entrypoints").glob("*/cli_args.py"))
    found = {name for path in (source / ARGUMENTS, *entrypoints) for name, _ in _added(path)}
    found |= {name for path in entrypoints for _, name, _ in _annotated(path)}
    return {name.removeprefix("no-").replace("_", "-") for name in found}


def values(source: Path) -> dict[str, set[str]]:
    """Return the values of each option that takes some only; others are refused."""
    literals = _literals(source)
    fields = _fields(source)
    found: dict[str, set[str]] = {}
    made = _arguments(source)
    for name, call in _added(source / ARGUMENTS):
        for place in _places(call, made):
            found[name] = _taken(fields.get(place), literals) or set()
    for option, package in PARSERS.items():
        found[option] = _keys(source / f"vllm/{package}/__init__.py", "_TO_REGISTER")
    found["load-format"] = _keys(source / LOADERS, "_LOAD_FORMAT_TO_MODEL_LOADER")
    found["attention-backend"] = {"auto", *_members(source / BACKENDS, "AttentionBackendEnum")}
    for option, name in NAMED.items():
        found[option] = _taken(ast.Name(name), literals) or set()
    return {option: taken for option, taken in found.items() if taken}


def variables(source: Path) -> set[str]:
    """Return the variables that vLLM reads as its own; of others it warns, and does nothing."""
    named = _keys(source / "vllm/envs.py", "environment_variables")
    return {name for name in named if name.startswith("VLLM_")}


def _arguments(source: Path) -> dict[str, tuple[str, str]]:
    """Return the class of configuration, and the field if it is of one, by the variable that holds
    its arguments.
    """
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(_tree(source / ARGUMENTS)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "get_kwargs":
                found[name] = getattr(value.args[0], "id", ""), ""
            for variable, field in _subscripts(value):
                if variable in found:
                    found[name] = found[variable][0], field
    return found


def _subscripts(node: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield the variables and keys that an expression looks up: `cache_kwargs["block_size"]`."""
    for one in ast.walk(node):
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant):
            yield getattr(one.value, "id", ""), str(one.slice.value)


def _places(call: ast.Call, made: dict[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the class and the field that an option's argument is of."""
    for value in (keyword.value for keyword in call.keywords if keyword.arg is None):
        if isinstance(value, ast.Name) and value.id in made:
            yield made[value.id]
        for variable, field in _subscripts(value):
            yield made.get(variable, ("", ""))[0], field


def _fields(source: Path) -> dict[tuple[str, str], ast.expr]:
    paths = (source / "vllm/config").glob("*.py")
    return {(made, name): kind for path in paths for made, name, kind in _annotated(path)}


def _annotated(path: Path) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield the class, the name and the type of each field in a file."""
    for made in (node for node in _tree(path).body if isinstance(node, ast.ClassDef)):
        for field in made.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                yield made.name, field.target.id, field.annotation


def _assigned(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that statements give to values, with these."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(targets[0], ast.Name) and isinstance(value, ast.expr):
            yield targets[0].id, value


def _literals(source: Path) -> dict[str, ast.expr]:
    """Return the names that are given to sets of values."""
    paths = (source / "vllm/config").glob("*.py")
    named = (pair for path in paths for pair in _assigned(_tree(path).body))
    return {name: value for name, value in named if isinstance(value, ast.Subscript)}


def _taken(kind: ast.expr | None, literals: dict[str, ast.expr]) -> set[str] | None:
    """Return the texts that a type takes; None where it takes any, or is no set of texts."""
    found: set[str] = set()
    todo = [kind]
    while todo:
        one = todo.pop()
        if isinstance(one, ast.BinOp):
            todo += [one.left, one.right]
        elif isinstance(one, ast.Name) and one.id in literals:
            todo.append(literals[one.id])
        elif isinstance(one, ast.Subscript) and getattr(one.value, "id", "") == "Literal":
            todo += one.slice.elts if isinstance(one.slice, ast.Tuple) else [one.slice]
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found.add(one.value)
        elif not (isinstance(one, ast.Constant) and one.value is None) and not (
            isinstance(one, ast.Attribute) and one.attr == "dtype"
        ):
            return None
    return found


def _keys(path: Path, suffix: str) -> set[str]:
    """Return the keys of a table that is written out."""
    for name, value in _assigned(_tree(path).body):
        if name.endswith(suffix) and isinstance(value, ast.Dict):
            return {str(key.value) for key in value.keys if isinstance(key, ast.Constant)}
    return set()


def _members(path: Path, name: str) -> set[str]:
    classes = (node for node in _tree(path).body if isinstance(node, ast.ClassDef))
    return {member for one in classes if one.name == name for member, _ in _assigned(one.body)}
