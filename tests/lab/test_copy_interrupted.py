"""A copy between nodes whose command is interrupted: the nodes go on, and nothing moves twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commandline import CommandLine, until

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.lab import Lab, LabNode

pytestmark = pytest.mark.lab

HUB = f"{CACHE_ROOT}/huggingface/hub"
FOLDER = f"{HUB}/models--org--cut"
COMMIT = "d" * 40
FILES, MB = 20, 16
SIZE = FILES * MB * 1_000_000
MAKE = f"""
mkdir -p {FOLDER}/blobs {FOLDER}/refs {FOLDER}/snapshots/{COMMIT} && cd {FOLDER}/blobs
for number in $(seq {FILES}); do
    head -c {MB}000000 /dev/urandom > new
    name=$(sha256sum new | cut -d' ' -f1)
    mv new $name
    ln -s ../../blobs/$name {FOLDER}/snapshots/{COMMIT}/model-$number.safetensors
done
printf {COMMIT} > {FOLDER}/refs/main
"""


@pytest.fixture
def user(
    lab: Lab, spark1: LabNode, spark2: LabNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CommandLine]:
    lab.trust()
    for node in (spark1, spark2):
        node.run(["rm", "-rf", FOLDER])
    spark1.run(["sh", "-ec", MAKE])
    yield CommandLine(tmp_path_factory.mktemp("user"))
    for node in (spark1, spark2):
        node.run(["rm", "-rf", FOLDER])


def arrived(node: LabNode) -> int:
    """Bytes of the model's blobs, half files included."""
    return int(node.run(["sh", "-c", f"cat {FOLDER}/blobs/* 2>/dev/null | wc -c"]).stdout)


def test_a_copy_goes_on_when_its_command_is_interrupted(user, spark2):
    first = user.start("models", "copy", "org/cut", "--streams", "1")
    until(lambda: arrived(spark2) > 0, what="the first bytes")
    first.interrupt()
    first.end(status=None)
    (copied,) = user.json("models", "copy", "org/cut")["copies"]
    # The second command has joined the copy, or found it done.
    assert copied["moved"] in (0, SIZE)
    assert copied["moved"] + copied["kept"] == SIZE
    assert arrived(spark2) == SIZE
    assert user("models", "verify", "org/cut").out.count("sound") == 2


def test_a_copy_whose_receiver_is_killed_goes_on_inside_the_file(user, spark2):
    first = user.start("models", "copy", "org/cut", "--streams", "1")
    until(lambda: arrived(spark2) > SIZE // 4, what="a quarter of the model", every=0.05)
    spark2.run(["sh", "-c", "systemctl kill --signal=KILL 'spark-cluster-*copy*' || true"])
    first.interrupt()
    first.process.communicate(timeout=60)
    before = arrived(spark2)
    (copied,) = user.json("models", "copy", "org/cut")["copies"]
    assert before >= SIZE // 4
    assert copied["moved"] <= SIZE - before
    assert arrived(spark2) == SIZE
    assert user("models", "verify", "org/cut").out.count("sound") == 2
