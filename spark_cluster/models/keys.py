"""The keys of a model's config.json, under any of the names that families give them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from spark_cluster.config.yamlfile import described
from spark_cluster.errors import InvalidFile
from spark_cluster.models.tables import table

INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where the language model of a multimodal one is described."""

LARGEST = 10**12
"""More than any figure of a model; larger ones are mistakes, or meant to do harm."""

DEEPEST = 4
"""Descriptions inside each other that are looked into."""

_SIZE = re.compile(
    r"(_size|_dims?|_rank|_width|_channels|_heads|_experts|_layers|_inputs|_streams)$|^(num|n|d)_"
)
_NO_SIZE = re.compile(
    r"token|position|logit|window|chunk|freq|interval|period|offset|step|patch|image|max_|min_"
    r"|top_?k|beam|return|bits|block_size|batch|cache|rope|vocab|nextn|mtp|n_predict|labels|_tp$"
    r"|^ep_size|pretrain|timescale|dropout|sink|_group$|query_pre|local|loss|prefix|bucket|every_n|ctx|rotary_dim"
)
SIZES_KNOWN = frozenset(
    (
        *("hidden_size", "intermediate_size", "ffn_hidden_size", "moe_intermediate_size"),
        *("head_dim", "qk_head_dim", "num_attention_heads", "num_key_value_heads"),
        *("num_hidden_layers", "num_kv_heads", "n_groups", "ssm_state_size", "mamba_d_state"),
        *("num_shared_experts", "n_shared_experts", "num_kv_shared_layers", "mamba_head_dim"),
        *("mamba_n_heads", "num_query_groups", "num_channels"),
    )
)
"""Keys that are understood, and not asked for where a model has no use for them (a config of a
mixture of experts has an `intermediate_size` that no layer uses)."""


class Keys:
    """The config of a language model; what it does not say itself, its multimodal parent may.

    Args:
        name: of the model, for messages.
    """

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.name = name
        self.outer = config
        self._asked: set[str] = set()
        self._chain = [*_innermost_first(config)]
        self.model_type = str(self.get("model_type", default="") or "")
        self._described = self._chain[0]
        # What `transformers` assumes; published configs do leave keys out (Gemma 3 4B names neither
        # its heads nor their size).
        self._chain.append(table("families")["defaults"].get(self.model_type, {}))

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these keys that is there and not null."""
        self._asked.update(names)
        for level in self._chain:
            for name in names:
                if level.get(name) is not None:
                    return level[name]
        return default

    def says(self, name: str) -> bool:
        """Return whether a key exists and is not null, false, zero or empty."""
        return bool(self.get(name))

    def number(self, *names: str, default: int | None = None) -> int:
        """A whole number under the first of these names.

        Raises:
            InvalidFile: it is not there and has no default, or is no whole number.
        """
        found = self.get(*names)
        if found is None:
            if default is not None:
                return default
            raise self.wrong(
                f"lacks {names[0]!r}",
                hint="it is needed to know the model's shape; complete the config.json, or take "
                "the one of the original model",
            )
        if isinstance(found, list):  # one figure a layer (Gemma 3n): the widest
            found = max((item for item in found if isinstance(item, int)), default=None)
        if isinstance(found, bool) or not isinstance(found, int):
            key = next(name for name in names if self.get(name) is not None)
            text = described(self.get(key))
            raise self.wrong(f"{key!r} should be a whole number, found {text}")
        if found < 0:
            raise self.wrong(f"{names[0]!r} should not be negative, found {described(found)}")
        if found > LARGEST:
            raise self.wrong(f"{names[0]!r} is {described(found)}, which no model has")
        return found

    def positive(self, *names: str, default: int | None = None) -> int:
        """Return a number as `number` does; it must be above zero."""
        found = self.number(*names, default=default)
        if found == 0:
            raise self.wrong(f"{names[0]!r} should be above 0")
        return found

    def not_understood(self) -> tuple[str, ...]:
        """Keys of the language model that bear on its size and that nobody asked for, sorted."""
        return tuple(
            sorted(
                key
                for key, value in self._described.items()
                if _bears_on_size(key, value) and key not in self._asked | SIZES_KNOWN
            )
        )

    def wrong(self, message: str, hint: str = "") -> InvalidFile:
        """The error that says what is wrong with this config."""
        return InvalidFile(message, where=f"config of {self.name}", hint=hint)


def _bears_on_size(key: str, value: Any) -> bool:
    """Return whether a key, by its name and value, may say how large something is."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 1
    return whole and bool(_SIZE.search(key)) and not _NO_SIZE.search(key)


def _innermost_first(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    chain = [config]
    while len(chain) <= DEEPEST:
        inner = next((chain[-1][n] for n in INNER if isinstance(chain[-1].get(n), Mapping)), None)
        if inner is None:
            break
        chain.append(inner)
    yield from reversed(chain)
