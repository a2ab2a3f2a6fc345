"""The catalogue itself: whole, findable, and with signs that are really recognised."""

from __future__ import annotations

import re

import pytest
import slow_patterns
from packaging.specifiers import SpecifierSet

from spark_cluster.engine import runtime
from spark_cluster.errors import InvalidFile
from spark_cluster.issues import entries, log_lines
from spark_cluster.issues.entries import Issue, known_for, recognise
from spark_cluster.issues.rules import rules

CATALOGUE = entries.catalogue()


def test_every_rule_has_its_entry_and_every_entry_its_rule():
    assert set(rules()) == {issue.id for issue in CATALOGUE.values() if issue.rule}


def test_every_entry():
    for issue in CATALOGUE.values():
        texts = " ".join([issue.source, issue.cause, issue.fix])
        assert issue.source, issue.id
        assert not re.search(r"seed|/work|[TK]\d\d\b", texts), issue.id
        assert not issue.fix.endswith("."), issue.id
        if issue.edit is not None and issue.edit.kind in ("flag", "env"):
            assert issue.edit.name, issue.id
        if issue.flag.startswith("--") and issue.edit is not None and issue.edit.kind == "flag":
            assert issue.edit.name == issue.flag[2:], issue.id


@pytest.mark.parametrize(
    ("advice", "said"),
    [
        (r"image prune -a|system prune", "built here"),
        (r"insecure-registries", "anyone on the way"),
        (r"--privileged|seccomp=unconfined|apparmor=unconfined|StrictHostKeyChecking", "never"),
        (r"chmod (?:-R )?0?777|iptables -F|ufw disable|setenforce 0|--insecure\b|curl -k", "never"),
    ],
)
def test_advice_that_removes_or_opens_something_says_so(advice, said):
    fixes = [text for one in CATALOGUE.values() for text in (one.fix, *one.fixes.values())]
    found = [fix for fix in fixes if re.search(advice, fix)]
    assert all(said in fix for fix in found), found


@pytest.mark.parametrize(
    "command",
    [
        r"journalctl[^;,`]* -g -",  # -g takes the next word as its pattern
        r"modprobe (?!-)\w+ \w+_\w+",  # one module, or -a
        r"compose config[^;,`]* --profile ",  # an option of compose, before its command
    ],
)
def test_no_advice_has_a_command_that_fails(command):
    fixes = [text for one in CATALOGUE.values() for text in (one.fix, *one.fixes.values())]
    assert [fix for fix in fixes if re.search(command, fix)] == []


def test_no_fix_offers_a_version_that_another_issue_of_the_same_flags_warns_of():
    by_flags = [issue for issue in CATALOGUE.values() if issue.when and issue.when.flags]
    offered = [
        (issue.id, other.id)
        for issue in by_flags
        for version in re.findall(r"vLLM (\d+\.\d+\.\d+) (?:or|and) (?:later|newer)", issue.fix)
        for other in by_flags
        if other is not issue and other.severity != "info" and other.versions
        if other.when.flags == issue.when.flags
        if version in SpecifierSet(other.versions)
    ]
    assert offered == []


def recognised(issue: Issue, sample: str) -> bool:
    """Whether a line shows it; lines above the last one are its traceback."""
    *above, line = (log_lines.read(raw).text for raw in sample.splitlines())
    found = recognise(line, lambda: "\n".join(above), evident={issue.id})
    return issue.id in [f.id for f in found]


def test_what_was_seen_is_recognised():
    seen = [(issue, sample) for issue in CATALOGUE.values() for sample in issue.samples]
    assert len(seen) > 250
    assert [(issue.id, line) for issue, line in seen if not recognised(issue, line)] == []


def test_what_is_like_it_is_not_recognised():
    like = [(issue, line) for issue in CATALOGUE.values() for line in issue.healthy]
    assert len(like) > 80
    assert [(issue.id, line) for issue, line in like if recognised(issue, line)] == []


EARLIER = {
    *("container", "engine", "flags", "gemma4", "memory", "pair", "quantization", "sglang"),
    "tracebacks",
}
"""Files with issues from before that rule, beside those of vLLM's own messages."""


def test_every_entry_for_logs_has_a_healthy_line():
    for path in entries.files():
        if path.stem not in EARLIER and not path.stem.startswith("vllm_"):
            for issue in entries.read(path):
                assert issue.healthy or issue.evidence or not issue.log, issue.id


def test_evidence_decides():
    """The same line without the kernel that it is known of says only what happened."""
    line = "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"
    assert [i.id for i in recognise(line)] == ["illegal-memory-access"]
    assert recognise(line, evident={"b12x-illegal-access"})[0].id == "b12x-illegal-access"


def test_every_sign_has_a_line_that_was_seen():
    """And its literal is in it, or the line would never be looked at in a long log."""
    for issue in CATALOGUE.values():
        for words in issue.log:
            seen = any(words.has in s and words.regex.search(s) for s in issue.samples)
            assert seen or words.trace is not None, (issue.id, words.has)


def test_a_trace_decides():
    """The last line alone says little; where it was raised does."""
    lone = "NotImplementedError"
    assert recognise(lone) == []
    assert known_for(lone) is None
    assert known_for(lone, "  File x.py, line 1, in tie_weights").id == "gemma4-tie-weights"


def test_a_fault_of_up_knows_its_trace():
    log = "(W pid=1)   File x.py, line 1, in tie_weights\n(W pid=1) NotImplementedError\n"
    fault = runtime.first_error({"spark1": log})
    assert fault.known.id == "gemma4-tie-weights"
    said = runtime.advice(fault, "look at the logs")
    assert "gemma4-tie-weights" in said
    assert "0.22 or older" in said
    assert said.endswith("look at the logs")
    unknown = runtime.first_error({"spark1": "ValueError: new\n"})
    assert unknown.known is None
    assert runtime.advice(unknown, "x") == runtime.advice(None, "x") == "x"


GOOD = """
[[issue]]
id = "a-b"
title = "a title"
severity = "info"
symptom = "some"
cause = "some"
fix = "some"
source = "some"
confidence = "high"
keyed_on = ["flag"]
"""

WRONG = [
    (GOOD + "sevrity = 1", "a-b: sevrity"),
    (GOOD.replace('"info"', '"bad"'), "a-b: severity"),
    (GOOD.replace('"info"', '"error"'), "nothing that finds it"),
    (GOOD.replace('id = "a-b"', ""), "issue number 1: id"),
    (GOOD.replace('"a-b"', '"A b"'), "A b: id"),
    (GOOD + 'log = [{ has = "abcde", pattern = "(" }]', "expected a regular expression"),
    (GOOD + 'log = [{ has = "abcde" }]', "without `samples`"),
    (GOOD + 'versions = "0.19"', "expected versions such as"),
    (GOOD + GOOD, "this id is taken"),
    ("[[issue", "not TOML"),
    ("x = 1", "x: "),
    ("issue = 3", "issue: "),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_a_wrong_file(tmp_path, text, said):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(InvalidFile) as caught:
        entries.gather([path])
    assert said in str(caught.value)
    assert "x.toml" in str(caught.value)


def test_no_sign_takes_long_on_a_line_that_is_made_for_it():
    """A log can have a hundred thousand such lines, which differ in a number."""
    slow = {}
    for issue in CATALOGUE.values():
        marks = (getattr(issue, kind) for kind in entries.MARKS)
        for words in (*issue.log, *filter(None, marks)):
            for pattern in filter(None, (words.pattern, words.unless, words.trace)):
                begin = words.has if pattern != words.trace else ""
                took, text = slow_patterns.seconds(pattern, begin)
                if took > slow_patterns.LIMIT_S:
                    slow[f"{issue.id}: {pattern}"] = text
    assert not slow


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", r"x\s*(?:[~ ]*\s*)$", r"F.*(?:\n[\s~]+)*$", "a.*b.*c"]
)
def test_a_slow_pattern_is_found(pattern):
    assert slow_patterns.seconds(pattern)[0] > slow_patterns.LIMIT_S
