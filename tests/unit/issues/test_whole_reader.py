"""Lines through the whole reader, `explain`: every sample is found, and harmless lines are not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from factories import log_of

from spark_cluster.issues import entries
from spark_cluster.issues.entries import Issue
from spark_cluster.issues.explain import explain

HARMLESS = Path(__file__).parents[2] / "data" / "harmless_lines.txt"
FILES = sorted(path.stem for path in entries.files() if not path.stem.startswith("vllm_"))
"""Samples of the others are held below, in every form in which they are copied."""

EARLIER = {
    "gemma4-plain-image-tag": "INFO model='google/gemma-4-31B-it'",
    "fp4-illegal-instruction": "INFO Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend",
    "drafted-tokens-illegal-access": "INFO scheduled_spec_decode_tokens={'req-1': [5]}",
    "logind-removes-ipc": "INFO node_rank=1, world_size=2, local_world_size=1",
    "hybrid-drafted-tokens-fault": "INFO {'model': 'Qwen3.6-27B', 'speculative_config': {'a': 1}}",
    "drafter-illegal-access": "INFO {'model': 'gemma', 'speculative_config': {'method': 'mtp'}}",
    "marlin-experts-misaligned": "INFO non-default args: {'moe_backend': 'marlin'}",
    "layer-of-another-stage": "INFO non-default args: {'pipeline_parallel_size': 2}",
    "hybrid-prefix-illegal-access": "INFO non-default args: {'mamba_cache_mode': 'align'}",
    "quantization-forced": "INFO non-default args: {'quantization': 'awq'}",
}
"""A line with the evidence that an issue needs; for the others its literal will do."""

TRACE = {"gemma4-mtp-drafter-bugs": "RuntimeError: The size of tensor a (1024) must match"}
"""What ends a traceback of which the sample is a line; without it nothing failed."""


def found_in(log: str) -> set[str]:
    """Return the ids of what is found in a log; empty for an error that is not known."""
    return {seen.finding.id for seen in explain([log_of(f"{log}\n")]).problems}


def is_found(issue: Issue, sample: str) -> bool:
    """Whether a log with a sample shows its issue, or for a general one what is the cause."""
    earlier = EARLIER.get(issue.id, issue.evidence.has) if issue.evidence else ""
    found = found_in(f"{earlier}\n{sample}\n{TRACE.get(issue.id, '')}")
    return issue.id in found or (issue.broad and bool(found - {""}))


@pytest.mark.parametrize("file", FILES)
def test_every_sample_is_found(file: str) -> None:
    issues = entries.read(entries.FOLDER / f"{file}.toml")
    seen = [(issue, sample) for issue in issues for sample in issue.samples]
    assert [(issue.id, line) for issue, line in seen if not is_found(issue, line)] == []


def test_harmless_lines_are_no_issue() -> None:
    lines = HARMLESS.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    assert len(lines) > 120
    assert {line: found for line in lines if (found := found_in(line) - {""})} == {}


# --- what vLLM's source says when it refuses something, however the line was copied ---------------


DATA = Path(__file__).parents[2] / "data"
FORMS = json.loads((DATA / "vllm_forms.json").read_text(encoding="utf-8"))
OF_VLLM = sorted(path.stem for path in entries.FOLDER.glob("vllm_*.toml"))

NAMED = {"vllm-variable-unknown", "weight-cache-unavailable", "kernel-compiled-while-serving"}
"""Known by the name of the exception, too: the same words are logged as a warning."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("file", OF_VLLM)
def test_a_message_of_vllm_is_named_as_the_cause(file: str, form: str) -> None:
    other = {}
    for issue in entries.read(entries.FOLDER / f"{file}.toml"):
        if issue.id in NAMED and "{line}" not in FORMS[form]:
            continue
        for line in issue.samples:
            text = re.sub(r"^\w+(?:Error|Exception)?: ", "", line)
            log = FORMS[form].replace("{line}", line).replace("{text}", text)
            cause = explain([log_of(f"{log}\n")]).cause
            if cause is None or cause.finding.id != issue.id:
                other[line] = cause and (cause.finding.id or cause.finding.found)
    assert other == {}


# --- messages of programs beside vLLM, with the lines around --------------------------------------


MESSAGES = Path(__file__).parents[2] / "data" / "source_messages.json"
"""`finds` is the id of the known issue that is named; empty for lines that mean nothing."""


@pytest.mark.parametrize(
    "case", json.loads(MESSAGES.read_text(encoding="utf-8")), ids=lambda c: c["log"][0]
)
def test_a_message_has_its_cause(case: dict[str, object]) -> None:
    text = "".join(f"{line}\n" for line in case["log"])
    cause = explain([log_of(text, "it.log")]).cause
    assert (cause.finding.id if cause else "") == case["finds"]
