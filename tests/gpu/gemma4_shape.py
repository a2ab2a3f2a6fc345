"""A Gemma 4 of its true shape without weights: what `--load-format dummy` needs of a model.

The shapes are those of the runs on H200s (`tests/data/gpu/runs.json`). The tokenizer has a word for
each row of the embedding, so that whatever weights that mean nothing say is a text, and is told
from an engine that says nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parents[1] / "data/gpu/runs.json"

WORD = "word"
"""What each answer has in it."""

NOT_OF_SIZE = {
    "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "final_logit_softcapping": 30.0,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
"""Keys of config.json that no plan reads and the engine does."""

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}" + f"{WORD}7"


def make_model(folder: Path, shape: str = "gemma4-26b", **changes: Any) -> Path:
    """Write config.json and a tokenizer; returns the folder.

    Args:
        shape: its name in the runs.
        changes: of config.json.
    """
    folder.mkdir(parents=True)
    known: Mapping[str, Any] = json.loads(RUNS.read_text())["models"][shape]
    config = {**known, **NOT_OF_SIZE, **changes}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10**6}
    files = {
        "config.json": config,
        "tokenizer.json": _tokenizer(config["vocab_size"]),
        "tokenizer_config.json": settings,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def _tokenizer(size: int) -> dict[str, Any]:
    words = {f"{WORD}{number}": number for number in range(size)}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": f"{WORD}3"},
    }  # fmt: skip
