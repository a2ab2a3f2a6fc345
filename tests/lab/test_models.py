"""A model from a hub to one node, from there to the other one, and again what was damaged."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
import readme
from commandline import CommandLine

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster_lab import Lab, LabNode
from spark_cluster_lab import hub as lab_hub
from spark_cluster_lab.layout import GATEWAY

pytestmark = pytest.mark.lab

FOLDER = f"{CACHE_ROOT}/huggingface/hub/models--org--tiny"
SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


@pytest.fixture(scope="module")
def hub(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab_hub.LabHub]:
    """A hub on the lab's bridge, with a model of 8 MB."""
    root = tmp_path_factory.mktemp("hub")
    model = root / "org/tiny"
    model.mkdir(parents=True)
    for number, name in enumerate(SHARDS):
        (model / name).write_bytes(random.Random(number).randbytes(4_000_000))
    (model / "config.json").write_text('{"model_type": "llama"}')
    index = {"weight_map": {name: name for name in SHARDS}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (model / "pytorch_model.bin").write_bytes(b"the same weights once more")
    with lab_hub.serve(root, GATEWAY) as served:
        yield served


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    lab.trust()
    return CommandLine(tmp_path_factory.mktemp("user"))


def size(node: LabNode) -> int:
    """Bytes of the model's blobs on a node."""
    done = node.run(["sh", "-c", f"cat {FOLDER}/blobs/* 2>/dev/null | wc -c"])
    return int(done.stdout)


def test_a_model_is_fetched_once_and_copied(user, hub, spark1, spark2):
    for node in (spark1, spark2):
        node.run(["rm", "-rf", FOLDER])
    instead = {"ORG/NAME": "org/tiny"}
    user(*readme.words("spark-cluster models pull ORG/NAME", instead), "--endpoint", hub.url)
    fetched = len(hub.requests)
    assert size(spark1) > 8_000_000
    assert not size(spark2)
    copied = user("models", "copy", "org/tiny", "--json").document["copies"]
    assert [(one["node"], one["sender"]) for one in copied] == [("spark2", "spark1")]
    assert copied[0]["moved"] == size(spark1) == size(spark2)
    assert len(hub.requests) == fetched, "the hub is not asked for what a node has"
    assert "pytorch_model.bin" not in spark1.run(["ls", "-R", FOLDER]).stdout
    again = user("models", "copy", "org/tiny", "--json").document["copies"]
    assert [one["moved"] for one in again] == [0]


def test_a_damaged_file_alone_is_fetched_again(user, spark1, spark2):
    largest = f"$(ls -S {FOLDER}/blobs/* | head -1)"
    flip = f'printf X | dd of="{largest}" seek=9999 bs=1 conv=notrunc'
    spark2.run(["sh", "-c", flip])
    found = user("models", "verify", "org/tiny", "--json", status=5).document["models"]
    assert {one["node"]: len(one["damaged"]) for one in found} == {"spark1": 0, "spark2": 1}
    repaired = user("models", "repair", "org/tiny")
    assert "spark1" in repaired.out
    assert user("models", "verify", "org/tiny").out.count("sound") == 2
