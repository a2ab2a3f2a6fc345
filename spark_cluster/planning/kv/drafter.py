"""The layers of a drafter that keep a cache of their own.

vLLM gives them blocks of the same pool: MTP layers have the shape of the model's full attention and
join its group (`qwen3_next_mtp.py`, `deepseek_mtp.py`, `nemotron_h_mtp.py`: each builds
`num_nextn_predict_layers` or `mtp_num_hidden_layers` decoder layers with attention), so that the
group, and with it every block, is that many layers longer. The drafters of Gemma 4 read the model's
cache and keep none (vllm-project/speculators 586).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_cluster.models import Attention, Geometry

WITHOUT_LAYERS = ("ngram", "ngram_gpu", "suffix", "")


@dataclass(frozen=True)
class DrafterLayers:
    """Layers that are added to a model's own.

    Attributes:
        latent: layers with multi-head latent attention, as the model's.
        known: False when the drafter's shape is not known and so nothing is added.
    """

    attention: tuple[Attention, ...] = ()
    latent: int = 0
    known: bool = True


NO_DRAFTER = DrafterLayers()


def is_mtp(speculative: Mapping[str, Any], model: str) -> bool:
    """Return whether the model drafts with MTP layers of its own.

    Args:
        speculative: `--speculative-config`.
    """
    method, name = str(speculative.get("method", "")), speculative.get("model")
    return method.endswith("mtp") and name in (None, "", model)


def drafter_layers(geometry: Geometry, speculative: Mapping[str, Any], model: str) -> DrafterLayers:
    """The layers that a drafter adds to the cache of the model.

    Args:
        geometry: of the model, with its `drafter` where that is a model of its own.
        speculative: `--speculative-config`; empty without one.
        model: that is served, by name.
    """
    method = str(speculative.get("method", ""))
    if not speculative or method in WITHOUT_LAYERS:
        return NO_DRAFTER
    if method.endswith("mtp") and geometry.model_type.startswith("gemma4"):
        return NO_DRAFTER
    if is_mtp(speculative, model):
        return _of_mtp(geometry)
    if geometry.drafter is not None:
        return DrafterLayers(geometry.drafter.attention, known=not geometry.drafter.latent)
    return DrafterLayers(known=False)


def _of_mtp(geometry: Geometry) -> DrafterLayers:
    count = geometry.mtp_layers or 1  # vLLM's own default
    if geometry.latent is not None:
        return DrafterLayers(latent=count)
    full = next((part for part in geometry.attention if part.kind == "full"), None)
    if full is None:
        return DrafterLayers(known=False)
    return DrafterLayers((replace(full, layers=count, borrowed=0),))
