"""The rungs of models that are no chat models: embedding, reranking, transcription.

Paths and replies are those of vLLM (docs.vllm.ai, "Pooling Models" and "Speech to Text APIs");
SGLang has the same paths for embedding and reranking.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_cluster.engine.client import FOREIGN, Check, Client, NoSuchPath
from spark_cluster.node import replies
from spark_cluster.node.supervision import model_probe
from spark_cluster.node.supervision.model_probe import (
    DISTINCT,
    FORM_TYPE,
    SAME,
    UNIT,
    NotVectors,
    Vector,
    form,
    tone,
)

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
    same = model_probe.cosine(one, again)
    if same < SAME:
        raise client.wrong(
            f"embedding: the same text gives another vector the second time (cosine {same:.3f}, "
            f"expected at least {SAME})",
            KERNELS,
        )
    related, unrelated = model_probe.cosine(one, near), model_probe.cosine(one, far)
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
        found = model_probe.scores(document, len(DOCUMENTS))
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
        return model_probe.vectors(document, len(texts))
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
        length = model_probe.length(vector)
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
