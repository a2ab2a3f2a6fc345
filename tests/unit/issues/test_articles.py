"""Findings of lint in the articles' own command lines, all of them, and in our recipes."""

from __future__ import annotations

from pathlib import Path

import pytest
from article_commands import COMMANDS, PART_9
from cases import cases

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.importers import commandline
from spark_cluster.issues import lint_target
from spark_cluster.issues.entries import KnownIssueMatch

CHECKOUT = Path(__file__).parents[3]
PROJECT = Project(CHECKOUT)

EXPECTED = cases(__file__, "articles.toml")


def found_in(text: str) -> dict[str, KnownIssueMatch]:
    subject = lint_target.of_command(text, None)
    return {f.id: f for f in lint_target.findings(subject, text, PROJECT)}


def ids(found: dict[str, KnownIssueMatch], severity: str) -> set[str]:
    return {f.id for f in found.values() if f.severity == severity}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_found_and_nothing_else(name):
    found = found_in(COMMANDS[name])
    assert {severity: sorted(ids(found, severity)) for severity in EXPECTED[name]} == EXPECTED[name]
    assert not [f.id for f in found.values() if f.edit is not None and not f.flag]


def test_a_finding_names_what_was_seen_and_the_flag():
    found = found_in(PART_9)
    parser = found["gemma4-pythonic-parser"]
    assert parser.found == "--tool-call-parser pythonic"
    assert parser.flag == "--tool-call-parser"
    assert parser.fix == "--tool-call-parser gemma4"
    assert found["open-to-the-network"].flag == "--publish"
    single = found_in(COMMANDS["SINGLE_SPARK"])
    assert single["moe-setting-on-dense"].flag == "VLLM_FLASHINFER_MOE_BACKEND"
    share = found["share-too-high"]
    assert share.found == "--gpu-memory-utilization 0.85 is 103.4 of 121.7 GiB"
    assert "58.4" in found_in(COMMANDS["RUNTIME_FP8"])["online-fp8-load-peak"].found
    assert "29.2" in found_in(COMMANDS["RUNTIME_FP8_TP2"])["online-fp8-load-peak"].found


@pytest.mark.parametrize("name", EXPECTED)
def test_what_can_be_repaired_is_and_the_remainder_stays(name):
    text = COMMANDS[name]
    done = lint_target.fix(lint_target.of_command(text, None), PROJECT)
    before, after = commandline.parse(text), commandline.parse(done.text)
    assert not [f for f in done.remaining if f.severity == "error" and f.edit is not None]
    changed = {flag for flag in before.args if before.args[flag] != after.args.get(flag)}
    assert changed <= {"tool-call-parser", "gpu-memory-utilization"}
    assert (after.model, after.image, after.volumes) == (before.model, before.image, before.volumes)
    if not done.fixed:
        assert done.text == text


TRUE_OF_OURS = {
    # They run vLLM 0.19.0, as the articles did, and say so.
    "gemma4-31b-nvfp4": {"gemma4-reasoning-empty", "gemma4-streamed-tool-json"},
    "gemma4-26b-a4b-nvfp4": {"gemma4-reasoning-empty", "gemma4-streamed-tool-json"},
}
BUILT = {
    "gemma4-26b-a4b-fp8-mtp",
    "gemma4-26b-a4b-fp8-mtp-min",
    "glm-5.3-flash-nvfp4-dflash",
}
"""Recipes whose image is built on the nodes; its Dockerfile names commits."""


@pytest.mark.parametrize(
    "path", sorted((CHECKOUT / "recipes").glob("*.yaml")), ids=lambda p: p.stem
)
def test_no_false_alarm_on_what_is_shipped_and_what_is_not_pinned_is_said(path):
    """No source of the articles' recipes gives the digest of its image, and few the commit of its
    model: one that was never seen to serve would be worth less than a tag that was."""
    subject = lint_target.of_target(str(path), PROJECT, None)
    found = {f.id: f for f in lint_target.findings(subject, subject.text, PROJECT)}
    assert ids(found, "error") == set()
    assert ids(found, "warning") == TRUE_OF_OURS.get(path.stem, set())
    recipe, expected = load_recipe(path, PROJECT), set()
    if path.stem not in {*BUILT, "lab-paris"} and not recipe.image.digest:
        expected.add("image-not-pinned")
    if path.stem != "lab-paris" and recipe.model.revision == "main":
        expected.add("revision-not-pinned")
    assert {id for id in ids(found, "info") if id.endswith("not-pinned")} == expected
