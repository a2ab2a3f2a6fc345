"""A model from the hub, by the real `hf` in a real container; the lab's hub sends a file a byte at
a time until it is told to go on."""

import json
from collections.abc import Iterator

import pytest
from commandline import CommandLine, until
from factories import put
from on_nodes import containers

from spark_cluster_lab import Lab, LabNode
from spark_cluster_lab.hub import Conduct, LabHub, serve
from spark_cluster_lab.layout import GATEWAY

pytestmark = pytest.mark.lab

TOKEN = "hf_LabTokenThatNobodyMayRead"
PLAY = """
def main(play):
    images = play.role("images", ref="spark-vllm:lab", archive="/srv/images/spark-vllm.tar")
    models = play.role(
        "models", name="org/m", path="/srv/models/hub", image="spark-vllm:lab",
        mounts=("/opt/vllm:/opt/vllm:ro",), endpoint="{hub}",
        download_timeout_s={limit},
    )
    play.apply(play.head, "containers", images, models)
"""
IN_SIGHT = """
token=/run/lab-hub-token
cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | grep -aoFf $token && exit 1
docker ps -aq | xargs -r docker inspect | grep -Ff $token && exit 1
grep -rlFf $token /var/lib/docker/containers /var/lib/spark-cluster /etc /srv && exit 1
journalctl --no-pager | grep -Ff $token && exit 1
exit 0
"""


@pytest.fixture(scope="module")
def hub(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHub]:
    root = tmp_path_factory.mktemp("hub")
    put(root / "org/m/config.json", '{"model_type": "llama"}' + " " * 20_000)
    with serve(root, GATEWAY) as served:
        yield served


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A user with a hub token, and a fresh first node."""
    node = lab.node("spark1")
    node.reset()
    node.run(["sh", "-c", f"echo {TOKEN} > /run/lab-hub-token"])
    yield CommandLine(tmp_path_factory.mktemp("user")).with_environment(HF_TOKEN=TOKEN)
    node.reset()


@pytest.fixture
def slow(hub: LabHub) -> Conduct:
    """The hub as it holds the file back, and has been asked for nothing."""
    hub.requests.clear()
    hub.conduct["org/m"] = Conduct(bytes_per_s=20)
    return hub.conduct["org/m"]


def play(user: CommandLine, hub: LabHub, limit: float = 600) -> str:
    return user.playbook(PLAY.format(hub=hub.url, limit=limit))


def asked(hub: LabHub) -> list[str]:
    """The requests for the file itself; it is not given at once."""
    return [path for verb, path in hub.requests if verb == "GET" and "/resolve/" in path]


def downloads(node: LabNode) -> list[str]:
    """Containers that download, running or not."""
    return [name for name in containers(node, all=True) if name.startswith("spark-download-")]


def test_a_download_that_takes_longer_than_the_laptop_stays(user, hub, slow, spark1):
    first = user.start("playbook", play(user, hub))
    until(lambda: asked(hub), 180, "hf asks for the file")
    assert set(asked(hub)) <= set(hub.with_token)  # it does have the token
    found = spark1.run(["sh", "-c", IN_SIGHT], check=False)
    assert found.returncode == 0, found.stdout  # and nobody else
    (name,) = downloads(spark1)
    mounts = json.loads(spark1.run(["docker", "inspect", name]).stdout)[0]["HostConfig"]["Mounts"]
    path = next(m["Source"] for m in mounts if m["Target"] == "/run/secrets/hub-token")
    assert spark1.run(["stat", "-c", "%a %u", path]).stdout.split() == ["600", "0"]
    assert spark1.run(["stat", "-f", "-c", "%T", path]).stdout.strip() == "tmpfs"

    first.interrupt()
    first.end(status=130)
    assert downloads(spark1) == [name]  # it goes on
    second = user.start("playbook", play(user, hub))
    until(lambda: "still running" in user.record.read_text(), 60, "the next run finds it")
    slow.bytes_per_s = 1e9
    second.end(status=0, timeout=120)
    note = spark1.run(["cat", "/srv/models/hub/.complete"]).stdout
    assert note.startswith("org/m@main by "), note  # and by whose image
    assert "llama" in spark1.run(["cat", "/srv/models/hub/config.json"]).stdout
    assert downloads(spark1) == []
    assert spark1.run(["sh", "-c", "ls -A /run/spark-cluster-downloads"]).stdout == ""
    assert len(asked(hub)) == 1, "the second run waited for the first one's"
    assert user.json("playbook", play(user, hub))["changed"] == 0


@pytest.mark.soak
def test_at_its_limit_a_download_ends_with_its_container(user, hub, slow, spark1):
    spark1.run(["rm", "-rf", "/srv/models/hub"])
    ran = user("playbook", play(user, hub, limit=12), status=1)
    assert "not done after 12 s" in ran.printed
    assert asked(hub)
    until(lambda: downloads(spark1) == [], 60, "its container is gone")
    assert spark1.run(["sh", "-c", "ls -A /run/spark-cluster-downloads"]).stdout == ""
    assert not (spark1.root / "srv/models/hub/.complete").exists()
