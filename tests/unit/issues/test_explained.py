"""`explain` on logs: each case of explained.toml is a log and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import cases
from factories import log_of

from spark_cluster.issues.explain import Explanation, explain
from spark_cluster.issues.log_reading import Seen, of_file

DATA = Path(__file__).parents[2] / "data"
CASES: dict[str, dict[str, Any]] = cases(__file__, "explained.toml")
TEXTS = CASES.pop("texts")
"""Parts that logs have in common; `$NAME` stands for one."""


def explained(case: dict[str, Any]) -> Explanation:
    """Explain the logs of a case: its texts, or files of tests/data."""
    if "data" in case:
        return explain([of_file(str(DATA / name)) for name in case["data"]])
    texts = case.get("logs") or [case["log"]]
    whole = ["".join(TEXTS.get(part[1:], part) for part in _parts(text)) for text in texts]
    return explain([log_of(text, f"log{n}") for n, text in enumerate(whole)])


def _parts(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text


def name(seen: Seen) -> str:
    return str(seen.finding.id or seen.finding.found)


def told(found: Explanation) -> dict[str, Any]:
    """What a case may say of an explanation."""
    first = found.cause
    said = {
        "verdict": found.verdict,
        "engine": found.engine,
        "facts": found.facts,
        "cause": name(first) if first else "",
        "problems": [f"{'> ' if one.follows else ''}{name(one)}" for one in found.problems],
        "severities": [one.finding.severity for one in found.problems],
        "counts": [one.count for one in found.problems],
        "overcome": [one.overcome for one in found.problems],
        "last": found.last,
        "missing": found.missing,
        "the_others_follow": [one.follows for one in found.problems]
        == [one is not first for one in found.problems],
    }
    if first is not None:
        said |= {key: getattr(first, key) for key in ("at", "where", "number", "known", "certain")}
    return said


def texts(found: Explanation) -> dict[str, str]:
    """The texts that have words of a case, or (in `no`) lack them."""
    finding = found.cause.finding if found.cause is not None else None
    parts = {"quote": "found", "why": "cause", "fix": "fix", "title": "title"}
    return {
        "lacks": "\n".join(found.missing),
        "steps": "\n".join(found.next_steps),
        "all": " ".join(name(one) for one in found.problems),
        **{key: str(getattr(finding, field, "")) for key, field in parts.items()},
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_log_is_explained(case: dict[str, Any]) -> None:
    found = explained(case)
    said, wanted = told(found), {key: case[key] for key in case if key in told(found)}
    assert wanted or {*case} & {*texts(found), "no"}
    if case.get("facts"):
        said["facts"] = {key: found.facts.get(key) for key in case["facts"]}
    assert {key: said[key] for key in wanted} == wanted
    for key, text in texts(found).items():
        assert [words for words in case.get(key, ()) if words not in text] == [], text
        assert [words for words in case.get("no", {}).get(key, ()) if words in text] == [], text
