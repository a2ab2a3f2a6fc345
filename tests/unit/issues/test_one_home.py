"""A trouble stands once: what doctor, the roles and the playbooks find, the catalogue explains."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

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


# --- checks and entries -----------------------------------------------------------------------


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


# --- texts ------------------------------------------------------------------------------------

WITHIN, BETWEEN = 6, 7
"""Words in a row that two entries, or the code and an entry, may not have in common."""

SHARED = ("spark-cluster exec -b -l node", "or vllm s own multi-node mode")
"""A command, and the name of a mode."""

ONLY = {
    r"from AC\b|AC plug|AC for 60|AC off": {"issues/catalogue/steps.toml"},
    r"nvidia-spark-grub-kho": {"issues/catalogue/pair.toml", "drivers/pins.json"},
}
"""What has been told in many places, and where it may stand now."""

RARE = dict(zip(ONLY, (r"\bAC\b", "kho"), strict=True))
"""A short word of each, in one piece also where a string goes on in the next line: only files with
it are parsed."""


def shingles(text: str, length: int) -> set[str]:
    """Runs of words, without punctuation and case."""
    words = re.findall(r"[\w./=-]+", text.lower())
    return {" ".join(words[i : i + length]) for i in range(len(words) - length + 1)}


@functools.cache
def told(length: int) -> dict[str, set[str]]:
    """Runs of words in causes and fixes, with the entries and steps that have them."""
    texts = [(f"step {name}", text) for name, text in steps().items()]
    for path in FOLDER.glob("*.toml"):
        for entry in tomllib.loads(path.read_text()).get("issue", []):
            texts += [(entry["id"], entry["cause"]), (entry["id"], entry["fix"])]
    found: dict[str, set[str]] = {}
    for name, text in texts:
        for run in shingles(text, length):
            found.setdefault(run, set()).add(name)
    return found


@functools.cache
def literals(path: Path) -> list[tuple[int, str]]:
    """Strings of a module with their lines, without docstrings."""
    return list(_literals(path))


def _literals(path: Path) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "\0" for v in node.values]
            yield node.lineno, " ".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in prose:
            yield node.lineno, node.value if isinstance(node.value, str) else ""


def test_no_two_entries_tell_the_same():
    twice = {
        run: ids
        for run, ids in told(WITHIN).items()
        if len(ids) > 1 and not any(run.startswith(shared) for shared in SHARED)
    }
    assert twice == {}, "make a step of it in steps.toml, or one entry of two"


@pytest.mark.parametrize(
    "folder", ["doctor", "issues", "plan", "runner", "../roles", "../playbooks"]
)
def test_no_code_tells_what_an_entry_tells(folder):
    known = told(BETWEEN)
    twice = [
        f"{path}:{line}: {run} ({known[run]})"
        for path in sorted((ROOT / "spark_cluster" / folder).resolve().rglob("*.py"))
        for line, text in literals(path)
        for run in shingles(text, BETWEEN) & known.keys()
    ]
    assert twice == [], "take cause and fix from the catalogue"


@pytest.mark.parametrize("words", ONLY)
def test_what_was_told_in_many_places_is_reported_once(words):
    folders = [ROOT / name for name in ("spark_cluster", "roles", "playbooks")]
    files = [p for f in folders for p in f.rglob("*") if p.suffix in (".py", ".toml", ".json")]
    lab = ROOT / "spark_cluster/lab"
    has = {
        path
        for path in files
        if not path.is_relative_to(lab)
        and re.search(RARE[words], path.read_text(), re.IGNORECASE)
        and re.search(words, _texts(path), re.IGNORECASE)
    }
    allowed = {p for p in files if any(str(p).endswith(f"/{end}") for end in ONLY[words])}
    assert has <= allowed


def _texts(path: Path) -> str:
    """A module's strings; the whole of another file."""
    if path.suffix == ".py":
        return "\n".join(text for _, text in literals(path))
    return path.read_text()


# --- steps ------------------------------------------------------------------------------------


def test_steps_are_written_out():
    for issue in CATALOGUE.values():
        assert not re.search(r"\{[a-z-]+\}", issue.cause + issue.fix), issue.id
    assert "from AC for 60 s" in CATALOGUE["link-at-13-gbps"].fix


def test_every_step_is_used():
    text = "".join(path.read_text() for path in FOLDER.glob("*.toml") if path != STEPS)
    assert [name for name in steps() if f"{{{name}}}" not in text] == []


def test_a_step_that_is_not_there(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(
        '[[issue]]\nid = "a-b"\ntitle = "a title"\nseverity = "info"\nsymptom = "some"\n'
        'cause = "some"\nfix = "first {rebot}"\nsource = "some"\nconfidence = "high"\n'
        'keyed_on = ["node"]\n'
    )
    with pytest.raises(InvalidFile, match=r"a-b: \{rebot\}: no such step") as caught:
        entries.read(path)
    assert "reboot" in caught.value.hint


def test_the_place_of_a_match_fills_its_fix():
    assert CATALOGUE["reboot-due"].fix_on("spark2").endswith("-l spark2 -- systemctl reboot")
    assert "NODE" in CATALOGUE["reboot-due"].fix
