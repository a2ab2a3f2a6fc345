"""Container, against a docker that keeps real state in a file."""

import dataclasses

import pytest
from cases import each_case
from resource_samples import image

from spark_cluster.node.values import Secret
from spark_cluster.resources import Container, Image

KEYS = "/var/lib/spark-cluster/secrets/ray"
RAY = Container(
    "ray",
    "vllm:1",
    ("ray", "start", "--block"),
    env={"B": "2", "A": "1"},
    mounts=("/srv/models:/models:ro",),
    ipc="host",
    ulimits={"memlock": -1},
    cap_drop=("ALL",),
    cap_add=("IPC_LOCK",),
    security_opt=("no-new-privileges",),
    stays_s=0.0,
)
SECRET = dataclasses.replace(RAY, secret_files={"/run/keys/api": Secret("hunter2")})


@pytest.fixture
def docker(docker):
    docker.path("/srv/models").mkdir(parents=True)
    with docker.state("docker") as state:
        state["images"] = {"vllm:1": image()}
        state["registry"] = {"vllm:1": image(number="2")}
    return docker


def made(node):
    with node.state("docker") as state:
        return state.get("made", 0)


def running(node, name="ray"):
    with node.state("docker") as state:
        return state["containers"][name]


@each_case(__file__, "other_rights.json")
def test_rights_that_are_not_as_declared_make_it_again(docker, case):
    """Docker is asked: the label with the digest is what anyone may have written."""
    docker.apply(RAY)
    with docker.state("docker") as state:
        state["containers"]["ray"]["HostConfig"] |= case["rights"]
    result = docker.check(RAY)
    assert (result.verdict, made(docker)) == ("change", 1)
    assert case["told"] in result.event["changes"]["rights"][0]
    docker.must_converge(RAY)
    assert made(docker) == 2


def test_check_mode_does_not_guess_when_the_image_will_change(docker):
    docker.apply(RAY)
    pinned = Image("vllm:1", digest="sha256:" + "2" * 64)
    result = docker.check(pinned, RAY)
    assert (result.verdict, result.reason) == ("unknown", "after: Image:vllm:1")


class TestSecrets:
    def test_they_are_in_a_private_file_and_nowhere_else(self, docker):
        result = docker.apply(SECRET)
        assert result.verdict == "change"
        (file,) = docker.path(KEYS).iterdir()
        assert file.read_text() == "hunter2"
        assert file.stat().st_mode & 0o777 == 0o600
        for folder in (docker.path(KEYS), docker.path(KEYS).parent):
            assert folder.stat().st_mode & 0o777 == 0o700
        mount = running(docker)["Mounts"][-1]
        assert (mount["target"], mount["readonly"]) == ("/run/keys/api", "")
        assert docker.path(mount["source"]) == file
        for place in (result.event, docker.calls("docker"), running(docker), SECRET.argv):
            assert "hunter2" not in str(place)
        journal = docker.path("/var/lib/spark-cluster/journal")
        assert not [f for f in journal.rglob("*") if f.is_file() and b"hunter2" in f.read_bytes()]
        assert docker.apply(SECRET).verdict == "ok"
