"""What a refusal of the hub means, by its status and headers."""

from __future__ import annotations

import pytest

from spark_cluster.node.store.hub_problems import of_answer


@pytest.mark.parametrize(
    ("status", "headers", "kind", "words"),
    [
        (401, {"X-Error-Code": "GatedRepo"}, "gated", "is gated"),
        (403, {"X-Error-Code": "GatedRepo"}, "gated", "is gated"),
        (401, {"X-Error-Code": "RepoNotFound"}, "missing", "no model 'org/m'"),
        (401, {}, "missing", "no model 'org/m'"),
        (404, {}, "missing", "no model 'org/m'"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "revision", "no revision 'v9'"),
        (404, {"X-Error-Code": "EntryNotFound"}, "file", "no such file"),
        (
            401,
            {"X-Error-Message": "Invalid credentials in Authorization header"},
            "gated",
            "refuses to show 'org/m' (401)",
        ),
        (403, {"X-Error-Message": "Access to this resource is disabled."}, "gated", "has disabled"),
        (403, {}, "gated", "refuses to show 'org/m' (403)"),
        (429, {"Retry-After": "7"}, "busy", "(429)"),
        (503, {}, "server", "status 503"),
        (418, {"X-Error-Code": "Teapot"}, "server", "status 418"),
    ],
)
def test_a_refusal_by_its_status_and_headers(
    status: int, headers: dict[str, str], kind: str, words: str
) -> None:
    found = of_answer(status, headers, "org/m", "v9")
    assert found.kind == kind
    assert words in found.message


def test_a_wait_that_cannot_be_believed_is_not_shown() -> None:
    assert "wait 7 s" in of_answer(429, {"Retry-After": "7"}, "org/m", "").hint
    assert "wait some minutes" in of_answer(429, {"Retry-After": "1e9"}, "org/m", "").hint
