"""`tune`: a stand-in for vLLM's tuner, which needs a GPU; its container, what is kept, refused,
interrupted and handed to the engine are real, and so is the Ray that it starts without a network.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CommandLine, until

from spark_cluster_lab import LabNode

pytestmark = pytest.mark.lab

TUNER = str(Path(__file__).parents[1] / "tuner_stand_in.py")
FILE = "E=8,N=64,device_name=NVIDIA_GB10.json"
CONFIG = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2,
    "hidden_size": 64, "vocab_size": 100, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 128, "max_position_embeddings": 512,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
}  # fmt: skip
ALLOWED = ("--tp", "1", "--allow-file", "experts")
TUNE = ("tune", "experts", *ALLOWED, "--tuner", TUNER)


@pytest.fixture(scope="module")
def user(user: CommandLine) -> Iterator[CommandLine]:
    """A user with a recipe whose model has experts, under the name of the lab's own model: what is
    tuned for it is found when that is served."""
    model = user.home / "experts"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    ours = ("/var/cache/spark-cluster/lab/prepared/models/paris", str(model))
    user.recipe("experts", ours, ("path: /srv/models/paris", "path: /srv/models/experts"))
    yield user
    user("down")
    user("caches", "prune", "--kind", "tuned", "--older-than", "0", "--apply")


def tuner(node: LabNode) -> str:
    """The state of the tuner's container; empty without one."""
    query = "sudo docker ps --all --filter name=spark-tune --format '{{.State}}'"
    return node.ssh(query).stdout.strip()


def test_tuned_once_and_listed(user, spark1):
    document = user.json(*TUNE, "--batch-sizes", "1,2")
    tuned = document["tuned"]
    assert (tuned["file"], tuned["sizes"], tuned["gpu"]) == (FILE, [1, 2], "NVIDIA GB10")
    assert tuner(spark1) == ""
    again = user.json(*TUNE, "--batch-sizes", "1,2")
    assert (again["changed"], again["tuned"]["changed"]) == (0, False)
    parts = user.json("caches", "list")["parts"]
    assert [part["node"] for part in parts if part["kind"] == "tuned"] == ["spark1"]


def test_the_laptop_goes_and_the_tuner_stays_until_down(user, spark1):
    started = user.start(*TUNE, "--batch-sizes", "1,4,7")
    until(lambda: "batch size 7" in started_units(spark1))
    until(lambda: tuner(spark1) == "running")
    started.interrupt()
    started.end(status=None)
    assert tuner(spark1) == "running", "it outlives the laptop"
    other = user(*TUNE, "--batch-sizes", "16", status=1)
    assert "another tuning runs on this node" in other.printed
    again = user.start(*TUNE, "--batch-sizes", "1,4,7")
    until(lambda: "is still running there since" in user.record.read_text())
    again.interrupt()
    again.end(status=None)
    assert tuner(spark1) == "running", "the same command has waited for it"
    ran = user("up", "--recipe", "lab-paris", "--tp", "1", "--check")
    assert ran.status == 0
    user("down")
    assert tuner(spark1) == ""
    assert user.json(*TUNE, "--batch-sizes", "4")["tuned"]["sizes"] == [1, 2, 4]


def started_units(node: LabNode) -> str:
    """What the units of long work have printed."""
    return node.ssh("sudo sh -c 'cat /var/lib/spark-cluster/units/*/out'", check=False).stdout


def test_up_hands_it_to_the_engine(user, spark1):
    document = user.json("up", "--recipe", "lab-paris", "--tp", "1")
    assert "Paris" in document["answer"]
    env = spark1.ssh("sudo docker inspect -f '{{json .Config.Env}}' spark-vllm").stdout
    (folder,) = [v for v in json.loads(env) if v.startswith("VLLM_TUNED_CONFIG_FOLDER=")]
    seen = spark1.ssh(f"sudo docker exec spark-vllm cat '{folder.partition('=')[2]}/{FILE}'")
    assert json.loads(seen.stdout)["4"]["BLOCK_SIZE_N"] == 64, "the engine sees the file"
    assert user.json("status")["tuned"] == [FILE]
    assert user.json("up", "--recipe", "lab-paris", "--tp", "1")["changed"] == 0
