"""Structured output: an answer that follows a JSON schema, and is right."""

from __future__ import annotations

from spark_cluster.engine.checks import texts
from spark_cluster.engine.client import Check, Client, RequestFailed
from spark_cluster.node import replies

PROMPT = "Which city is the capital of France, and is it in Europe? Answer as JSON."

BACKEND = ("response_format", "structured", "guided", "json_schema", "grammar")
"""Words with which a server refuses that it has no backend for it."""

CITIES = ("Rome", "Paris", "Madrid", "Berlin")

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": list(CITIES)},
        "in_europe": {"type": "boolean"},
    },
    "required": ["city", "in_europe"],
    "additionalProperties": False,
}

EXPECTED = {"city": "Paris", "in_europe": True}


def structured_output(client: Client) -> str:
    """The answer is JSON of the schema, and says what is true."""
    try:
        found = client.ask(
            "structured output",
            PROMPT,
            **texts.without_reasoning(client),
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "capital", "schema": SCHEMA, "strict": True},
            },
        )
    except RequestFailed as error:
        raise error.judged(BACKEND, "this server has no backend for structured output") from None
    document = replies.decoded(found.content)
    shown = replies.short(found.content)
    if not _follows(document):
        raise client.wrong(
            f"structured output: {shown!r} does not follow the schema",
            "the engine ignores response_format: its --structured-outputs-config, a drafter, or a "
            "--reasoning-parser that takes the answer for reasoning",
        )
    if document != EXPECTED:
        raise client.wrong(
            f"structured output: the answer is {shown}, expected {EXPECTED}",
            "the schema is followed, but the answer is wrong: a damaged copy of the model",
        )
    return shown


def _follows(document: object) -> bool:
    return (
        isinstance(document, dict)
        and document.keys() == EXPECTED.keys()
        and document["city"] in CITIES
        and isinstance(document["in_europe"], bool)
    )


CHECKS = (
    Check("structured-output", "structured_output", "structured output", PROMPT,
          '{"city": "Paris", "in_europe": true}, by a JSON schema', structured_output),
)  # fmt: skip
