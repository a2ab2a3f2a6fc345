"""A copy between nodes whose command is interrupted: the nodes go on, and nothing moves twice."""

from collections.abc import Iterator

import pytest
from commandline import CommandLine, Started, until

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.node import paths
from spark_cluster_lab import Lab, LabNode

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
REMOVE = f"rm -rf {FOLDER} {paths.MODELS}/manifests/models--org--cut@*"
"""What a node knows of the commit goes, too: each test makes other content of the same commit."""


@pytest.fixture
def user(
    lab: Lab, spark1: LabNode, spark2: LabNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CommandLine]:
    lab.trust()
    for node in (spark1, spark2):
        node.run(["sh", "-c", REMOVE])
    spark1.run(["sh", "-ec", MAKE])
    yield CommandLine(tmp_path_factory.mktemp("user"))
    for node in (spark1, spark2):
        node.run(["sh", "-c", REMOVE])


def arrived(node: LabNode) -> int:
    """Bytes of the model's blobs, half files included."""
    return int(node.run(["sh", "-c", f"cat {FOLDER}/blobs/* 2>/dev/null | wc -c"]).stdout)


def wait_for(node: LabNode, size: int, command: Started) -> None:
    """Wait until so many bytes have arrived, or say why the command has ended before."""

    def come() -> bool:
        if arrived(node) >= size:
            return True
        assert command.process.poll() is None, command.process.communicate()
        return False

    until(come, what=f"{size} bytes of the model", every=0.05)


def test_a_copy_goes_on_when_its_command_is_interrupted(user, spark2):
    first = user.start("models", "copy", "org/cut", "--streams", "1")
    wait_for(spark2, 1, first)
    first.interrupt()
    first.end(status=None)
    (copied,) = user.json("models", "copy", "org/cut")["copies"]
    # The second command has joined the copy, or found it done.
    assert copied["moved"] in (0, SIZE)
    assert copied["moved"] + copied["kept"] == SIZE
    assert arrived(spark2) == SIZE
    assert user("models", "verify", "org/cut").out.count("sound") == 2


@pytest.mark.soak
def test_a_copy_whose_only_source_loses_power_says_so_and_then_goes_on(user, spark1, spark2):
    first = user.start("models", "copy", "org/cut", "--streams", "1")
    wait_for(spark2, SIZE // 4, first)
    spark1.poweroff(orderly=False)
    failed = first.end(status=None)
    assert "nothing comes from spark1 any more" in failed.printed
    assert "spark1: the connection was lost" in failed.printed
    spark1.boot()
    before = arrived(spark2)
    assert before >= SIZE // 4
    (copied,) = user.json("models", "copy", "org/cut")["copies"]
    assert copied["moved"] <= SIZE - before
    assert arrived(spark2) == SIZE
    assert user("models", "verify", "org/cut").out.count("sound") == 2
