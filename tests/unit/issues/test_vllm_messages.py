"""What vLLM's source says when it refuses something is the cause, however the line was copied."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from factories import log_of

from spark_cluster.issues import entries
from spark_cluster.issues.explain import explain

DATA = Path(__file__).parents[2] / "data"
FORMS = json.loads((DATA / "vllm_forms.json").read_text(encoding="utf-8"))
FILES = sorted(path.stem for path in entries.FOLDER.glob("vllm_*.toml"))

NAMED = {"vllm-variable-unknown", "weight-cache-unavailable", "kernel-compiled-while-serving"}
"""Known by the name of the exception, too: the same words are logged as a warning."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("file", FILES)
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
