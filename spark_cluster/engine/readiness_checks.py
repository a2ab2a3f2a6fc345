"""The last rungs of readiness: what a real client does, asked by the head, judged here.

Checks of text and of tool calls are in `answer_checks.py` and `tool_checks.py`; here are those of
log-probabilities, of the stated context and of the kinds of models that do not chat, and which
check belongs to which rung.

Fluent nonsense, a tool call that stays text, thoughts in the wrong field: `/health` is fine with
all of them, and each has been seen on a Spark.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import CHECKS_OF_KIND, ModelKind, ReadinessCheck
from spark_cluster.engine import answer_checks, readiness
from spark_cluster.engine.answer_checks import (
    FOREIGN,
    HINTS,
    TEXTS,
    TOLD,
    AnswerCheck,
    Client,
    NoSuchPath,
    NotApplicable,
    RequestFailed,
    filler,
    without_reasoning,
)
from spark_cluster.engine.deployment import Endpoint, Server, listed_models
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.tool_checks import TOOL_CHECKS
from spark_cluster.errors import VerificationFailed
from spark_cluster.issues import rules
from spark_cluster.node import health, replies
from spark_cluster.node.completions import ChatCompletion
from spark_cluster.node.health import NotVectors, Vector
from spark_cluster.runner.events import Progress
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

# Log-probabilities: finite, and the same at two calls with one prompt.

TOKENS = 16
"""Tokens of an answer that are compared."""

DRIFT = 0.25
"""Largest difference of one token's log-probability between two calls, in nats: two steps of BF16.

vLLM promises no equal log-probabilities: what else is in the batch changes the order of additions
(https://docs.vllm.ai/en/latest/usage/faq/). BF16 keeps 8 significant bits, so a logit of 16 to 32
has steps of 2**(4 - 7) = 0.125. A log-probability is a logit less the logarithm of a sum: one step
of the logit and as much of the sum are 2 * 0.125 = 0.25. The bound is derived, not measured on a
Spark; a divergence that a test of vLLM printed is 0.067
(https://github.com/vllm-project/vllm/pull/32480)."""

TIE = 2 * DRIFT
"""Largest difference of the chosen tokens' log-probabilities where the two calls chose different
tokens, in nats. Each token may move by DRIFT, so two that are up to 2 * DRIFT apart may change
places. For a greedy choice the two chosen values then differ by at most DRIFT; the remainder is a
margin for logits above 32, whose steps are 0.25."""

LOGPROBS_PROMPT, LOGPROBS_HINT = TEXTS["logprobs"], HINTS["logprobs"]

Tokens = Sequence[tuple[str, float]]


def logprobs(client: Client) -> str:
    """Two calls with one prompt give the same tokens with the same log-probabilities."""
    one, other = _asked_for_logprobs(client), _asked_for_logprobs(client)
    for token, value in (*one, *other):
        if not (math.isfinite(value) and value <= 0.01):
            shown = "not a finite number" if not math.isfinite(value) else f"{value:.3g}"
            raise client.wrong(
                f"logprobs: the log-probability of {token!r} is {shown}, expected at most 0",
                LOGPROBS_HINT,
            )
    if why := unstable(one, other):
        raise client.wrong(f"logprobs: {why}", LOGPROBS_HINT)
    drift = max((abs(a[1] - b[1]) for a, b in zip(one, other, strict=False) if a[0] == b[0]))
    return f"{len(one)} tokens, largest difference {drift:.3f}"


def unstable(one: Tokens, other: Tokens) -> str:
    """Return why two calls do not agree; empty when they do."""
    for place, (first, second) in enumerate(zip(one, other, strict=False), 1):
        apart = abs(first[1] - second[1])
        if first[0] != second[0]:
            if place > 1 and apart <= TIE:
                return ""  # what follows the other token is another text
            return (
                f"token {place} is {first[0]!r} ({first[1]:.3f}) at the first call and "
                f"{second[0]!r} ({second[1]:.3f}) at the second"
            )
        if apart > DRIFT:
            return (
                f"token {place} ({first[0]!r}) has {first[1]:.3f} at the first call and "
                f"{second[1]:.3f} at the second, expected at most {DRIFT} apart"
            )
    if len(one) != len(other):
        return f"the first call has {len(one)} tokens, the second {len(other)}"
    return ""


def _asked_for_logprobs(client: Client) -> Tokens:
    try:
        found = client.ask(
            "logprobs", LOGPROBS_PROMPT, max_tokens=TOKENS, logprobs=True, top_logprobs=1
        )
    except RequestFailed as error:
        hint = "--max-logprobs, or the drafter, keeps the server from giving them"
        raise error.judged(("logprob",), hint) from None
    if not found.tokens:
        raise client.wrong(
            "logprobs: the reply has none, though they were asked for",
            "a proxy that leaves fields out answers for the engine",
        )
    return found.tokens


# The context at the length that the server states: a fact in a long prompt is found again.

NEEDLES = ((0.9, "48213"), (0.5, "70956"), (0.1, "35827"))
"""Depth of a fact as a share of the prompt, and its number. The deepest comes first: with a prefix
cache the others need not be computed from the beginning."""

QUESTION = TEXTS["fact"]

SAMPLE = 100
"""Sentences by which the tokens of a sentence are counted."""

ANSWER_TOKENS = 1024
"""Tokens that are left for the answer: a model may think first."""

LEAST_CONTEXT = 512
"""Tokens of a context below which there is nothing to find a fact in."""

MOST_CONTEXT = 1 << 24
"""Tokens beyond which no prompt is made, whatever a server states; some models take ten million."""

LEAST_EACH = 4
"""Tokens of a sentence of ten words at least, by any vocabulary."""

SMALLER = 0.95
"""Factor of the prompt when the server refuses it as too long; the count is an estimate."""

TRIES = 3

CUT = 0.8
"""Least share of the expected tokens that the server must have counted."""

FLAGS = ("max-model-len", "context-length")


def context(client: Client) -> str:
    """A fact is found at several depths of a prompt as long as the server states."""
    stated = _stated(client)
    length = min(stated, client.context or stated)
    answer = min(ANSWER_TOKENS, length // 4)
    wanted = length - answer
    count = _sentences(client, wanted)
    seen = 0
    for depth, code in NEEDLES:
        found = _asked_for_fact(client, stated, answer, filler_with(count, code, depth))
        tokens = found.prompt_tokens or 0
        if tokens < CUT * wanted:
            raise client.wrong(
                f"context: the server counted {tokens} tokens of a prompt of about {wanted}: "
                "it was cut",
                "a proxy or the engine shortens prompts without saying so",
            )
        seen = max(seen, tokens)
        if code not in found.content:
            raise client.wrong(
                f"context: the number at {depth:.0%} of {tokens} tokens is {code}, the model says "
                f"{replies.short(found.content.strip())!r}",
                HINTS["context"],
            )
    depths = ", ".join(f"{depth:.0%}" for depth, _ in NEEDLES)
    return f"found at {depths} of {seen} tokens (the server states {stated})"


def _stated(client: Client) -> int:
    """The context length by the server's list of models, else by its launch.

    Raises:
        NotApplicable: neither says it, or it is very short or long.
    """
    answer = client.endpoint.request(client.session, "/v1/models")
    if answer.status == 0:
        raise client.failed("context: the list of models", answer)
    stated = replies.at(listed_models(answer).get(client.endpoint.model), "max_model_len")
    if not isinstance(stated, int) or isinstance(stated, bool):
        given = [value for flag in FLAGS if (value := (client.flags or {}).get(flag, ""))]
        stated = int(given[0]) if given and re.fullmatch("[0-9]{1,18}", given[0]) else 0
    if not LEAST_CONTEXT <= stated <= MOST_CONTEXT:
        what = f"the context has {stated} tokens" if stated else "the server states no context"
        raise NotApplicable(
            f"context: {what}", where=client.where, hint="--max-model-len states it"
        )
    return stated


def _sentences(client: Client, tokens: int) -> int:
    """How many sentences make so many tokens, by the server's own count."""
    used = []
    for count in (1, SAMPLE // 4 if tokens < 20 * SAMPLE else SAMPLE):
        found = client.ask("context", filler(count) + f"\n{QUESTION}", max_tokens=1)
        used.append((count, found.prompt_tokens or 0))
    (few, before), (many, after) = used
    each = (after - before) / (many - few)
    if not before > 0 or each < LEAST_EACH:
        raise client.wrong(
            f"context: the server counted {before} tokens for {few} sentence, {after} for {many}",
            "a proxy that leaves `usage` out answers for the engine",
        )
    return max(1, int((tokens - before) / each * 0.97))


def fact(code: str) -> str:
    """Return the sentence that is to be found again."""
    return f"The code of the archive is {code}."


def filler_with(count: int, code: str, depth: float) -> Callable[[float], str]:
    """Return a prompt with a fact, at a share of its whole length."""
    return lambda share: f"{filler(round(count * share), fact(code), depth)}\n{QUESTION}"


def _asked_for_fact(
    client: Client, stated: int, answer: int, prompt: Callable[[float], str]
) -> ChatCompletion:
    """The answer about one fact; with a shorter prompt where the server finds it too long.

    Args:
        stated: context that the server states, tokens.
        answer: tokens that are left for the answer.
    """
    tried = 1
    while True:
        try:
            return client.ask(
                "context",
                prompt(SMALLER ** (tried - 1)),
                max_tokens=answer,
                **without_reasoning(client),
            )
        except RequestFailed as error:
            if error.status == 0:
                raise
            if error.status != 400 or tried == TRIES:
                raise client.wrong(
                    f"context: a prompt of the stated length ({stated} tokens) is refused: "
                    f"{error.reason} (status {error.status})",
                    "--max-model-len states more than the server takes, or the KV cache is too "
                    "small for it: spark-cluster logs shows its size",
                ) from error
        tried += 1


# The rungs of models that are no chat models: embedding, reranking, transcription.
#
# Paths and replies are those of vLLM (docs.vllm.ai, "Pooling Models" and "Speech to Text APIs");
# SGLang has the same paths for embedding and reranking.

SENTENCE, RELATED, UNRELATED = TEXTS["sentence"], TEXTS["related"], TEXTS["unrelated"]

QUERY = TEXTS["query"]
DOCUMENTS = ("Horses and cows are both animals.", "Paris is the capital of France.")
RELEVANT = 1
"""Index of the document that answers the query; the other one comes first, so that a server which
leaves the order as it was is found out."""

KERNELS, POOLING, AUDIO = HINTS["kernels"], HINTS["pooling"], HINTS["audio"]


def embedding(client: Client) -> str:
    """Vectors are finite, as long as the model's, of length 1, repeatable, and near for the like.

    Returns:
        The size, and how near related and unrelated sentences are.
    """
    one, near, far = _embedded(client, [SENTENCE, RELATED, UNRELATED])
    (again,) = _embedded(client, [SENTENCE])
    _sized(client, [one, near, far, again])
    if client.normalized:
        _normalized(client, [one, near, far])
    same = health.cosine(one, again)
    if same < health.SAME:
        raise client.wrong(
            f"embedding: the same text gives another vector the second time (cosine {same:.3f}, "
            f"expected at least {health.SAME})",
            KERNELS,
        )
    related, unrelated = health.cosine(one, near), health.cosine(one, far)
    if unrelated > health.DISTINCT:
        raise client.wrong(
            "embedding: two sentences about different things have the same vector "
            f"(cosine {unrelated:.5f})",
            KERNELS,
        )
    if related <= unrelated:
        raise client.wrong(
            f"embedding: {SENTENCE!r} is nearer to {UNRELATED!r} (cosine {unrelated:.3f}) than to "
            f"{RELATED!r} ({related:.3f})",
            f"{KERNELS}; the sentences are English, which the model should know",
        )
    return f"{len(one)} numbers; cosine {related:.2f} related, {unrelated:.2f} unrelated"


def reranking(client: Client) -> str:
    """A document that answers a query gets more than one that does not.

    Returns:
        Both scores.
    """
    document = _reranked(client)
    try:
        found = health.scores(document, len(DOCUMENTS))
    except NotVectors as error:
        raise client.wrong(f"reranking: {error}", KERNELS) from None
    high, low = found[RELEVANT], found[1 - RELEVANT]
    if high <= low:
        raise client.wrong(
            f"reranking: {DOCUMENTS[RELEVANT]!r} gets {high:.4g} for {QUERY!r}, and "
            f"{DOCUMENTS[1 - RELEVANT]!r} {low:.4g}; expected more for the first",
            "a model that is converted needs its own --hf-overrides (classifier_from_token) and "
            f"template (docs.vllm.ai, Scoring Usages); {KERNELS}",
        )
    return f"relevant {high:.3g}, irrelevant {low:.3g}"


def transcription(client: Client) -> str:
    """The API takes a WAV file and answers with a text.

    A tone has no words: a right transcript cannot be told from a wrong one here.

    Returns:
        What was shown, and what was not.
    """
    fields = {"model": client.endpoint.model, "response_format": "json", "temperature": "0"}
    try:
        document = client.answered(
            "transcription",
            "/v1/audio/transcriptions",
            body=health.form(fields, "tone.wav", health.tone()),
            content_type=health.FORM_TYPE,
        )
    except NoSuchPath as error:
        raise client.wrong(error.message, AUDIO) from None
    if not isinstance(replies.at(document, "text"), str):
        raise client.wrong(
            f"transcription: found {replies.short(str(document))}, expected a document with 'text'",
            f"{AUDIO}; {FOREIGN}",
        )
    return "a WAV file is taken and a text comes (a tone: whether words are right is not verified)"


def _embedded(client: Client, texts: Sequence[str]) -> list[Vector]:
    asked = {"input": list(texts), "encoding_format": "float"}
    try:
        document = client.document("embedding", "/v1/embeddings", asked)
    except NoSuchPath as error:
        raise client.wrong(error.message, POOLING) from None
    try:
        return health.vectors(document, len(texts))
    except NotVectors as error:
        raise client.wrong(f"embedding: {error}", f"{KERNELS}; {FOREIGN}") from None


def _sized(client: Client, found: Sequence[Vector]) -> None:
    sizes = sorted({len(vector) for vector in found})
    expected = client.dimensions or tuple(sizes[:1])
    if len(sizes) == 1 and sizes[0] in expected:
        return
    shown = ", ".join(map(str, sizes))
    wanted = " or ".join(map(str, expected))
    raise client.wrong(
        f"embedding: vectors have {shown} numbers, expected {wanted}, as the model's config says",
        "another model is loaded than the recipe's, or its files were mixed with another's",
    )


def _normalized(client: Client, found: Sequence[Vector]) -> None:
    for vector in found:
        length = health.length(vector)
        if abs(length - 1) > health.UNIT:
            raise client.wrong(
                f"embedding: a vector has the length {length:.4g}, expected 1",
                f"{KERNELS}; where it is meant, --pooler-config says that nothing is normalised",
            )


def _reranked(client: Client) -> object:
    """The reply of the first path that the server has."""
    asked = {"query": QUERY, "documents": list(DOCUMENTS)}
    for path in ("/v1/rerank", "/rerank"):
        try:
            return client.document("reranking", path, asked)
        except NoSuchPath:
            continue
    try:
        pairs = {"text_1": QUERY, "text_2": list(DOCUMENTS)}
        return client.document("reranking", "/score", pairs)
    except NoSuchPath as error:
        message = "reranking: neither /v1/rerank nor /rerank nor /score is there (status 404)"
        hint = f"{POOLING}; a classifier with several labels has none of them, and is not verified"
        raise client.wrong(message, hint) from error


def run_all(play: Play, server: Server) -> str:
    """Make each readiness check that the recipe names, in its order.

    Returns:
        The answer to the recipe's own question; of another kind than chat, what its check found.

    Raises:
        VerificationFailed: at the first readiness check that fails.
    """
    answer = ""
    client = client_for(play, server.endpoint, server.recipe, server.program)
    flags = {flag: str(value) for flag, value in server.launch.args.items()}
    client = replace(client, flags=flags)
    for name in server.recipe.readiness.rungs:
        for check in CHECKS_BY_NAME[name]:
            play.bus.emit(Progress(play.head.name, "verify", check.title))
            try:
                found = check.run(client)
            except VerificationFailed as error:
                raise with_known(error, name, server.launch) from None
            if name == "answer" or server.recipe.kind != "chat":
                answer = found
    return answer


def client_for(play: Play, endpoint: Endpoint, recipe: Recipe, server: str = SERVER) -> Client:
    """Return the client that asks from the head, with what the recipe lets one expect.

    Args:
        server: name of the program that serves, for its log.
    """
    session = play.session(play.head)
    own_question = partial(readiness.ask, play, endpoint, recipe.probe, server)
    client = Client(session, endpoint, play.head.name, own_question=own_question)
    if recipe.kind == "embedding":
        return expecting(client, session, recipe)
    return client


def with_known(error: VerificationFailed, name: str, launch: Launch) -> VerificationFailed:
    """Return the error; its hint names the known issues of the launch that this check shows."""
    # Late: what reads logs is needed for a failure only.
    from spark_cluster.issues.explain import in_words_of
    from spark_cluster.issues.startup import BY_KEY, VLLM

    found = rules.live(rungs={name: error.message}, launch=launch)
    engine = BY_KEY.get(launch.engine, VLLM)
    known = [in_words_of(engine, one) for one in found]
    lines = [f"known: {f.title} ({f.id}): {f.fix}" for f in known]
    own = engine.in_its_words(error.hint)
    error.hint = "\n  ".join([own, *lines] if own else lines)
    return error


# -- the size of embeddings, by the model's configuration ----------------------------------------


_KEYS = ("hidden_size", "projection_dim", "d_model", "n_embd", "embedding_size")
"""Keys of a config that can be an embedding's size; encoders with a projection have two of them."""


def expecting(client: Client, session: Session, recipe: Recipe) -> Client:
    """Return the client with what the recipe and the model's files let one expect."""
    folder = recipe.model.node_path
    paths = {"config": f"{folder}/config.json", "modules": f"{folder}/modules.json"}
    files = session.request("gather", files=paths)["files"]
    dense = {path: f"{folder}/{path}/config.json" for path in dense_folders(files["modules"])}
    layers = session.request("gather", files=dense)["files"] if dense else {}
    sizes = dimensions(files["config"], [layers[path] for path in dense])
    return replace(client, dimensions=sizes, normalized=normalized(recipe.engine_args))


def dense_folders(modules: str | None) -> list[str]:
    """Return the folders of the projections that sentence-transformers puts after the pooling."""
    rows = replies.decoded(modules)
    found = []
    for row in rows if isinstance(rows, list) else ():
        path = replies.text_of(replies.at(row, "path"))
        plain = path.replace("_", "").isalnum()  # a name, and no way out of the folder
        if plain and replies.text_of(replies.at(row, "type")).endswith(".Dense"):
            found.append(path)
    return found


def dimensions(config: str | None, dense: list[str | None]) -> tuple[int, ...]:
    """Return the sizes that an embedding may have; empty when the files do not say it.

    Args:
        config: text of config.json.
        dense: text of the config of each projection; the last one decides.
    """
    if dense:
        last = replies.at(replies.decoded(dense[-1]), "out_features")
        return (last,) if isinstance(last, int) else ()
    full = replies.decoded(config)
    configs = [full, replies.at(full, "text_config")]
    found = [replies.at(one, key) for one in configs for key in _KEYS]
    return tuple(dict.fromkeys(n for n in found if isinstance(n, int) and not isinstance(n, bool)))


def normalized(flags: Mapping[str, Any]) -> bool:
    """Return False where --pooler-config switches the unit length off (`normalize` until vLLM 0.11,
    `use_activation` after it)."""
    for flag in ("pooler-config", "override-pooler-config"):
        given = flags.get(flag)
        config = given
        if isinstance(given, str):
            try:
                config = json.loads(given)
            except ValueError:
                continue
        for key in ("normalize", "use_activation", "activation"):
            if replies.at(config, key) is False:
                return False
    return True


# -- all checks ----------------------------------------------------------------------------------


_RUN: Mapping[str, Callable[[Client], str]] = {
    run.__name__.replace("_", "-"): run
    for run in (
        *(answer_checks.answer, answer_checks.short_answers, answer_checks.coherence),
        *(answer_checks.reasoning, answer_checks.concurrency, answer_checks.structured_output),
        *(logprobs, context, embedding, reranking, transcription),
    )
}
"""What runs a check, by its id."""


def _check(told: Mapping[str, Any]) -> AnswerCheck:
    """Return a check as `answer_checks.toml` has it."""
    request = told.get("request") or " / ".join(TEXTS[name] for name in told["asked"])
    about = (told["readiness"], told["title"], request, told["expected"])
    return AnswerCheck(told["id"], *about, _RUN[told["id"]])


_EVERY = (*map(_check, TOLD["check"]), *TOOL_CHECKS)


def of_kind(kind: ModelKind) -> tuple[AnswerCheck, ...]:
    """Return every check of a kind of model, in the order of its rungs."""
    return tuple(check for name in CHECKS_OF_KIND[kind] for check in CHECKS_BY_NAME[name])


CHECKS_BY_NAME: Mapping[ReadinessCheck, tuple[AnswerCheck, ...]] = {
    name: tuple(check for check in _EVERY if check.readiness == name)
    for name in dict.fromkeys(name for rungs in CHECKS_OF_KIND.values() for name in rungs)
}
