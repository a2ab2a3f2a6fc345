"""Findings of lint in the articles' own command lines, all of them, and in our recipes."""

from __future__ import annotations

from pathlib import Path

import pytest
from article_commands import COMMANDS, PART_7, PART_9

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.importers import commandline
from spark_cluster.issues import lint_target
from spark_cluster.issues.entries import KnownIssueMatch

CHECKOUT = Path(__file__).parents[3]
PROJECT = Project(CHECKOUT)

EXPECTED = {
    "PART_9": {
        "error": {"gemma4-pythonic-parser"},
        "warning": {"open-to-the-network", "share-too-high", "gemma4-reasoning-empty"},
        "info": {"image-not-pinned", "compile-cache-lost", "fp8-kv-cache-repeats"},
    },
    "SINGLE_SPARK": {
        "error": set(),
        "warning": {"image-not-pinned"},
        "info": {
            *("moe-setting-on-dense", "gemma4-text-only", "gemma4-remote-code"),
            "open-to-the-network",
        },
    },
    "PART_7": {
        "error": {"gemma4-pythonic-parser"},
        "warning": {"open-to-the-network", "share-too-high", "gemma4-reasoning-empty"},
        "info": {
            *("image-not-pinned", "compile-cache-lost", "fp8-kv-cache-repeats", "patched-file"),
        },
    },
    "RUNTIME_FP8": {
        "error": set(),
        "warning": {"share-too-high"},
        "info": {
            *("online-fp8-load-peak", "compile-cache-off", "fp8-kv-cache-repeats"),
            "open-to-the-network",
        },
    },
    "RUNTIME_FP8_TP2": {
        "error": set(),
        "warning": {"share-too-high"},
        "info": {
            *("online-fp8-load-peak", "compile-cache-off", "fp8-kv-cache-repeats"),
            "open-to-the-network",
        },
    },
    "MTP": {
        "error": set(),
        "warning": set(),
        "info": {"mtp-drops-tool-arguments", "open-to-the-network"},
    },
    "MTP_UNPATCHED": {
        "error": {"gemma4-mtp-drafter-bugs"},
        "warning": set(),
        "info": {"image-not-pinned", "compile-cache-lost", "mtp-drops-tool-arguments"},
    },
}


def found_in(text: str) -> dict[str, KnownIssueMatch]:
    subject = lint_target.of_command(text, None)
    return {f.id: f for f in lint_target.findings(subject, text, PROJECT)}


def ids(found: dict[str, KnownIssueMatch], severity: str) -> set[str]:
    return {f.id for f in found.values() if f.severity == severity}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_found_and_nothing_else(name):
    found = found_in(COMMANDS[name])
    assert {severity: ids(found, severity) for severity in ("error", "warning", "info")} == (
        EXPECTED[name]
    )


def test_a_finding_names_what_was_seen_and_the_flag():
    found = found_in(PART_9)
    parser = found["gemma4-pythonic-parser"]
    assert parser.found == "--tool-call-parser pythonic"
    assert parser.flag == "--tool-call-parser"
    assert parser.fix == "--tool-call-parser gemma4"
    share = found["share-too-high"]
    assert share.found == "--gpu-memory-utilization 0.85 is 103.4 of 121.7 GiB"
    assert "58.4" in found_in(COMMANDS["RUNTIME_FP8"])["online-fp8-load-peak"].found
    assert "29.2" in found_in(COMMANDS["RUNTIME_FP8_TP2"])["online-fp8-load-peak"].found


def test_the_26b_without_its_patch_and_without_marlin():
    text = PART_7.replace("--moe-backend marlin", "").replace("gemma4_patched.py:", "x:")
    text = text.replace("/models/gemma4.py", "/models/gemma4_other.py")
    found = found_in(text)
    assert {"nvfp4-moe-native-kernels", "nvfp4-moe-scale-keys"} <= ids(found, "error")


def test_a_dense_model_needs_no_marlin():
    found = found_in(PART_9)
    assert "nvfp4-moe-native-kernels" not in found
    with_it = found_in(PART_9 + " --moe-backend marlin")
    assert with_it["moe-setting-on-dense"].fix == "leave moe-backend out"


def test_the_plain_tag_is_another_build():
    text = PART_9.replace("gemma4-cu130", "gemma4")
    assert "gemma4-plain-image-tag" in ids(found_in(text), "error")
    assert "gemma4-plain-image-tag" not in found_in(PART_9)


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


@pytest.mark.parametrize(
    "path", sorted((CHECKOUT / "recipes").glob("*.yaml")), ids=lambda p: p.stem
)
def test_no_false_alarm_on_what_is_shipped(path):
    subject = lint_target.of_target(str(path), PROJECT, None)
    found = {f.id: f for f in lint_target.findings(subject, subject.text, PROJECT)}
    assert ids(found, "error") == set()
    assert ids(found, "warning") == TRUE_OF_OURS.get(path.stem, set())


BUILT = {"gemma4-26b-a4b-fp8-mtp", "gemma4-26b-a4b-fp8-mtp-min"}
"""Recipes whose image is built on the nodes; its Dockerfile names commits."""


@pytest.mark.parametrize(
    "path", sorted((CHECKOUT / "recipes").glob("*.yaml")), ids=lambda p: p.stem
)
def test_what_is_shipped_without_digest_or_commit_is_said(path):
    """No source of the articles' recipes gives the digest of its image, and few the commit of its
    model: one that was never seen to serve would be worth less than a tag that was."""
    subject = lint_target.of_target(str(path), PROJECT, None)
    found = {f.id: f for f in lint_target.findings(subject, subject.text, PROJECT)}
    unpinned = {name: found[name].severity for name in found if name.endswith("not-pinned")}
    expected = {"image-not-pinned": "info", "revision-not-pinned": "info"}
    recipe = load_recipe(path, PROJECT)
    if path.stem in BUILT or recipe.image.digest:
        del expected["image-not-pinned"]
    if recipe.model.revision != "main":
        del expected["revision-not-pinned"]
    assert unpinned == ({} if path.stem == "lab-paris" else expected)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_finding_that_can_be_repaired_names_its_flag(name):
    for finding in found_in(COMMANDS[name]).values():
        assert finding.flag or finding.edit is None, finding.id
    flags = {f.id: f.flag for f in found_in(PART_9).values()}
    assert flags["open-to-the-network"] == "--publish"
    flags = {f.id: f.flag for f in found_in(COMMANDS["SINGLE_SPARK"]).values()}
    assert flags["moe-setting-on-dense"] == "VLLM_FLASHINFER_MOE_BACKEND"
