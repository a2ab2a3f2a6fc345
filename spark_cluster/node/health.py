"""Judge whether an engine's server lives: one pure function, for the laptop and for the nodes; and
the request that a model of each kind has to answer.

Readiness, `status`, `doctor`, `bench`, the short load, supervision and the model loader bring what
they have looked at (the container, /health, a completion) and decide by the state that comes back.
Standard library only: it travels with the programs of units.
"""

from __future__ import annotations

import io
import json
import math
import struct
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from spark_cluster.node import replies
from spark_cluster.node.containers import ContainerState, Kind

MANY_RESTARTS = 3
"""Restarts after which a server that takes no requests is failing, not loading. Docker waits longer
each time; after a reboot one or two are usual, until Ray's head is there."""

HEALTH_S = 5.0
"""Seconds for the answer of /health: as long as the proxy waits for it. An engine that hangs is not
dead."""

HEALTH_UNDER_LOAD_S = 10.0
"""The same after requests that kept the server busy."""


class Life(Enum):
    """The states of a server."""

    UNSEEN = "unseen"
    """The node or its runtime did not answer: nothing is concluded."""
    ABSENT = "absent"
    """There is no such program."""
    UNLOADED = "unloaded"
    """It is made, and started by the model loader when it is asked for."""
    ENDED = "ended"
    """Its process has ended, or ends again and again before it takes requests."""
    DEAD = "dead"
    """Its API says by /health that the engine has died."""
    LOADING = "loading"
    """Its process runs and takes no requests yet."""
    FAILING = "failing"
    """It takes requests, and /health or a completion fails: its engine may have died."""
    BUSY = "busy"
    """No completion in time, or none while others are answered: that says nothing of its engine."""
    OVERLOADED = "overloaded"
    """It puts a completion off: too many requests for now, or no engine behind it for good."""
    REFUSING = "refusing"
    """It answers a completion, and not with one: another key, another program."""
    SERVING = "serving"
    """Nothing that was looked at speaks against it."""


@dataclass(frozen=True)
class State:
    """The verdict on a server.

    Attributes:
        reason: why it does not serve, as a predicate (`is exited`) or a clause (`/health does not
            return 200 (500)`); empty where it serves.
    """

    life: Life
    reason: str = ""

    @property
    def serves(self) -> bool:
        return self.life is Life.SERVING

    @property
    def gone(self) -> bool:
        """True where there is no engine any more."""
        return self.life in (Life.ABSENT, Life.ENDED, Life.DEAD)

    def of(self, subject: str, prefix: str = "") -> str:
        """Return the reason as a sentence about a server.

        Args:
            subject: the server in words.
            prefix: what stands in its place before a clause.

        >>> State(Life.ENDED, "is exited").of("the server")
        'the server is exited'
        >>> State(Life.FAILING, "/health is bad").of("the replica", "the replica: ")
        'the replica: /health is bad'
        """
        if self.life in (Life.UNSEEN, Life.ABSENT, Life.UNLOADED, Life.ENDED, Life.LOADING):
            return f"{subject} {self.reason}"
        return f"{prefix}{self.reason}"


@dataclass(frozen=True)
class Completion:
    """The answer to a request that only a working engine can answer.

    Attributes:
        status: of HTTP; 0 without an answer.
        text: the beginning of the answer.
        why: why there is no answer. With status 200: the reply was something else.
        late: it was not awaited any longer, or other requests were answered meanwhile: that says
            nothing of the engine.
    """

    status: int
    text: str = ""
    why: str = ""
    late: bool = False

    @property
    def came(self) -> bool:
        """True for an answer, whatever it says."""
        return self.status == 200 and not self.why

    @property
    def fault(self) -> str:
        """Why there is none, in words."""
        return self.why or (f"status {self.status}" if self.status else "no answer in time")


def judge(
    container: ContainerState | None,
    health: int | None = None,
    completion: Completion | None = None,
    *,
    died: int | None = None,
    loading: int | None = None,
) -> State:
    """Return the state of a server by what was looked at; None is what was not.

    Args:
        container: its container or unit, `unknown` where its node does not answer.
        health: HTTP status of its /health; 0 where nothing takes connections.
        completion: the answer to a request.
        died: the status of /health with which this engine says that it has died
            (`Engine.died`); None where there is no such status.
        loading: the same while it loads (`Engine.loading`).
    """
    if container is not None and not container.running:
        return _without_process(container)
    if health is not None and health in (0, loading):
        often = container.restarts if container is not None else 0
        if often >= MANY_RESTARTS:
            return State(Life.ENDED, f"has been restarted {often} times and takes no requests")
        return State(Life.LOADING, "takes no requests yet: it is loading")
    if health is not None and health != 200:
        life = Life.DEAD if health == died else Life.FAILING
        return State(life, f"/health does not return 200 ({health})")
    if completion is None or completion.came:
        return State(Life.SERVING)
    return State(_of_completion(completion), completion.fault)


FAILS = (0, 500)
"""Status of a completion, at once, where the API has ended or its engine has died."""


def _without_process(container: ContainerState) -> State:
    if container.status == "unknown":
        why = container.error or "its runtime does not answer"
        return State(Life.UNSEEN, f"was not seen: {why}")
    if container.status == "absent":
        return State(Life.ABSENT, "is gone")
    if container.unloaded:
        return State(Life.UNLOADED, "is loaded on request, and is not loaded now")
    return State(Life.ENDED, f"is {container.in_words}")


def _of_completion(completion: Completion) -> Life:
    if completion.late:
        return Life.BUSY
    if completion.status in FAILS:
        return Life.FAILING
    if completion.status == 429 or completion.status > 500:
        return Life.OVERLOADED
    return Life.REFUSING


# The request that a model of each kind has to answer, and its answer read as foreign input. The
# laptop asks through a node, supervision and the model loader ask on it.

_TEXT = "Is anyone there?"


def request_of(
    kind: Kind, model: str, question: str, max_tokens: int
) -> tuple[str, str | bytes, str]:
    """Return path, body and content type of the request of a kind."""
    if kind == "transcription":
        fields = {"model": model, "response_format": "json"}
        return "/v1/audio/transcriptions", form(fields, "tone.wav", tone(0.5)), FORM_TYPE
    asked: dict[str, Any] = {"model": model}
    if kind == "chat":
        path = "/v1/chat/completions"
        asked |= {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
    elif kind == "embedding":
        path = "/v1/embeddings"
        asked |= {"input": [_TEXT], "encoding_format": "float"}
    else:
        path = "/v1/rerank"
        asked |= {"query": _TEXT, "documents": [_TEXT]}
    return path, json.dumps(asked), "application/json"


def completion_of(kind: Kind, status: int, body: str, reason: str = "") -> Completion:
    """Return what a server's reply to such a request says, by its status of HTTP."""
    if status != 200:
        return Completion(status, why=reason or replies.error(body))
    try:
        return Completion(200, _shown(kind, body))
    except (replies.NotACompletion, NotVectors) as error:
        return Completion(200, why=str(error))


def _shown(kind: Kind, body: str) -> str:
    """Return a good answer of a chat model, or a few words on one of another kind.

    Raises:
        NotACompletion, NotVectors: it is none.
    """
    if kind == "chat":
        return replies.message_of(body)
    document = replies.decoded(body)
    if kind == "embedding":
        return f"{len(vectors(document, 1)[0])} numbers"
    if kind == "reranking":
        return f"score {scores(document, 1)[0]:.3g}"
    if not isinstance(replies.at(document, "text"), str):
        raise NotVectors(f"no text came: {replies.short(str(document))}")
    return "a transcript"


# -- vectors and scores, judged without knowing the model ------------------------------------------

UNIT = 0.01
"""Largest deviation of a normalised vector's length from 1: BF16 keeps eight bits of each number,
whose errors cancel out over hundreds of them."""

SAME = 0.99
"""Least cosine of two embeddings of one text: other texts in the batch change rounding only."""

DISTINCT = 0.9999
"""Cosine above which embeddings of two unrelated sentences are one and the same."""

Vector = Sequence[float]


class NotVectors(ValueError):
    """A reply without the numbers that were asked for; its text says what came instead."""


def vectors(document: Any, count: int) -> list[Vector]:
    """Return the embeddings of an OpenAI reply, in the order of what was asked.

    Raises:
        NotVectors: there are fewer or more, or one is no list of finite numbers.
    """
    rows = replies.at(document, "data")
    if not isinstance(rows, list) or len(rows) != count:
        came = f"{len(rows)} embeddings" if isinstance(rows, list) else "no list of embeddings"
        raise NotVectors(f"{came} came, expected {count}")
    found: dict[int, Vector] = {}
    for place, row in enumerate(rows):
        index = replies.at(row, "index")
        at = index if isinstance(index, int) and 0 <= index < count else place
        found[at] = _vector(replies.at(row, "embedding"))
    if len(found) != count:
        raise NotVectors(f"indexes repeat: {count} embeddings came for {len(found)} texts")
    return [found[at] for at in range(count)]


def scores(document: Any, count: int) -> list[float]:
    """Return the scores of a rerank or score reply, in the order of the documents.

    vLLM answers `results` with `relevance_score` (/rerank) or `data` with `score` (/score), SGLang
    a list with `score`.

    Raises:
        NotVectors: a document has no score, or one that is not a finite number.
    """
    rows = document if isinstance(document, list) else None
    rows = rows if rows is not None else replies.at(document, "results")
    rows = rows if rows is not None else replies.at(document, "data")
    if not isinstance(rows, list):
        raise NotVectors("no list of results came")
    found: dict[int, float] = {}
    for row in rows:
        index, score = replies.at(row, "index"), replies.at(row, "relevance_score")
        score = score if score is not None else replies.at(row, "score")
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < count:
            found[index] = _number(score, "score")
    if len(found) != count:
        raise NotVectors(f"{len(found)} of {count} documents have a score")
    return [found[at] for at in range(count)]


def length(vector: Vector) -> float:
    """Return the Euclidean length."""
    return math.sqrt(sum(number * number for number in vector))


def cosine(one: Vector, other: Vector) -> float:
    """Return the cosine of the angle; 0 where one is all zeros or the lengths differ."""
    product = length(one) * length(other)
    if not product or not math.isfinite(product) or len(one) != len(other):
        return 0.0
    return sum(a * b for a, b in zip(one, other, strict=True)) / product


def _vector(value: Any) -> Vector:
    if not isinstance(value, list) or not value:
        raise NotVectors("an embedding is not a list of numbers")
    return [_number(number, "embedding") for number in value]


def _number(value: Any, what: str) -> float:
    """A finite number; JSON has no NaN, so servers write null or NaN for it."""
    usual = isinstance(value, int | float) and not isinstance(value, bool)
    if not usual or not abs(value) < 1e30:
        raise NotVectors(f"the {what} holds {replies.short(str(value))}, expected finite numbers")
    return float(value)


# -- a sound, and the form in which it is sent -----------------------------------------------------

RATE = 16_000
"""Samples/s, which speech models work with."""

BOUNDARY = "spark-cluster-3f6c0a7d2b9e4815"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def tone(seconds: float = 1.0) -> bytes:
    """Return a WAV file with a quiet tone (mono, 16 bits). Speech cannot be made without a tool."""
    samples = [
        round(8000 * math.sin(2 * math.pi * 440 * at / RATE)) for at in range(int(seconds * RATE))
    ]
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return target.getvalue()


def form(fields: Mapping[str, str], name: str, content: bytes) -> bytes:
    """Return the body of a multipart form (RFC 7578): its fields, and one WAV file as `file`."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
    ]
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    return b"".join([*parts, head.encode(), content, f"\r\n--{BOUNDARY}--\r\n".encode()])
