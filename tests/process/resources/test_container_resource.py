"""Container, against a docker that keeps real state in a file."""

import dataclasses

import pytest
from resource_samples import image

from spark_cluster.node.engine_caches import short
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
CACHED = dataclasses.replace(RAY, caches="/srv/caches")
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


def folder_of_caches(node):
    """The folder of the caches that the container has been given."""
    return next(
        mount["source"] for mount in running(node)["Mounts"] if mount["target"] == "/srv/caches"
    )


def test_systemd_is_told_of_the_gpu(docker):
    """P04: a reload of systemd leaves what it knows; a container that runs already is left alone.

    Rules are no devices: a device that is not there yet after a boot keeps a container from it.
    """
    plain, gpu = (dataclasses.replace(RAY, gpus=gpus) for gpus in (None, "all"))
    docker.path("/dev").mkdir()
    docker.path("/dev/nvidia-caps").mkdir()
    assert docker.apply(gpu).verdict == "change"
    assert running(docker)["HostConfig"]["DeviceCgroupRules"] is None, "there is no device"
    docker.path("/dev/nvidiactl").symlink_to("/dev/null")
    docker.path("/dev/nvidia0").symlink_to("/dev/zero")
    assert docker.apply(gpu).verdict == "ok"
    assert docker.apply(plain).verdict == "change"
    assert running(docker)["HostConfig"]["DeviceCgroupRules"] is None
    assert docker.apply(gpu).verdict == "change"
    rules = running(docker)["HostConfig"]["DeviceCgroupRules"]
    assert rules == ["c 1:5 rwm", "c 1:3 rwm"]
    docker.path("/dev/nvidia0").unlink()
    assert docker.apply(gpu).verdict == "ok"


def test_each_image_has_caches_of_its_own(docker):
    """What another image's programs left is not seen; the same image finds its own again."""
    docker.path("/srv/caches").mkdir()
    docker.must_converge(CACHED)
    first = folder_of_caches(docker)
    assert first == f"/srv/caches/images/{short(image()['Id'])}"
    assert docker.path(first).is_dir()
    with docker.state("docker") as state:
        state["images"]["vllm:1"] = image(number="2")
    assert docker.apply(CACHED).verdict == "change", "the reference means another image now"
    second = folder_of_caches(docker)
    assert second == f"/srv/caches/images/{short(image(number='2')['Id'])}"
    assert second != first
    with docker.state("docker") as state:
        state["images"]["vllm:1"] = image()
    docker.apply(CACHED)
    assert folder_of_caches(docker) == first


def test_a_link_that_a_container_left_for_its_images_caches_is_not_followed(docker):
    outside = docker.path("/outside")
    outside.mkdir()
    docker.path("/srv/caches").mkdir()
    docker.path("/srv/caches/images").symlink_to(outside)
    result = docker.apply(CACHED)
    assert result.verdict == "failed"
    assert "images" in result.error
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("rights", "told"),
    [
        ({"Privileged": True}, "privileged"),
        ({"CapDrop": None}, "no cap_drop"),
        ({"CapAdd": ["CAP_IPC_LOCK", "CAP_SYS_ADMIN"]}, "cap_add IPC_LOCK SYS_ADMIN"),
        ({"SecurityOpt": []}, "no security_opt"),
        ({"PidMode": "host"}, "pid host"),
    ],
)
def test_rights_that_are_not_as_declared_make_it_again(docker, rights, told):
    """Docker is asked: the label with the digest is what anyone may have written."""
    docker.apply(RAY)
    with docker.state("docker") as state:
        state["containers"]["ray"]["HostConfig"] |= rights
    result = docker.check(RAY)
    assert (result.verdict, made(docker)) == ("change", 1)
    assert told in result.event["changes"]["rights"][0]
    docker.must_converge(RAY)
    assert made(docker) == 2


def test_check_mode_does_not_guess_when_the_image_will_change(docker):
    docker.apply(RAY)
    pinned = Image("vllm:1", digest="sha256:" + "2" * 64)
    result = docker.check(pinned, RAY)
    assert (result.verdict, result.reason) == ("unknown", "after: Image:vllm:1")


def test_absent_without_docker(node):
    assert node.apply(Container("ray", state="absent")).verdict == "ok"


def test_absent_leaves_the_secrets_of_a_unit_of_its_name(docker):
    """The unit may still run and read them; its own resource takes them with it."""
    secret = docker.path(KEYS) / "token"
    secret.parent.mkdir(parents=True)
    secret.write_text("hunter2")
    unit = docker.path("/etc/systemd/system/ray.service")
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text("[Service]\n")
    gone = Container("ray", state="absent")
    assert docker.apply(gone).verdict == "ok"
    docker.apply(RAY)
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("hunter2")
    assert docker.apply(gone).verdict == "change"
    assert secret.read_text() == "hunter2"
    unit.unlink()
    assert docker.apply(gone).verdict == "change"
    assert not secret.parent.exists()


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

    def test_other_modes_and_files_are_repaired(self, docker):
        docker.apply(SECRET)
        docker.put(f"{KEYS}/old", "x")
        assert docker.apply(SECRET).verdict == "change"
        assert len(list(docker.path(KEYS).iterdir())) == 1
