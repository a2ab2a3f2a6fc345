"""A client of the endpoint that verifies, and its checks of text: replies are judged, not counted.

The recipe's own question, exact short answers, coherence, reasoning, many requests at once, and
answers that follow a JSON schema. Text to fill a prompt with is sentences that are alike, true of
nothing, and never the same.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from spark_cluster.config.recipe_schema import ReadinessCheck
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.errors import SparkClusterError, VerificationFailed
from spark_cluster.node import replies
from spark_cluster.node.completions import ChatCompletion, complete, streamed
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.session import Answer, Session

# A client of the endpoint that verifies: requests whose replies are judged.

PATIENCE_S = 900.0
"""Seconds for one answer: 1,024 tokens at 7 tok/s are two and a half minutes."""

MAX_TOKENS = 1024
"""Of an answer, where a check says nothing else: enough for a model that thinks first."""

TOLD = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""What the checks ask and expect, in `answer_checks.toml`."""

TEXTS, HINTS = TOLD["texts"], TOLD["hints"]
FOREIGN, FAILOVER = HINTS["foreign"], HINTS["failover"]

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
                f"{check}: the stream contains an error: {replies.short(found.error)}",
                "spark-cluster logs shows more",
            )
        if not found.ended:
            raise self.wrong(
                f"{check}: the stream ended without [DONE] after {replies.short(found.content)!r}",
                "the engine ended, or a proxy cut the connection: spark-cluster logs shows more",
            )
        self._must_be_its_model(check, found)
        return found

    def _post(self, path: str, body: str | bytes, content_type: str = "application/json") -> Answer:
        patience_s = self.patience_s
        return self.endpoint.request(
            self.session, path, body, timeout=patience_s, content_type=content_type
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
            raise self.wrong(f"{check}: {who} answered, not {self.endpoint.model!r}", FAILOVER)

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
            raise self.wrong(f"{what}: {model!r} answered, not {self.endpoint.model!r}", FAILOVER)
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
class AnswerCheck:
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


_WHAT = ("lamp", "chair", "mirror", "kettle", "ladder", "bucket", "carpet", "drawer", "basket")
_COLOUR = ("red", "green", "blue", "grey", "white", "brown", "yellow")
_WHERE = ("hall", "cellar", "kitchen", "garden", "attic", "office", "garage", "corridor")


def sentence(number: int) -> str:
    """Return a sentence of about a dozen tokens."""
    what, colour = _WHAT[number % len(_WHAT)], _COLOUR[number % len(_COLOUR)]
    where = _WHERE[number % len(_WHERE)]
    return f"Entry {number}: the {colour} {what} stands in the {where}."


def filler(count: int, extra: str = "", at: float = 0.0) -> str:
    """Return sentences, one a line.

    Args:
        extra: another sentence among them.
        at: where it stands: 0 is the beginning, 1 the end.
    """
    lines = [sentence(number) for number in range(1, count + 1)]
    if extra:
        lines.insert(round(at * count), extra)
    return "\n".join(lines)


LEAST = 200
"""Characters of a story that was to have three hundred words; a shorter one proves nothing."""

STORY, RIDDLE = TEXTS["story"], TEXTS["riddle"]

THOUGHTS = ("<think>", "</think>", "<|channel", "<channel|>", "<|start|>", "[THINK]", "[/THINK]")
"""Delimiters of reasoning that belong into no text: Qwen's and DeepSeek's, Gemma 4's and gpt-oss',
Mistral's."""

NONSENSE = HINTS["nonsense"]

SHORT = tuple((one["question"], tuple(one["right"])) for one in TOLD["short"])
"""Questions, and the answers that are right, in lower case."""

SHORT_TOKENS = 1024
"""Of a short answer: a model that thinks first needs them; the others end after a word."""


def answer(client: Client) -> str:
    """The recipe's own question has the answer that the recipe says."""
    return client.own_question()


def short_answers(client: Client) -> str:
    """Short questions have exactly the right answer, at temperature 0."""
    said = []
    for question, right in SHORT:
        found = ask_short(client, "short answers", question)
        if why := wrong_answer(found, right):
            raise client.wrong(
                f"short answers: asked {question!r}, {why}",
                NONSENSE,
            )
        said.append(found.content.strip())
    return replies.short(", ".join(said))


def ask_short(client: Client, check: str, prompt: str, *, stream: bool = False) -> ChatCompletion:
    """The answer to a short question, without reasoning where the model can leave it."""
    options = without_reasoning(client)
    return client.ask(check, prompt, max_tokens=SHORT_TOKENS, stream=stream, **options)


def without_reasoning(client: Client) -> dict[str, Any]:
    """Return the options by which a model that reasons answers at once.

    vLLM refuses them for Mistral's own tokenizer; models without reasoning do not need them.
    """
    flags = client.flags or {}
    if "reasoning-parser" not in flags or flags.get("tokenizer-mode") == "mistral":
        return {}
    return {"chat_template_kwargs": {"enable_thinking": False}}


def wrong_answer(found: ChatCompletion, right: tuple[str, ...]) -> str:
    """Return why a short answer is not right; empty when it is."""
    if not found.content.strip() and found.finish == "length":
        return f"there is no answer within {SHORT_TOKENS} tokens, expected {right[0]!r}"
    return wrong_short(found.content, right)


def wrong_short(text: str, right: tuple[str, ...]) -> str:
    """Return why a text is not exactly one of the right answers; empty when it is."""
    if text.strip().strip("*.!\"'` ").casefold() in right:
        return ""
    return f"the model says {replies.short(text.strip())!r}, expected {right[0]!r}"


def coherence(client: Client) -> str:
    """400 tokens without falling into a loop or into signs (NaN, FP8 KV cache)."""
    text = client.ask("coherence", STORY, max_tokens=400).text
    why = incoherent(text) or ("it is much too short" if len(text) < LEAST else "")
    if why:
        raise client.wrong(
            f"coherence: {why}: {replies.short(text)!r}",
            "kernels that give NaN print `!!!!`, an FP8 KV cache can make a model repeat itself: "
            "try --moe-backend marlin, or --kv-cache-dtype auto",
        )
    return f"{len(text)} characters: {text[:40]!r} ..."


def reasoning(client: Client) -> str:
    """Check that the reasoning comes in a field of its own, without its delimiters."""
    found = client.ask(
        "reasoning",
        RIDDLE,
        chat_template_kwargs={"enable_thinking": True},
        skip_special_tokens=False,  # the parser wants to see the delimiters (vLLM 38855)
    )
    content = found.content.lstrip()
    leaked = content.startswith("thought\n") or any(mark in content for mark in THOUGHTS)
    hint = "--reasoning-parser of this model is missing or wrong (Gemma 4: gemma4; vLLM 38855)"
    if leaked:
        raise client.wrong(
            f"reasoning: the reasoning is in the text: {replies.short(content)!r}", hint
        )
    if not found.reasoning.strip():
        if client.flags is not None and "reasoning-parser" not in client.flags:
            message = "reasoning: none came, and the launch has no --reasoning-parser"
            raise NotApplicable(message, where=client.where, hint=hint)
        raise client.wrong(f"reasoning: there is no reasoning: {replies.short(content)!r}", hint)
    if any(mark in found.reasoning for mark in THOUGHTS):
        raise client.wrong(
            f"reasoning: its field has delimiters: {replies.short(found.reasoning)!r}", hint
        )
    return f"{len(found.reasoning)} characters in a field of their own"


# -- judging a text without knowing what it is about ----------------------------------------------

LETTERS = 0.5
"""Least share of letters and spaces. Prose has above 0.9, program text about 0.7, NaN output 0."""

SHINGLE = 16
"""Characters in a row that are compared; longer than common words, shorter than a sentence."""

DISTINCT, DISTINCT_END = 0.5, 0.3
"""Least share of different shingles, in the whole text and in its second half. Prose has above
0.9; a loop of 100 characters has 0.1 after a thousand."""


SPECIAL = re.compile(
    r"<(?:\|?(?:pad|unk|bos|eos|mask|endoftext|end_of_text|im_start|im_end|eot_id)\|?)>"
    r"|\[(?:PAD|UNK|MASK)\]|<unused\d+>|\ufffd{2}",
    re.IGNORECASE,
)
"""Tokens that a tokenizer has for itself and no answer shows, and bytes that are no text."""


def incoherent(text: str) -> str:
    """Return why a text cannot come from a sound model; empty when it can."""
    if not text.strip():
        return "the reply is empty"
    if special := SPECIAL.search(text):
        return f"it has the special token {special.group()}"
    plain = sum(c.isalpha() or c.isspace() for c in text) / len(text)
    if plain < LETTERS:
        return f"only {plain:.0%} of it are letters"
    words = " ".join(text.split())
    all_of_it, end = _distinct(words), _distinct(words[len(words) // 2 :])
    if all_of_it < DISTINCT or end < DISTINCT_END:
        return f"it repeats itself ({min(all_of_it, end):.0%} of it is new)"
    return ""


def _distinct(text: str) -> float:
    """Share of different shingles; 1 for a text too short to repeat itself."""
    count = len(text) - SHINGLE + 1
    if count < 2 * SHINGLE:
        return 1.0
    return len({text[i : i + SHINGLE] for i in range(count)}) / count


LONG = 60
"""Sentences before the question of a long prompt."""


def concurrency(client: Client) -> str:
    """Short, long, streamed and long-running requests at once are all answered rightly."""
    jobs: dict[str, Callable[[], str]] = {"story": partial(coherence, client)}
    for number, (question, right) in enumerate(SHORT):
        jobs[f"short {number}"] = partial(_short, client, question, right, stream=False)
        long = f"{filler(LONG)}\n{question}"
        jobs[f"long {number}"] = partial(_short, client, long, right, stream=number % 2 == 0)
    found = in_parallel(jobs)
    wrong = [one for one in found.values() if isinstance(one, SparkClusterError)]
    if not wrong:
        return f"{len(found)} requests at once, each with its own right answer"
    first = wrong[0]
    if not isinstance(first, VerificationFailed):
        raise first  # the connection to the node was lost
    message = f"concurrency: {len(wrong)} of {len(found)} requests at once failed; {first.message}"
    hint = f"{first.hint}\n  {HINTS['concurrency']}"
    if isinstance(first, RequestFailed):
        raise RequestFailed(message, first.status, first.reason, where=client.where, hint=hint)
    raise client.wrong(message, hint)


def _short(client: Client, prompt: str, right: tuple[str, ...], *, stream: bool) -> str:
    found = ask_short(client, "concurrency", prompt, stream=stream)
    if why := wrong_answer(found, right):
        raise client.wrong(f"asked {prompt[-60:]!r}, {why}", NONSENSE)
    return found.content


# Structured output: an answer that follows a JSON schema, and is right.

STRUCTURED_PROMPT, STRUCTURED_ANSWER = TEXTS["structured"], TOLD["structured"]["answer"]

SCHEMA = TOLD["structured"]["schema"]


def structured_output(client: Client) -> str:
    """The answer is JSON of the schema, and says what is true."""
    try:
        found = client.ask(
            "structured output",
            STRUCTURED_PROMPT,
            **without_reasoning(client),
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "capital", "schema": SCHEMA, "strict": True},
            },
        )
    except RequestFailed as error:
        raise error.judged(
            TOLD["structured"]["refusals"], "this server has no backend for structured output"
        ) from None
    document = replies.decoded(found.content)
    shown = replies.short(found.content)
    if not _follows(document):
        raise client.wrong(
            f"structured output: {shown!r} does not follow the schema",
            "the engine ignores response_format: its --structured-outputs-config, a drafter, or a "
            "--reasoning-parser that takes the answer for reasoning",
        )
    if document != STRUCTURED_ANSWER:
        raise client.wrong(
            f"structured output: the answer is {shown}, expected {STRUCTURED_ANSWER}",
            "the schema is followed, but the answer is wrong: a damaged copy of the model",
        )
    return shown


def _follows(document: object) -> bool:
    return (
        isinstance(document, dict)
        and document.keys() == STRUCTURED_ANSWER.keys()
        and document["city"] in SCHEMA["properties"]["city"]["enum"]
        and isinstance(document["in_europe"], bool)
    )
