"""The bars of `explain` and `lint` on what others posted."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.explain.cases import Result, cases, count, judge
from benchmarks.explain.lines import linted, posted
from spark_cluster.issues.entries import catalogue

ALL = cases()

MEASURED = {"fresh-3": 10, "provoked-2026-11-28": 129}
"""Sets that were measured once, of which at most wrong answers were mended, and how many were right
then."""


@functools.cache
def judged(index: int) -> tuple[Result, str]:
    """The judgement of a case, made once for all tests: each reads a whole log."""
    return judge(ALL[index])


def test_no_cause_is_wrong():
    results = {case.url: judged(index) for index, case in enumerate(ALL)}
    wrong = {url: line for url, (result, line) in results.items() if result == "wrong"}
    assert wrong == {}
    fitted = [case.url for case in ALL if case.set not in MEASURED]
    assert [url for url in fitted if not results[url][1]] == [], "no decisive line"


def test_most_causes_are_named():
    for name in {case.set for case in ALL}:
        results = [judged(index)[0] for index, case in enumerate(ALL) if case.set == name]
        assert count(results)["right"] >= MEASURED.get(name, 0.6 * len(results)), name


def test_ids_of_causes_are_known():
    unknown = {id for case in ALL for id in case.causes} - set(catalogue())
    assert unknown == set()


@pytest.mark.parametrize("line", posted(), ids=lambda line: line.url.removeprefix("https://"))
def test_what_served_has_no_error_and_what_failed_is_found(line):
    found = linted(line)
    if line.served:
        assert [f.id for f in found if f.severity == "error"] == []
    if line.finds:
        assert line.finds in {f.id for f in found if f.severity != "info"}


def each_line(form: str) -> Callable[[str], str]:
    return lambda log: "".join(form.format(line=line) + "\n" for line in log.splitlines())


PASTED: dict[str, Callable[[str], str]] = {
    "Compose": each_line("vllm-1  | {line}"),
    "the journal": each_line("Nov 20 14:14:29 spark-1a2b docker[1234]: {line}"),
    "Kubernetes": each_line("2026-11-20T14:14:29.123456789+01:00 stderr F {line}"),
    "pdsh": each_line("spark-2f0a: {line}"),
    "a launcher": each_line("[node 0] {line}"),
    "cat -n": each_line("     7\t{line}"),
    "a quote": each_line("> {line}"),
    "colours": each_line("\x1b[1;31m{line}\x1b[0m"),
    "curly quotes": lambda log: log.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}"),
    "HTML": html.escape,
}


@pytest.mark.parametrize("form", PASTED)
def test_how_a_log_was_pasted_does_not_matter(form: str):
    sets = ("spark-6-seen", "spark-6-unseen")
    posted = {index: case for index, case in enumerate(ALL) if case.set in sets}
    changed = {index: replace(case, log=PASTED[form](case.log)) for index, case in posted.items()}
    lost = [case.url for index, case in changed.items() if judge(case)[0] != judged(index)[0]]
    assert lost == []
