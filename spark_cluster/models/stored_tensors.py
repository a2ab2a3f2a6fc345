"""The weights of a model as they lie in memory: bytes by part, and what a step reads of them.

The bytes are counted from the checkpoint's tensors where those are known (`counted`), else computed
from the shape. Whoever asks for sizes or for bytes a step asks here and need not know which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

Part = Literal[
    "attention",
    "recurrent",
    "mlp",
    "shared",
    "experts",
    "router",
    "norms",
    "embedding",
    "output",
    "lookup",
    "other",
    "drafter",
]
"""Parts of a model.

attention, recurrent, mlp: layers that every token passes; what is in a layer and not recognised
    counts as `mlp`. shared: what works on every token next to the experts. experts: all experts of
    all layers. norms: norms and biases. embedding: the output layer too where they are tied.
output: the output layer of its own. lookup: tables of which a token needs a row (embeddings of
    each layer). other: vision and audio towers. drafter: MTP layers, in memory only while they
    draft.
"""

PARTS: tuple[Part, ...] = get_args(Part)

MATRICES: tuple[Part, ...] = ("attention", "recurrent", "mlp", "shared", "experts")
"""Parts made of matrices that quantization applies to."""

EVERY_TOKEN: tuple[Part, ...] = (
    "attention",
    "recurrent",
    "mlp",
    "shared",
    "router",
    "norms",
)
"""Parts that every step reads in full."""

REPLICATED: tuple[Part, ...] = ("router", "norms")
"""Parts that every rank holds in full (vLLM: `ReplicatedLinear`, norms)."""


@dataclass(frozen=True)
class StoredPart:
    """One part of a model in memory, all ranks together, before anything is replicated.

    Attributes:
        parameters: weights, unpacked: a byte of two 4-bit weights counts as two.
        bytes: that they take, scales and zero points included.
        whole: bytes of these that every rank holds in full; tensor parallelism divides the others.
        format: of most of its weights, in the words of recipes (`bf16`, `fp8`, `nvfp4`, ...).
    """

    name: Part
    parameters: float
    bytes: float
    whole: float = 0.0
    format: str = "bf16"


@dataclass(frozen=True)
class StoredWeights:
    """The weights of a model in memory.

    Attributes:
        parts: those that there are, in the order of `PARTS`.
        quantization: of the checkpoint, or what it becomes when it is loaded.
        experts, top_k: experts a layer, and how many work on a token; 0 without.
        tied: the output layer is the embedding.
        counted: from the tensors of the checkpoint; else computed from the shape.
    """

    parts: tuple[StoredPart, ...]
    quantization: str
    experts: int = 0
    top_k: int = 0
    tied: bool = False
    counted: bool = False

    def part(self, name: Part) -> StoredPart:
        """A part; an empty one when the model has none of that name."""
        return next((part for part in self.parts if part.name == name), StoredPart(name, 0, 0))

    @property
    def experts_fraction(self) -> float:
        """The share of the weights that is experts, 0 to 1."""
        whole = self.memory_bytes()
        return self.part("experts").bytes / whole if whole else 0.0

    def memory_bytes(self, tp: int = 1, *, drafter: bool = False) -> float:
        """Bytes that one rank holds.

        Args:
            drafter: the MTP layers are loaded too.
        """
        return sum(
            part.whole + (part.bytes - part.whole) / tp
            for part in self.parts
            if drafter or part.name != "drafter"
        )

    def step_bytes(self, tokens: float = 1, tp: int = 1) -> float:
        """Bytes of weights that one rank reads in a step over `tokens` tokens.

        The embedding is looked up, not read, but as output layer it is read whole; of the experts
        those are read that the tokens choose.
        """
        read = [self.part(name) for name in EVERY_TOKEN]
        read.append(self.part("embedding" if self.tied else "output"))
        found = sum(part.whole + (part.bytes - part.whole) / tp for part in read)
        experts = self.part("experts")
        found += experts.bytes * self.experts_share(tokens) / tp
        return found

    def quantized_online(self) -> StoredWeights:
        """The same in FP8, made of BF16 while it is loaded: matrices of layers and experts are,
        embedding, output layer, routers, norms and towers stay as they are (vLLM:
        `quantization/fp8.py`, `Fp8OnlineLinearMethod` and `Fp8OnlineMoEMethod`).
        """
        parts = tuple(
            replace(part, bytes=part.bytes / 2, whole=part.whole / 2, format="fp8")
            if part.name in MATRICES and part.format == "bf16"
            else part
            for part in self.parts
        )
        return replace(self, parts=parts, quantization="fp8-online")

    def experts_share(self, tokens: float) -> float:
        """The share of a layer's experts that some tokens need together.

        Each token picks `top_k` of all independently, so an expert is spared with probability
        (1 - k/E)^tokens. All, where their number is not known.
        """
        if not 0 < self.top_k <= self.experts:
            return 1.0
        return 1.0 - math.pow(1.0 - self.top_k / self.experts, tokens)
