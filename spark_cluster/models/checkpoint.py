"""What is known of a model without its weights: its documents, and what its tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_cluster.models.config import from_config
from spark_cluster.models.counting import count
from spark_cluster.models.safetensors_header import Tensor
from spark_cluster.models.shape import Geometry

QUANTIZATION_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Where a build may declare its quantization besides config.json."""


@dataclass(frozen=True)
class Checkpoint:
    """A model without its weights.

    Attributes:
        config: its config.json, with the quantization from wherever that is declared.
        generation: its generation_config.json; empty without one.
        tensors: of all its files, experts together; None when they are not known.
        commit: on the hub; empty for a folder or an entry of the table.
        problem: why the tensors are not known; empty when they are, or when nothing was tried.
    """

    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tensors: tuple[Tensor, ...] | None
    commit: str = ""
    problem: str = ""

    def geometry(self, name: str) -> Geometry:
        """Its shape, with the weights as counted from the tensors where these are known.

        Raises:
            InvalidFile: the config lacks what is needed, or says what is not understood.
        """
        shape = from_config(self.config, name)
        if not self.tensors:
            return shape
        return replace(shape, stored=count(self.tensors, shape, self.config))
