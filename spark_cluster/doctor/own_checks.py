"""Checks of the user's project: functions in its `checks/*.py`, and the `log_check`s of its known
issues.

They run on the laptop, over what the nodes answered. What they want to be looked at is asked
together with the rest: an argument list, a file or a glob of files, never a text for a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from spark_cluster.config.yamlfile import shown
from spark_cluster.doctor import logs, reach, registry
from spark_cluster.doctor.check import Check, Look, NodeCheck
from spark_cluster.doctor.observations import Observations
from spark_cluster.doctor.question import Context, NodeSource
from spark_cluster.doctor.question import sources as shipped_sources
from spark_cluster.doctor.verdict import NotSeen, Verdict, unknown
from spark_cluster.errors import InvalidFile
from spark_cluster.known_issues.entries import own, per_project
from spark_cluster.known_issues.match import Effect
from spark_cluster.loader.extension import CHECKS, Extensions, extensions_in_use, where_raised


@per_project
def _searches() -> tuple[logs.LogSearch, ...]:
    found = logs.searches(own().values())
    known = {check.id for check in registry.ALL}
    for search in found:
        if search.id in known:
            issue = search.issues[0].id
            raise InvalidFile(f"{issue}: log_check.id: there is a check {search.id} already")
    return found


def words() -> tuple[str, ...]:
    """Return what else a node looks for in the engine's logs."""
    return tuple(word for search in _searches() for word in search.words)


def sources() -> dict[str, NodeSource]:
    """Return what else is looked at on a node, by name."""
    return {name: source for check in checks() for name, source in check.sources.items()}


def checks() -> tuple[NodeCheck, ...]:
    """Return the checks of the project.

    Raises:
        InvalidFile: a file or a check is wrong, with the line.
        Refused: others can write them.
    """
    return (*_of_files(), *_of_logs())


def _of_logs() -> Iterator[NodeCheck]:
    return (logs.check_of(search) for search in _searches())


@per_project
def _of_files() -> tuple[NodeCheck, ...]:
    """The checks of all files, which are run once."""
    extensions = extensions_in_use()
    found: dict[str, NodeCheck] = {}
    if extensions is None:
        return ()
    for path in extensions.files(CHECKS, ".py", b"spark_cluster"):
        for check in _of_file(path, extensions):
            _must_fit(check, path, found)
            found[check.id] = replace(check, look=partial(_guarded, check.look, path))
    return tuple(found.values())


def _of_file(path: Path, extensions: Extensions) -> list[NodeCheck]:
    what = f"checks {path.stem}"
    module = extensions.load_module(path, f"checks.{path.stem}", what)
    found = [value for value in vars(module).values() if isinstance(value, Check)]
    if not found:
        raise InvalidFile(
            f"{what}: no check",
            where=f"{shown(path)}:1",
            hint="put @check(...) of spark_cluster.doctor.check above a function",
        )
    return found


def _must_fit(check: NodeCheck, path: Path, others: Mapping[str, NodeCheck]) -> None:
    """Raise InvalidFile unless a check can be run next to the others."""
    problem = _problem(check, others)
    if problem:
        code = getattr(check.look, "__code__", None)
        line = code.co_firstlineno if code is not None else 1
        raise InvalidFile(f"check {check.id}: {problem}", where=f"{shown(path)}:{line}")


def _problem(check: NodeCheck, others: Mapping[str, NodeCheck]) -> str:
    if not re.fullmatch(r"[a-z]+\.[a-z0-9-]+", str(check.id)):
        return f"id: found {check.id!r}, expected area.what, such as nas.mounted"
    if check.id in others or check.id in {reach.ID, *(one.id for one in registry.ALL)}:
        return "id: there is a check of this id already"
    if check.effect not in get_args(Effect):
        return f"effect: found {check.effect!r}, expected {', '.join(get_args(Effect))}"
    asked = {name: s for other in others.values() for name, s in other.sources.items()}
    return _source_problem(check, asked)


def _source_problem(check: NodeCheck, asked: Mapping[str, NodeSource]) -> str:
    """Return what is wrong with what a check wants to be looked at.

    Args:
        asked: what other checks of the project want.
    """
    known = shipped_sources(Context())
    for name, source in check.sources.items():
        if name in known or asked.get(name, source) != source:
            return f"sources: {name}: there is a source of this name already"
        if not _is_plain(source):
            return (
                f"sources: {name}: expected a NodeSource with either argv (a tuple of words), "
                "path or tree"
            )
    for need in check.needs:
        if need not in known and need not in check.sources:
            return f"needs: {need}: no such source"
    return ""


def _is_plain(source: object) -> bool:
    if not isinstance(source, NodeSource) or not isinstance(source.label, str):
        return False
    one = [what for what in (source.argv, source.path, source.tree) if what]
    is_list = isinstance(source.argv, tuple) and all(isinstance(w, str) for w in source.argv)
    return len(one) == 1 and is_list


def _guarded(look: Look[Observations], path: Path, seen: Observations) -> Verdict:
    """The verdict of a project's function; its fault is no end of the examination."""
    try:
        verdict = look(seen)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"it returned {type(verdict).__name__}, expected ok, warn or fail")
    except NotSeen:
        raise
    except Exception as error:  # noqa: BLE001  (of the user's code; the other checks go on)
        place = where_raised(error, path) or shown(path)
        return unknown(f"{place}: {type(error).__name__}: {error}")
    return verdict
