"""Messages as programs beside vLLM make them, with the lines around: what is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factories import log_of

from spark_cluster.issues.explain import explain

DATA = Path(__file__).parents[2] / "data" / "source_messages.json"
"""`finds` is the id of the known issue that is named; empty for lines that mean nothing."""


@pytest.mark.parametrize(
    "case", json.loads(DATA.read_text(encoding="utf-8")), ids=lambda c: c["log"][0]
)
def test_a_message_has_its_cause(case: dict[str, object]) -> None:
    text = "".join(f"{line}\n" for line in case["log"])
    cause = explain([log_of(text, "it.log")]).cause
    assert (cause.finding.id if cause else "") == case["finds"]
