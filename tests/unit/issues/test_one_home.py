"""A trouble stands once: what doctor, the roles and the playbooks find, the catalogue explains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories import KNOWN_ISSUE, put

from spark_cluster.config.facts import load_pins
from spark_cluster.doctor import examine, serving
from spark_cluster.errors import InvalidFile
from spark_cluster.issues import entries
from spark_cluster.issues.entries import FOLDER, STEPS, for_check, steps

ROOT = Path(__file__).parents[3]
CATALOGUE = entries.catalogue()
CHECKS = {*(check.id for check in examine.ALL), examine.ID}
BY_FUNCTION = CHECKS - {check.id for check in serving.CHECKS}
PINS = load_pins(ROOT / "roles/drivers/pins.json")


def test_every_check_is_explained():
    assert [check for check in sorted(CHECKS) if not for_check(check)] == []


def test_entries_name_checks_that_are_there():
    for issue in CATALOGUE.values():
        assert set(issue.checks) <= BY_FUNCTION, issue.id
        if issue.log_check is not None:
            assert issue.log_check.id not in BY_FUNCTION, f"{issue.id}: a function has this id"


def verdicts() -> Iterator[tuple[str, str, int, str | None]]:
    """Each `warn(...)` and `fail(...)` of a check: its id, the file, the line, the issue named.

    The issue is None where none is named, and empty where it is computed.
    """
    for path in sorted((ROOT / "spark_cluster/doctor").glob("*.py")):
        for function in ast.parse(path.read_text()).body:
            if isinstance(function, ast.FunctionDef) and (check := _check_of(function)):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and _judges(call.func):
                        yield check, path.name, call.lineno, _issue(call)


def _check_of(function: ast.FunctionDef) -> str:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "check":
            return ast.literal_eval(decorator.args[0])
    return examine.ID if function.name in ("reached", "unreached") else ""


def _judges(function: ast.expr) -> bool:
    if isinstance(function, ast.IfExp):
        return _judges(function.body) or _judges(function.orelse)
    return isinstance(function, ast.Name) and function.id in ("warn", "fail")


def _issue(call: ast.Call) -> str | None:
    if len(call.args) < 2:
        return None
    return call.args[1].value if isinstance(call.args[1], ast.Constant) else ""


def test_a_verdict_names_an_issue_of_its_check():
    for check, file, line, issue in verdicts():
        if issue:
            assert issue in {found.id for found in for_check(check)}, f"{file}:{line}"


def test_a_verdict_names_its_issue_where_a_check_has_several():
    """Otherwise cause and fix would be a guess, and stay empty."""
    unnamed = [
        f"{file}:{line}: {check}"
        for check, file, line, issue in verdicts()
        if issue is None and len(for_check(check)) > 1 and check != examine.ID
    ]
    assert unnamed == []


def test_every_issue_of_a_check_can_come_of_it():
    named: dict[str, set[str | None]] = {}
    for check, _, _, issue in verdicts():
        named.setdefault(check, set()).add(issue)
    named["driver.known-bad"] = {rule["issue"] for rule in PINS.rules}
    for check in ("kernel.fault", "driver.power-off"):  # by the issues' own signs
        own = named.get(check, set()) - {""}
        named[check] = own | {issue.id for issue in for_check(check) if issue.log}
    for check in BY_FUNCTION:
        known = {issue.id for issue in for_check(check)}
        assert len(known) == 1 or known == named[check] - {None}, check


def test_what_is_known_to_be_bad_is_explained_where_it_runs():
    for rule in PINS.rules:
        checks = CATALOGUE[rule["issue"]].checks
        assert "pin" in rule or "driver.known-bad" in checks, rule["id"]


def test_a_check_of_logs_has_one_title():
    for search in serving.SEARCHES:
        titles = [issue.log_check.title for issue in search.issues]
        assert sum(bool(title) for title in titles) == 1, search.id


# --- steps ------------------------------------------------------------------------------------


def test_steps_are_written_out():
    for issue in CATALOGUE.values():
        assert not re.search(r"\{[a-z-]+\}", issue.cause + issue.fix), issue.id
    assert "from AC for 60 s" in CATALOGUE["link-at-13-gbps"].fix


def test_every_step_is_used():
    text = "".join(path.read_text() for path in FOLDER.glob("*.toml") if path != STEPS)
    assert [name for name in steps() if f"{{{name}}}" not in text] == []


def test_a_step_that_is_not_there(tmp_path):
    path = put(tmp_path / "x.toml", KNOWN_ISSUE.replace("undo it", "first {rebot}"))
    with pytest.raises(InvalidFile, match=r"own-thing: \{rebot\}: no such step") as caught:
        entries.read(path)
    assert "reboot" in caught.value.hint


def test_the_place_of_a_match_fills_its_fix():
    assert CATALOGUE["reboot-due"].fix_on("spark2").endswith("-l spark2 -- systemctl reboot")
    assert "NODE" in CATALOGUE["reboot-due"].fix
