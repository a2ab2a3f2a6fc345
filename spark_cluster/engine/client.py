"""A client of the endpoint that verifies: requests whose replies are judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.config.model_kind import ReadinessCheck
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.errors import VerificationFailed
from spark_cluster.node import replies
from spark_cluster.node.bench.completions import ChatCompletion, complete, streamed
from spark_cluster.runner.session import Answer, Session

PATIENCE_S = 900.0
"""Seconds for one answer: 1,024 tokens at 7 tok/s are two and a half minutes."""

MAX_TOKENS = 1024
"""Of an answer, where a check says nothing else: enough for a model that thinks first."""

FOREIGN = "another program than the engine uses the port, or a proxy answers for it"

FAILOVER = (
    "another server or a router has the port; a router that is refused by one model (HTTP 400 "
    "without --tool-call-parser) asks another one and does not say so"
)

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Client:
    """Asks one endpoint.

    Args:
        session: who makes the requests.
        where: whose name errors carry.
        dimensions: lengths that an embedding of the model may have; empty when it is not known.
        normalized: False where the recipe switches the unit length of embeddings off.
        flags: of the running server without dashes, to their values; None where not known.
        patience_s: seconds that one answer may take.
        own_question: asks the recipe's own question and returns the answer.
        context: longest prompt of the context check, tokens; None for the server's stated length.
    """

    session: Session
    endpoint: Endpoint
    where: str = ""
    dimensions: tuple[int, ...] = ()
    normalized: bool = True
    flags: Mapping[str, str] | None = None
    patience_s: float = PATIENCE_S
    own_question: Callable[[], str] = field(default=lambda: "", repr=False)
    context: int | None = None

    def wrong(self, message: str, hint: str) -> VerificationFailed:
        return VerificationFailed(message, where=self.where, hint=hint)

    def ask(self, check: str, content: Any, **options: Any) -> ChatCompletion:
        """The answer to one message of the user; as `chat`."""
        return self.chat(check, [{"role": "user", "content": content}], **options)

    def chat(self, check: str, messages: Sequence[Message], **options: Any) -> ChatCompletion:
        """The model's next message of a conversation, at temperature 0.

        Args:
            check: its name, for messages.
            options: of the request, such as `stream` and `tools`.

        Raises:
            RequestFailed: the status is not 200.
            VerificationFailed: it is no whole completion, or another model gave it.
        """
        asked = {
            "model": self.endpoint.model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            **options,
        }
        answer = self._post("/v1/chat/completions", json.dumps(asked))
        if answer.status != 200:
            raise self.failed(f"{check}: the request", answer)
        body = answer.body
        try:
            found = streamed(body) if asked.get("stream") else complete(body)
        except replies.NotACompletion as error:
            raise self.wrong(f"{check}: {error}", FOREIGN) from None
        if found.error:
            raise self.wrong(
                f"{check}: an error came inside of the stream: {replies.short(found.error)}",
                "spark-cluster logs shows more",
            )
        if not found.ended:
            raise self.wrong(
                f"{check}: the stream ended before its end ([DONE]) after "
                f"{replies.short(found.content)!r}",
                "the engine ended, or a proxy cut the connection: spark-cluster logs shows more",
            )
        self._must_be_its_model(check, found)
        return found

    def _post(self, path: str, body: str | bytes, content_type: str = "application/json") -> Answer:
        return self.endpoint.request(
            self.session,
            path,
            method="POST",
            body=body,
            timeout=self.patience_s,
            content_type=content_type,
        )

    def failed(self, what: str, answer: Answer) -> RequestFailed:
        """Return the error of a request, in words, that was not answered with 200."""
        reason = _why(answer)
        message = f"{what} failed (status {answer.status}): {reason}"
        hint = "spark-cluster logs shows more"
        return RequestFailed(message, answer.status, reason, where=self.where, hint=hint)

    def _must_be_its_model(self, check: str, found: ChatCompletion) -> None:
        others = sorted(found.models - {self.endpoint.model})
        if others or not found.models:
            who = ", ".join(map(repr, others)) or "a model without a name"
            raise self.wrong(
                f"{check}: {who} answered, asked was {self.endpoint.model!r}", FAILOVER
            )

    def document(self, what: str, path: str, asked: Mapping[str, Any]) -> Any:
        """The JSON document that answers a request to one of the paths of a kind.

        Raises:
            VerificationFailed: the status is not 200, it is no JSON, or another model gave it.
            NoSuchPath: the server has no such path (404).
        """
        body = json.dumps({"model": self.endpoint.model, **asked})
        return self.answered(what, path, body=body)

    def answered(
        self, what: str, path: str, *, body: str | bytes, content_type: str = "application/json"
    ) -> Any:
        """As `document`, of a body of any type."""
        answer = self._post(path, body, content_type)
        found = replies.decoded(answer.body)
        refusal = replies.text_of(replies.at(found, "error", "message"))
        if answer.status == 404 and not refusal:  # of a model that it does not know, vLLM says so
            raise NoSuchPath(f"{what}: {path} is not there (status 404): {_why(answer)}")
        if answer.status != 200 or refusal:
            raise self.failed(f"{what}: the request to {path}", answer)
        if not isinstance(found, dict | list):
            shown = replies.short(answer.body) or "nothing"
            raise self.wrong(f"{what}: {path} answers {shown!r}, expected a JSON document", FOREIGN)
        model = replies.at(found, "model")
        if isinstance(model, str) and model != self.endpoint.model:
            raise self.wrong(
                f"{what}: {model!r} answered, asked was {self.endpoint.model!r}", FAILOVER
            )
        return found


class NoSuchPath(VerificationFailed):
    """The server has no such path: it serves another kind of model, or is another program."""


class RequestFailed(VerificationFailed):
    """A request that was not answered with 200.

    Attributes:
        status: of HTTP; 0 without a whole answer.
        reason: what the server says.
    """

    def __init__(
        self, message: str, status: int, reason: str, *, where: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.status = status
        self.reason = reason

    def judged(self, words: Sequence[str], hint: str) -> VerificationFailed:
        """Return it, or NotApplicable where the server says by one of these words that it cannot
        do what was asked (status 400 or 422)."""
        said = self.reason.lower()
        if self.status not in (400, 422) or not any(word in said for word in words):
            return self
        return NotApplicable(self.message, where=self.where, hint=hint)


class NotApplicable(VerificationFailed):
    """The server cannot do what a check is about, by its launch or by its own answer.

    Of a check that the recipe names in its readiness this is a failure.
    """


def _why(answer: Answer) -> str:
    return answer.reason if answer.status == 0 else replies.error(answer.body) or answer.reason


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        id: as `verify --only` takes it.
        readiness: the readiness check that it belongs to, which holds when all its checks do.
        title: in a table.
        request: what is asked, for people.
        expected: what the answer must be, for people.
        run: asks and looks; returns what was found in one line. Raises VerificationFailed, and
            NotApplicable where the server cannot do what it is about.
        streamed: whether the answer is streamed.
    """

    id: str
    readiness: ReadinessCheck
    title: str
    request: str
    expected: str
    run: Callable[[Client], str]
    streamed: bool = False
