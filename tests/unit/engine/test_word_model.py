"""The embedding model of the lab, by its own arithmetic: the rungs hold, its files are whole."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import word_model

from spark_cluster.config.recipe_schema import kind_of_architectures
from spark_cluster.engine import readiness_checks
from spark_cluster.node.health import cosine, length


def test_the_rungs_hold_on_it() -> None:
    texts = (readiness_checks.SENTENCE, readiness_checks.RELATED, readiness_checks.UNRELATED)
    one, near, far = map(word_model.embedding, texts)
    assert abs(length(one) - 1) < 1e-9
    assert cosine(one, near) > cosine(one, far) + 0.2
    query = word_model.embedding(readiness_checks.QUERY)
    scores = [cosine(query, word_model.embedding(text)) for text in readiness_checks.DOCUMENTS]
    assert scores[readiness_checks.RELEVANT] > scores[1 - readiness_checks.RELEVANT] + 0.2


def test_its_files_are_whole(tmp_path: Path) -> None:
    word_model.write(tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    at = 0
    for tensor in header.values():
        begin, end = tensor["data_offsets"]
        rows, columns = [*tensor["shape"], 1][:2]
        assert (begin, end - begin) == (at, 2 * rows * columns)
        at = end
    assert at == len(data) - 8 - size
    raw = data[8 + size :][: 2 * word_model.HIDDEN]
    found = [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]
    assert found == word_model.vector("[UNK]")
    config = (tmp_path / "config.json").read_text()
    assert readiness_checks.dimensions(config, []) == (word_model.HIDDEN,)
    assert readiness_checks.dense_folders((tmp_path / "modules.json").read_text()) == []
    assert kind_of_architectures(json.loads(config)["architectures"]) is None
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(word_model.WORDS)))
