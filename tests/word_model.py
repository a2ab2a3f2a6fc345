"""A tiny embedding model by hand: the mean of its words' vectors, in the files of a real one.

One layer of a Llama whose attention and feed-forward parts are zero, so that a token's hidden state
is its own vector; sentence-transformers' `modules.json` says that the mean is taken and normalised.
Words that mean the like share three quarters of their vector.
"""

import hashlib
import json
import math
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import cases

HIDDEN, CONTEXT = 128, 512
"""As `data/word_model.json` has them in the configuration."""

SHARED = 96
"""Numbers of a vector that words of one group have in common."""

PARTS: dict[str, Any] = cases(__file__, "data/word_model_parts.json")
"""Its words, those of a group together, and the shapes of the tensors that are zero."""

GROUPS: list[list[str]] = PARTS["groups"]
WORDS = [*PARTS["common"], *(word for group in GROUPS for word in group)]


def vector(word: str) -> list[float]:
    """The vector of a word: numbers 1 and -1, by the hashes of its group and of itself."""
    group = next((group[0] for group in GROUPS if word in group), word)
    return [*_signs(f"group {group}")[:SHARED], *_signs(f"word {word}")[SHARED:]]


def embedding(text: str) -> list[float]:
    """Return a server's vector for a text: the mean of its words, of length 1."""
    tokens = re.findall(r"\w+|[^\w\s]+", text.lower())
    rows = [vector(token if token in WORDS else "[UNK]") for token in tokens]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    length = math.sqrt(sum(number * number for number in mean))
    return [number / length for number in mean]


def write(folder: Path) -> None:
    """Write the model: configuration, tokenizer, weights (BF16)."""
    documents = cases(__file__, "data/word_model.json")
    documents["config.json"]["vocab_size"] = len(WORDS)
    documents["tokenizer.json"]["model"]["vocab"] = {word: at for at, word in enumerate(WORDS)}
    for name, document in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1))
    (folder / "model.safetensors").write_bytes(_weights())


def _signs(text: str) -> list[float]:
    digest = hashlib.sha512(text.encode()).digest()
    return [1.0 if digest[at // 8] >> at % 8 & 1 else -1.0 for at in range(HIDDEN)]


def _weights() -> bytes:
    """The tensors in the form of safetensors: a length, a header in JSON, and the numbers."""
    zeros = {name: (shape, bytes(2 * math.prod(shape))) for name, shape in PARTS["zeros"].items()}
    ones = _bf16([1.0] * HIDDEN)
    norms = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm")
    tensors: dict[str, tuple[Sequence[int], bytes]] = {
        "embed_tokens.weight": (
            (len(WORDS), HIDDEN), b"".join(_bf16(vector(word)) for word in WORDS)),
        **zeros,
        **{f"{name}.weight": ((HIDDEN,), ones) for name in norms},
    }  # fmt: skip
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, data) in tensors.items():
        offsets = [at, at + len(data)]
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": offsets}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values())


def _bf16(numbers: Sequence[float]) -> bytes:
    """The upper halves of single-precision numbers, which hold 1 and -1 exactly."""
    return b"".join(struct.pack("<f", number)[2:] for number in numbers)
