"""The last rungs of readiness: what a real client does, asked by the head, judged here.

Fluent nonsense, a tool call that stays text, thoughts in the wrong field: `/health` is fine with
all of them, and each has been seen on a Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spark_cluster.config.launch import Launch
from spark_cluster.config.model_kind import CHECKS_OF_KIND, ModelKind, ReadinessCheck
from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import readiness
from spark_cluster.engine.checks import context, logprobs, structured, texts, tools
from spark_cluster.engine.client import FOREIGN, Check, Client, NoSuchPath
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.engine.names import SERVER
from spark_cluster.errors import VerificationFailed
from spark_cluster.issues import rules
from spark_cluster.node import health, replies
from spark_cluster.node.health import (
    DISTINCT,
    FORM_TYPE,
    SAME,
    UNIT,
    NotVectors,
    Vector,
    form,
    tone,
)
from spark_cluster.runner.events import Progress
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

# The rungs of models that are no chat models: embedding, reranking, transcription.
#
# Paths and replies are those of vLLM (docs.vllm.ai, "Pooling Models" and "Speech to Text APIs");
# SGLang has the same paths for embedding and reranking.

SENTENCE = "A dog is running across the park."
RELATED = "A puppy runs through a garden."
UNRELATED = "The central bank raised its interest rates on Thursday."

QUERY = "What is the capital of France?"
DOCUMENTS = ("Horses and cows are both animals.", "Paris is the capital of France.")
RELEVANT = 1
"""Index of the document that answers the query; the other one comes first, so that a server which
leaves the order as it was is found out."""

KERNELS = (
    "wrong kernels, a damaged copy or another quantization than the checkpoint's give such numbers"
)
POOLING = (
    "the server has another kind of model loaded than the recipe says: vLLM takes --runner pooling "
    "and --convert embed or classify (before 0.10 --task embed or score); or change `kind`"
)
AUDIO = "its model does not transcribe, or the image lacks the audio packages (vllm[audio])"


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
    if same < SAME:
        raise client.wrong(
            f"embedding: the same text gives another vector the second time (cosine {same:.3f}, "
            f"expected at least {SAME})",
            KERNELS,
        )
    related, unrelated = health.cosine(one, near), health.cosine(one, far)
    if unrelated > DISTINCT:
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
            body=form(fields, "tone.wav", tone()),
            content_type=FORM_TYPE,
        )
    except NoSuchPath as error:
        raise client.wrong(error.message, AUDIO) from None
    if not isinstance(replies.at(document, "text"), str):
        raise client.wrong(
            f"transcription: found {replies.short(str(document))}, expected a document with 'text'",
            f"{AUDIO}; {FOREIGN}",
        )
    return "a WAV file is taken and a text comes (a tone: whether words are right is not verified)"


CHECKS = (
    Check("embedding", "embedding", "embeddings", " / ".join((SENTENCE, RELATED, UNRELATED)),
          "finite vectors, repeatable, nearer for the like", embedding),
    Check("reranking", "reranking", "reranking", f"{QUERY} {' / '.join(DOCUMENTS)}",
          "a higher score for the document that answers", reranking),
    Check("transcription", "transcription", "transcription", "a tone of one second",
          "a text", transcription),
)  # fmt: skip


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
        if abs(length - 1) > UNIT:
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
        for check in checks_of(name):
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

    known = rules.live(rungs={name: error.message}, launch=launch)
    lines = [f"known: {f.title} ({f.id}): {f.fix}" for f in known]
    error.hint = "\n  ".join([error.hint, *lines] if error.hint else lines)
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


_HOMES = (texts, logprobs, tools, structured, context)
_EVERY = (*(check for home in _HOMES for check in home.CHECKS), *CHECKS)


def checks_of(name: ReadinessCheck) -> tuple[Check, ...]:
    """Return the checks of a readiness check; it holds when all of them do."""
    return CHECKS_BY_NAME[name]


def of_kind(kind: ModelKind) -> tuple[Check, ...]:
    """Return every check of a kind of model, in the order of its rungs."""
    return tuple(check for name in CHECKS_OF_KIND[kind] for check in checks_of(name))


CHECKS_BY_NAME: Mapping[ReadinessCheck, tuple[Check, ...]] = {
    name: tuple(check for check in _EVERY if check.readiness == name)
    for name in dict.fromkeys(name for rungs in CHECKS_OF_KIND.values() for name in rungs)
}
