"""Pictures, drawn on the spot: one colour, and a scene of simple things."""

from __future__ import annotations

from functools import partial

from spark_cluster.engine.checks.questions import VISION, Question, why_wrong
from spark_cluster.engine.client import Check, Client, NotApplicable, RequestFailed
from spark_cluster.node import replies

TITLES = {"colour": "vision: a colour", "scene": "vision: house, tree, sun"}
"""Question to the title of its check."""

SHOWN = {"colour": "a red square", "scene": "a house, a tree and the sun"}

WITHOUT = ("multimodal", "multi-modal", "image", "vision")
"""Words of a server's refusal of a picture (vLLM: `... is not a multimodal model`, `At most 0
image(s) may be provided`)."""

TEXT_ONLY = "language-model-only"


def vision(question: Question, client: Client) -> str:
    """A picture is seen."""
    if client.flags is not None and TEXT_ONLY in client.flags:
        raise NotApplicable(
            f"vision: the launch has --{TEXT_ONLY}",
            where=client.where,
            hint=f"--{TEXT_ONLY} leaves the vision tower out",
        )
    try:
        found = client.chat("vision", question.to_dict()["messages"])
    except RequestFailed as error:
        raise error.judged(WITHOUT, "the recipe's model takes no pictures") from None
    if why := why_wrong(question, [found.as_message]):
        raise client.wrong(
            f"vision: {SHOWN[question.id]} was shown; {why}",
            f"--{TEXT_ONLY} leaves the vision tower out; otherwise it was damaged",
        )
    return replies.short(" ".join(found.content.split()))


CHECKS = tuple(
    Check(
        f"vision-{question.id}",
        "vision",
        TITLES[question.id],
        question.text,
        ", ".join(group[0] for group in question.words),
        partial(vision, question),
    )
    for question in VISION
    if question.id in TITLES
)
