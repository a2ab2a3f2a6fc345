"""First contact: `setup` on fresh nodes; and `up` with a model and an image that are on no node:
each is fetched once, by one of them, and copied to the other over the fabric."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import readme
from commandline import CHECKOUT, WAIT_S, CommandLine, until
from image_registry import ImageRegistry, registry
from lab_recipes import shipped, write

from spark_cluster.cli.setup_flow import STEPS
from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster_lab import Lab, LabNode
from spark_cluster_lab import hub as lab_hub
from spark_cluster_lab.layout import GATEWAY, USER

pytestmark = pytest.mark.lab

NAME, MODEL = "lab-hub", "lab/paris"
FOLDER = f"{CACHE_ROOT}/huggingface/hub/models--lab--paris"
IMAGE = "spark-vllm:lab"
PREPARE = f"""
def main(play):
    image = Image("{IMAGE}", archive="/srv/images/spark-vllm.tar")
    play.apply(play.head, "containers", [image])
"""
OWN_PASSWORD = "correct-horse-4417"
"""One that can be looked for."""
OTHER_CACHE = "/root/.cache/huggingface/hub"


@pytest.fixture
def newcomer(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """The folder of a user without a key, an inventory or known hosts, and two fresh nodes that
    know no key of theirs and whose sudo asks for the password."""
    for node in lab.nodes:
        node.reset()
        node.run(["usermod", "-aG", "sudo", USER])
        node.run(["sh", "-c", f"echo {USER}:{OWN_PASSWORD} | chpasswd"])
        node.run(["rm", "-rf", f"/etc/sudoers.d/{USER}", f"/home/{USER}/.ssh"])
    (tmp_path / "home").mkdir()
    yield tmp_path
    lab.up(2, fresh=True)
    lab.trust()


def test_setup_from_nothing_to_serving_and_again(lab, newcomer):
    addresses = ",".join(node.address for node in lab.nodes)

    def setup(*more: str) -> dict[str, str]:
        command = [*readme.words("spark-cluster setup")]
        environment = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "PW": OWN_PASSWORD,
            "HOME": str(newcomer / "home"), "XDG_STATE_HOME": str(newcomer / "state"),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "spark_cluster", *command, "--yes", "--json", *more],
            check=False, capture_output=True, text=True, cwd=newcomer, env=environment,
            stdin=subprocess.DEVNULL, timeout=WAIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        assert "it serves" in done.stderr
        return {step["name"]: step["state"] for step in json.loads(done.stdout)["steps"]}

    words = ("--nodes", addresses, "--user", USER, "--password-env", "PW", "--passwordless-sudo")
    first = setup(*words, "--recipe", "lab-paris")
    assert first == dict.fromkeys(STEPS, "done")
    again = setup()
    assert {step for step, state in again.items() if state != "nothing to do"} == {"trust", "login"}
    for path in newcomer.rglob("*"):
        assert not path.is_file() or OWN_PASSWORD.encode() not in path.read_bytes(), path
    for node in lab.nodes:
        found = node.run(["grep", "-rl", OWN_PASSWORD, "/etc", "/var/lib", "/home"], check=False)
        assert found.stdout == "", "on no node either"


@pytest.fixture(scope="module")
def hub(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab_hub.LabHub]:
    """A hub on the lab's bridge, with the lab's model."""
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(lab.model_path, root / "lab/paris")
    (root / "lab/paris/notes.txt").write_bytes(random.Random(1).randbytes(20_000_000))
    (root / "lab/paris/pytorch_model.bin").write_bytes(b"the same weights once more")
    with lab_hub.serve(root, GATEWAY) as served:
        yield served


@pytest.fixture(scope="module")
def images(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRegistry]:
    """A registry on the lab's bridge, which the nodes trust."""
    with registry(tmp_path_factory.mktemp("registry")) as served:
        for node in lab.nodes:
            served.trust(node)
        yield served
        for node in lab.nodes:
            served.distrust(node)


@pytest.fixture(scope="module")
def user(
    lab: Lab, user: CommandLine, hub: lab_hub.LabHub, images: ImageRegistry
) -> Iterator[CommandLine]:
    """A user whose recipe names model and image as hub and registry have them; no node has one."""
    made = user.with_inventory(
        "hub", lambda inventory: inventory.update(settings={"models": {"endpoint": hub.url}})
    )
    made("playbook", made.playbook(PREPARE))
    name, digest = images.push(lab.node("spark1"), IMAGE)
    model = {"name": "lab/paris", "served_name": "paris"}
    write(made, shipped(name=NAME, model=model, image={"ref": name, "digest": digest}))
    for node in lab.nodes:
        node.run(["rm", "-rf", FOLDER, OTHER_CACHE])
        node.run(["docker", "image", "rm", IMAGE, name], check=False)
    yield made
    for node in lab.nodes:
        node.run(["docker", "image", "rm", "-f", name], check=False)


def blobs(node: LabNode) -> str:
    """Names and sizes of the model's contents on a node."""
    return node.run(["sh", "-c", f"cd {FOLDER}/blobs && stat -c '%n %s' *"]).stdout


def left_of_copies(node: LabNode) -> list[str]:
    """Return the folders, with their keys, and the processes of copies on a node, no lock."""
    folders = node.run(["ls", "/run/spark-cluster/copies"], check=False).stdout.split()
    processes = node.run(["pgrep", "--full", "copy_work:main"], check=False).stdout.split()
    return [*(name for name in folders if "lock" not in name), *processes]


def test_it_is_fetched_once_copied_and_served_although_the_laptop_was_gone(
    user, hub, images, spark1, spark2
):
    size = sum(path.stat().st_size for path in (hub.root / "lab/paris").iterdir())
    hub.conduct["lab/paris"] = lab_hub.Conduct(bytes_per_s=size // 15)
    first = user.start("up", "--recipe", NAME, "--tp", "2")
    until(
        lambda: hub.sent_of("lab/paris") > size // 10 or first.process.poll() is not None,
        240,
        "the model is being fetched",
    )
    if first.process.poll() is None:
        first.interrupt()
    first.end(status=130)  # of one that ended before, it shows what it printed
    found = user.json("up", "--recipe", NAME, "--tp", "2")
    assert found["answer"] == "Paris"
    assert blobs(spark1) == blobs(spark2)
    assert hub.sent_of("lab/paris") <= 1.02 * size, "what had come was not fetched again"
    mounts = spark2.run(
        ["docker", "inspect", "--format", "{{json .HostConfig.Mounts}}", "spark-ray"]
    ).stdout
    assert f'"Source":"{FOLDER}"' in mounts
    own = spark2.run(["docker", "inspect", "-f", "{{.Image}}", "spark-ray"]).stdout.strip()
    log = (images.folder / "registry.log").read_text()
    for address in ("10.89.0.11", "10.89.0.12"):
        asked = rf"^{re.escape(address)} .*/manifests/sha256:"
        assert re.search(asked, log, re.M), "each node pulls it, by the digest"
        pulled = [blob for place, blob in images.pulls() if place == address]
        layers = [blob for blob in pulled if blob not in own]  # `manifest inspect` asks for that
        assert len(layers) == len(set(layers)), "no layer came twice"
    for node in (spark1, spark2):
        assert not left_of_copies(node)


def test_a_second_run_moves_nothing(user, hub, images):
    asked = len(hub.requests), len(images.pulls())
    found = user.json("up", "--recipe", NAME, "--tp", "2")
    assert found["changed"] == 0
    assert (len(hub.requests), len(images.pulls())) == asked


def test_a_damaged_file_alone_is_fetched_again(user, hub, spark1, spark2):
    sent = hub.sent_of(MODEL)
    largest = f"$(ls -S {FOLDER}/blobs/* | head -1)"
    spark2.run(["sh", "-c", f'printf X | dd of="{largest}" seek=9999 bs=1 conv=notrunc'])
    found = user("models", "verify", MODEL, "--json", status=5).document["models"]
    assert {one["node"]: len(one["damaged"]) for one in found} == {"spark1": 0, "spark2": 1}
    assert "spark1" in user("models", "repair", MODEL).out
    assert user("models", "verify", MODEL).out.count("sound") == 2
    copied = user("models", "copy", MODEL, "--json").document["copies"]
    assert [(one["node"], one["moved"]) for one in copied] == [("spark2", 0)]
    assert hub.sent_of(MODEL) == sent, "what a node has does not come from the hub"


def test_a_model_is_pulled_by_one_node(user, hub, spark1, spark2):
    user("down")
    for node in (spark1, spark2):
        node.run(["rm", "-rf", FOLDER])
    hub.conduct.clear()
    instead = {"ORG/NAME": MODEL}
    user(*readme.words("spark-cluster models pull ORG/NAME", instead), "--endpoint", hub.url)
    names = spark1.run(["ls", "-R", FOLDER]).stdout
    assert "config.json" in names
    assert "pytorch_model.bin" not in names
    assert spark2.run(["ls", FOLDER], check=False).returncode != 0


def test_without_its_registry_the_other_node_sends_the_image(user, images, spark1, spark2):
    user("down")
    recipe = json.loads((user.home / f"recipes/{NAME}.yaml").read_text())
    name = recipe["image"]["ref"]
    spark2.run(["docker", "image", "rm", name])
    images.distrust(spark2)
    ran = user("up", "--recipe", NAME, "--tp", "2")
    assert "is not verified against its registry" in ran.printed
    assert re.search(r"on spark2: .* from spark1 over the fabric", ran.printed)
    asked = ["docker", "image", "inspect", "-f", "{{.Id}}", name]
    assert spark1.run(asked).stdout == spark2.run(asked).stdout
