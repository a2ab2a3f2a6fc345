"""The tables of rotary positions, which engines load next to a model's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_cluster.models.keys import Keys
from spark_cluster.models.shape import Attention, Latent

WITHOUT = ("nemotron_h", "jamba", "gpt2", "opt", "bert", "roberta", "xlm-roberta", "bloom", "mpt")
"""Beginnings of families without rotary positions."""

TABLE_OF_EACH_KIND = ("gemma3", "gemma4", "olmo3")
"""Beginnings of families whose sliding layers rotate by another base than the others."""

WHOLE_HEADS = ("gemma4",)
"""Beginnings of families whose tables have all of a head, although only a part of it is rotated
(vLLM: `Gemma4RotaryEmbedding`)."""

USUAL_FACTOR = {"qwen3_next": 0.25, "qwen3_5": 0.25, "glm4": 0.5}
"""The part of a head that is rotated, by beginnings of families, where the config does not say."""


def rotary_width(keys: Keys, attention: Sequence[Attention], latent: Latent | None) -> int:
    """Return the elements that the tables have for each position, all tables together."""
    family = keys.model_type
    if family.startswith(WITHOUT) or keys.get("position_embedding_type") in ("nope", "absolute"):
        return 0
    if latent is not None:
        return latent.rope_dim
    factor = 1.0 if family.startswith(WHOLE_HEADS) else _factor(keys)
    widths = [int(part.head_dim * factor) for part in attention]
    return sum(widths if family.startswith(TABLE_OF_EACH_KIND) else set(widths))


def _factor(keys: Keys) -> float:
    said = keys.get("partial_rotary_factor")
    parameters = keys.get("rope_parameters")
    if said is None and isinstance(parameters, Mapping):
        said = parameters.get("partial_rotary_factor")
    if isinstance(said, int | float) and not isinstance(said, bool) and 0 < said <= 1:
        return float(said)
    usual = (USUAL_FACTOR[begin] for begin in USUAL_FACTOR if keys.model_type.startswith(begin))
    return next(usual, 1.0)
