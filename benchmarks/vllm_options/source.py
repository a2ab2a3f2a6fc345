"""What the source of a release says of its options, read from its syntax trees."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ARGUMENTS = "vllm/engine/arg_utils.py"
PARSERS = {"tool-call-parser": "tool_parsers", "reasoning-parser": "reasoning"}
"""Options whose values are registered, and the package that has the table."""
LOADERS = "vllm/model_executor/model_loader/__init__.py"
BACKENDS = "vllm/v1/attention/backends/registry.py"
LISTING = ("Literal", "Optional")
"""Types that say their values, or nothing about them."""
NAMED = {"speculative-config.method": "SpeculativeMethod", "kv-cache-dtype": "CacheDType"}
"""Options whose values are checked after they were read, by the name of the set."""
MODELS = ("vllm/model_executor/models", "vllm/models")
REGISTRY = f"{MODELS[0]}/registry.py"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def added(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield the long options that a file adds, with their calls."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            for given in node.args:
                if isinstance(given, ast.Constant) and str(given.value).startswith("--"):
                    yield str(given.value).removeprefix("--"), node


def options(source: Path) -> set[str]:
    """Return the options of `vllm serve`, without dashes and without `no-`."""
    entrypoints = sorted((source / "vllm/entrypoints").glob("*/cli_args.py"))
    found = {name for path in (source / ARGUMENTS, *entrypoints) for name, _ in added(path)}
    found |= {name for path in entrypoints for _, name, _ in annotated(path)}
    return {name.removeprefix("no-").replace("_", "-") for name in found}


def values(source: Path) -> dict[str, set[str]]:
    """Return the values of each option that takes some only; others are refused.

    Nothing for a release that has its tables elsewhere.
    """
    if not (source / BACKENDS).is_file():
        return {}
    sets = literals((source / "vllm/config").glob("*.py"))
    fields = _fields(source)
    found: dict[str, set[str]] = {}
    made = _arguments(source)
    for name, call in added(source / ARGUMENTS):
        for place in _places(call, made):
            found[name] = taken(fields.get(place), sets) or set()
    for option, package in PARSERS.items():
        found[option] = keys(source / f"vllm/{package}/__init__.py", "_TO_REGISTER")
    found["load-format"] = keys(source / LOADERS, "_LOAD_FORMAT_TO_MODEL_LOADER")
    found["attention-backend"] = {"auto", *_members(source / BACKENDS, "AttentionBackendEnum")}
    for option, name in NAMED.items():
        found[option] = taken(ast.Name(name), sets) or set()
    return {option: known for option, known in found.items() if known}


def variables(source: Path) -> set[str]:
    """Return the variables that vLLM reads as its own; of others it warns, and does nothing."""
    named = keys(source / "vllm/envs.py", "environment_variables")
    return {name for name in named if name.startswith("VLLM_")}


def architectures(source: Path) -> dict[str, str]:
    """Return the class of each architecture that the registry of models has."""
    found: dict[str, str] = {}
    for name, value in assigned(tree(source / REGISTRY).body):
        if name.endswith("_MODELS") and isinstance(value, ast.Dict):
            for key, made in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(made, ast.Tuple):
                    found[str(key.value)] = ast.literal_eval(made)[-1]  # after its module
    return found


def bases(source: Path) -> dict[str, set[str]]:
    """Return the names of the bases of each class of the models, of all classes of one name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (path for folder in MODELS for path in (source / folder).rglob("*.py")):
        read = ast.parse(path.read_text(encoding="utf-8"))  # too many to be kept
        for made in (node for node in ast.walk(read) if isinstance(node, ast.ClassDef)):
            found[made.name] |= {ast.unparse(base).rpartition(".")[2] for base in made.bases}
    return found


def lacks(ability: str, name: str, known: Mapping[str, set[str]]) -> bool:
    """Return whether a class is found and does not inherit from an interface."""
    seen, todo = set[str](), {name}
    while todo:
        seen |= todo
        todo = {base for one in todo for base in known.get(one, ())} - seen
    return name in known and ability not in seen


def _arguments(source: Path) -> dict[str, tuple[str, str]]:
    """Return the class of configuration, and the field if it is of one, by the variable that holds
    its arguments.
    """
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree(source / ARGUMENTS)):
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
    return {(made, name): kind for path in paths for made, name, kind in annotated(path)}


def annotated(path: Path) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield the class, the name and the type of each field in a file."""
    for made in (node for node in tree(path).body if isinstance(node, ast.ClassDef)):
        for field in made.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                yield made.name, field.target.id, field.annotation


def assigned(body: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that statements give to values, with these."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(targets[0], ast.Name) and isinstance(value, ast.expr):
            yield targets[0].id, value


def literals(paths: Iterable[Path]) -> dict[str, ast.expr]:
    """Return the names that are given to sets of values."""
    named = (pair for path in paths for pair in assigned(tree(path).body))
    return {name: value for name, value in named if isinstance(value, ast.Subscript | ast.List)}


def taken(kind: ast.expr | None, sets: Mapping[str, ast.expr]) -> set[str] | None:
    """Return the texts that a type takes; None where it takes any, or is no set of texts."""
    found: set[str] = set()
    todo = [kind]
    while todo:
        one = todo.pop()
        if isinstance(one, ast.BinOp):
            todo += [one.left, one.right]
        elif isinstance(one, ast.Name) and one.id in sets:
            todo.append(sets[one.id])
        elif isinstance(one, ast.Subscript) and getattr(one.value, "id", "") in LISTING:
            todo.append(one.slice)
        elif isinstance(one, ast.Tuple | ast.List):
            todo += one.elts
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found.add(one.value)
        elif not (isinstance(one, ast.Constant) and one.value is None) and not (
            isinstance(one, ast.Attribute) and one.attr == "dtype"
        ):
            return None
    return found


def keys(path: Path, suffix: str) -> set[str]:
    """Return the keys of a table that is written out."""
    for name, value in assigned(ast.walk(tree(path))):
        if name.endswith(suffix) and isinstance(value, ast.Dict):
            return {str(key.value) for key in value.keys if isinstance(key, ast.Constant)}
    return set()


def _members(path: Path, name: str) -> set[str]:
    classes = (node for node in tree(path).body if isinstance(node, ast.ClassDef))
    return {member for one in classes if one.name == name for member, _ in assigned(one.body)}
