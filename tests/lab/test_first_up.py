"""`up` with a model that is on no node, and an image that one has: each comes once at most, and is
copied to the other."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CommandLine, until

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.lab import Lab, LabNode
from spark_cluster.lab import hub as lab_hub
from spark_cluster.lab.layout import GATEWAY

pytestmark = pytest.mark.lab

NAME = "lab-hub"
FOLDER = f"{CACHE_ROOT}/huggingface/hub/models--lab--paris"
IMAGE = "spark-vllm:lab"
PREPARE = f"""
def main(play):
    image = Image("{IMAGE}", archive="/srv/images/spark-vllm.tar")
    play.apply(play.head, "containers", [image])
"""
OTHER_CACHE = "/root/.cache/huggingface/hub"


@pytest.fixture(scope="module")
def hub(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab_hub.LabHub]:
    """A hub on the lab's bridge, with the lab's model."""
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(lab.model_path, root / "lab/paris")
    (root / "lab/paris/notes.txt").write_bytes(random.Random(1).randbytes(20_000_000))
    with lab_hub.serve(root, GATEWAY) as served:
        yield served


@pytest.fixture(scope="module")
def user(
    lab: Lab, hub: lab_hub.LabHub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CommandLine]:
    """A user whose recipe names the model by its repository, on nodes without it."""
    lab.trust()
    plain = CommandLine(tmp_path_factory.mktemp("user"))
    made = plain.with_inventory(
        "hub", lambda inventory: inventory.update(settings={"models": {"endpoint": hub.url}})
    )
    shipped = (Path(__file__).parents[2] / "recipes/lab-paris.yaml").read_text()
    head, _, rest = shipped.partition("model:\n")
    model = "model: {name: lab/paris, served_name: paris}\n"
    text = head.replace("lab-paris", NAME) + model + rest.partition("served_name: paris\n")[2]
    text = "\n".join(line for line in text.splitlines() if not line.startswith("  archive:"))
    (made.home / "recipes").mkdir()
    (made.home / f"recipes/{NAME}.yaml").write_text(text)
    for node in lab.nodes:
        node.run(["rm", "-rf", FOLDER, OTHER_CACHE])
    made("down")
    made("playbook", made.playbook(PREPARE))
    lab.node("spark2").run(["docker", "image", "rm", IMAGE], check=False)
    yield made
    made("down")


def blobs(node: LabNode) -> str:
    """Names and sizes of the model's contents on a node."""
    return node.run(["sh", "-c", f"cd {FOLDER}/blobs && stat -c '%n %s' *"]).stdout


def test_without_the_hub_nothing_is_begun(user, hub):
    ran = user("up", "--recipe", NAME, "--offline", status=4)
    assert "no node has lab/paris@main whole" in ran.printed
    assert not hub.requests


def test_it_is_fetched_once_copied_and_served_although_the_laptop_was_gone(
    user, hub, spark1, spark2
):
    size = sum(path.stat().st_size for path in (hub.root / "lab/paris").iterdir())
    hub.conduct["lab/paris"] = lab_hub.Conduct(bytes_per_s=size // 15)
    first = user.start("up", "--recipe", NAME, "--tp", "2")
    until(lambda: hub.sent_of("lab/paris") > size // 10, 240, "the model is being fetched")
    first.interrupt()
    first.end(status=130)
    found = user.json("up", "--recipe", NAME, "--tp", "2")
    assert found["answer"] == "Paris"
    assert blobs(spark1) == blobs(spark2)
    assert hub.sent_of("lab/paris") <= 1.02 * size, "what had come was not fetched again"
    mounts = spark2.run(
        ["docker", "inspect", "--format", "{{json .HostConfig.Mounts}}", "spark-ray"]
    ).stdout
    assert f'"Source":"{FOLDER}"' in mounts
    shown = ["docker", "image", "inspect", "--format", "{{.Id}}", IMAGE]
    assert spark1.run(shown).stdout == spark2.run(shown).stdout
    for node in (spark1, spark2):
        assert not node.run(["sh", "-c", "ls /var/lib/spark-cluster/images"], check=False).stdout


def test_a_second_run_moves_nothing(user, hub):
    asked = len(hub.requests)
    found = user.json("up", "--recipe", NAME, "--tp", "2")
    assert found["changed"] == 0
    assert len(hub.requests) == asked
