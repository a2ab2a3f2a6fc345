"""A client of the endpoint that verifies: requests whose replies are judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.errors import VerificationFailed
from spark_cluster.inference import replies
from spark_cluster.runner.session import Answer
from spark_cluster.serving.endpoint import Asker, Endpoint

PATIENCE_S = 900.0
"""Seconds for one answer: 1,024 tokens at 7 tok/s are two and a half minutes."""

PARSER = "--enable-auto-tool-choice and the model's own --tool-call-parser (Gemma 4: gemma4)"

FOREIGN = "another program than the engine uses the port, or a proxy answers for it"


@dataclass(frozen=True)
class Client:
    """Asks one endpoint.

    Args:
        session: who makes the requests.
        where: whose name errors carry.
        dimensions: lengths that an embedding of the model may have; empty when it is not known.
        normalized: False where the recipe switches the unit length of embeddings off.
    """

    session: Asker
    endpoint: Endpoint
    where: str = ""
    dimensions: tuple[int, ...] = ()
    normalized: bool = True

    def wrong(self, message: str, hint: str) -> VerificationFailed:
        return VerificationFailed(message, where=self.where, hint=hint)

    def post(self, rung: str, content: Any, **options: Any) -> str:
        """The body of the answer to one message.

        Raises:
            VerificationFailed: the status is not 200.
        """
        asked = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": 1024,
            **options,
        }
        answer = self.endpoint.request(
            self.session,
            "/v1/chat/completions",
            method="POST",
            body=json.dumps(asked),
            timeout=PATIENCE_S,
        )
        if answer.status == 200:
            return answer.body
        reason = (
            answer.reason if answer.status == 0 else replies.error(answer.body) or answer.reason
        )
        hint = "spark-cluster logs shows more"
        if answer.status == 400 and "tool choice" in reason:
            hint = f"the recipe's engine_args lack {PARSER}; a router would now ask another model"
        raise self.wrong(f"{rung}: the request failed (status {answer.status}): {reason}", hint)

    def message(self, rung: str, content: Any, **options: Any) -> dict[str, Any]:
        """The message that answers.

        Raises:
            VerificationFailed: there is none, or another model gave it.
        """
        body = self.post(rung, content, **options)
        try:
            found = replies.message(body)
        except replies.NotACompletion as error:
            hint = "another program than vLLM uses the port, or a proxy answers for it"
            raise self.wrong(f"{rung}: {error}", hint) from None
        model = replies.text_of(replies.at(replies.decoded(body), "model"))
        if model != self.endpoint.model:
            raise self.wrong(
                f"{rung}: {model!r} answered, asked was {self.endpoint.model!r}",
                "another server or a router has the port",
            )
        return found

    def document(self, rung: str, path: str, asked: Mapping[str, Any]) -> Any:
        """The JSON document that answers a request to one of the paths of a kind.

        Raises:
            VerificationFailed: the status is not 200, it is no JSON, or another model gave it.
            NoSuchPath: the server has no such path (404).
        """
        body = json.dumps({"model": self.endpoint.model, **asked})
        return self.answered(rung, path, body=body)

    def answered(
        self, rung: str, path: str, *, body: str | bytes, content_type: str = "application/json"
    ) -> Any:
        """As `document`, of a body of any type."""
        answer = self.endpoint.request(
            self.session,
            path,
            method="POST",
            body=body,
            timeout=PATIENCE_S,
            content_type=content_type,
        )
        found = replies.decoded(answer.body)
        told = replies.text_of(replies.at(found, "error", "message"))
        if answer.status == 404 and not told:  # of a model that it does not know, vLLM says so
            raise NoSuchPath(f"{rung}: {path} is not there (status 404): {_why(answer)}")
        if answer.status != 200 or told:
            raise self.wrong(
                f"{rung}: the request to {path} failed (status {answer.status}): {_why(answer)}",
                "spark-cluster logs shows more",
            )
        if not isinstance(found, dict | list):
            shown = replies.short(answer.body) or "nothing"
            raise self.wrong(f"{rung}: {path} answers {shown!r}, expected a JSON document", FOREIGN)
        model = replies.at(found, "model")
        if isinstance(model, str) and model != self.endpoint.model:
            raise self.wrong(
                f"{rung}: {model!r} answered, asked was {self.endpoint.model!r}",
                "another server or a router has the port",
            )
        return found


class NoSuchPath(VerificationFailed):
    """The server has no such path: it serves another kind of model, or is another program."""


def _why(answer: Answer) -> str:
    return answer.reason if answer.status == 0 else replies.error(answer.body) or answer.reason
