"""Resources on a real node: real apt, accounts, Docker."""

import base64
import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from own_sshd import way_to

from spark_cluster.node.values import Secret
from spark_cluster.resources import (
    AuthorizedKey,
    Container,
    Group,
    Image,
    Package,
    Resource,
    Service,
    User,
)
from spark_cluster.resources.base import to_wire
from spark_cluster.runner.dialer import SshConnection
from spark_cluster.runner.session import Session
from spark_cluster_lab import LabNode
from spark_cluster_lab.layout import USER

pytestmark = pytest.mark.lab

Events = list[dict[str, Any]]
IMAGE = Image("spark-vllm:lab", archive="/srv/images/spark-vllm.tar")
LOOP = ("-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done")


@pytest.fixture(scope="module")
def agent(lab) -> Iterator[Session]:
    node: LabNode = lab.node("spark1")
    target = way_to(
        node.address, user=USER, identity_file=lab.layout.key, known_hosts=node.layout.known_hosts
    )
    connection = SshConnection(target)
    connection.open()
    session = connection.session("resources-test")
    yield session
    session.close()
    connection.close()


def events(agent: Session, *resources: Resource, check: bool = False) -> Events:
    told: Events = []
    agent.request(
        "apply",
        on_event=told.append,
        resources=[to_wire(r) for r in resources],
        check=check,
        diff=True,
        run="resources-test" + ("-check" if check else ""),
    )
    return [e for e in told if e["event"] == "result"]


def verdicts(agent: Session, *resources: Resource, check: bool = False) -> list[str]:
    return [e["verdict"] for e in events(agent, *resources, check=check)]


def error(agent: Session, *resources: Resource) -> str:
    last = events(agent, *resources)[-1]
    assert last["verdict"] == "failed", last
    return f"{last['error']} | {last['hint']}"


def comes_and_stays(agent: Session, *resources: Resource) -> None:
    """The last one is to be changed, is changed, and then is right."""
    assert verdicts(agent, *resources, check=True)[-1] == "change"
    assert verdicts(agent, *resources)[-1] == "change"
    assert set(verdicts(agent, *resources)) == {"ok"}
    assert set(verdicts(agent, *resources, check=True)) == {"ok"}


def output(agent: Session, *argv: str) -> str:
    return agent.run(list(argv)).stdout.strip()


# --- apt --------------------------------------------------------------------------------------


def test_package(agent):
    verdicts(agent, Package("tree", state="absent"))
    comes_and_stays(agent, Package("tree"))
    comes_and_stays(agent, Package("tree", state="absent"))


def test_package_that_does_not_exist(agent):
    said = error(agent, Package("treee"))
    assert "apt knows no package treee" in said
    assert "did you mean tree" in said


def test_package_that_others_need(agent):
    assert "would remove" in error(agent, Package("python3-minimal", state="absent"))


def test_interrupted_dpkg(agent):
    verdicts(agent, Package("tree", state="absent"))
    output(agent, "touch", "/var/lib/dpkg/updates/0001")
    assert verdicts(agent, Package("tree")) == ["change"]


# --- accounts ---------------------------------------------------------------------------------


@pytest.fixture
def no_alice(agent: Session) -> Iterator[None]:
    gone = (User("alice", state="absent"), Group("crew", state="absent"))
    verdicts(agent, *gone)
    output(agent, "rm", "-rf", "/home/alice")
    yield
    verdicts(agent, *gone)
    output(agent, "rm", "-rf", "/home/alice")


def test_group_user_and_key(agent, no_alice):
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"k" * 32
    key = AuthorizedKey("alice", f"ssh-ed25519 {base64.b64encode(blob).decode()} me@laptop")
    crew, alice = Group("crew"), User("alice", groups=("crew",), shell="/bin/bash")
    checked = events(agent, crew, alice, key, check=True)
    assert [e["verdict"] for e in checked] == ["change", "unknown", "unknown"]
    assert checked[2]["reason"] == "after: User:alice"
    assert verdicts(agent, crew, alice, key) == ["change"] * 3
    assert verdicts(agent, crew, alice, key) == ["ok"] * 3
    assert "crew" in output(agent, "id", "-nG", "alice")
    shown = output(agent, "stat", "-c", "%a %U", "/home/alice/.ssh/authorized_keys")
    assert shown == "600 alice"
    output(agent, "rm", "-r", "/home/alice/.ssh")
    output(agent, "ln", "-s", "/etc", "/home/alice/.ssh")
    assert "is a link" in error(agent, key)
    assert output(agent, "ls", "/etc/authorized_keys") == ""


# --- Docker -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def docker(agent: Session) -> Iterator[Session]:
    """Docker and an image, however far the node has come."""
    package = Package("docker.io", also=("docker-cli",), makes=("command:docker",))
    assert "failed" not in verdicts(agent, package, Service("docker", enabled=True), IMAGE)
    yield agent
    verdicts(agent, Container("restest", state="absent"))


def test_container(docker):
    output(docker, "mkdir", "-p", "/srv/models")
    first = Container(
        "restest",
        IMAGE.ref,
        LOOP,
        entrypoint="/bin/sh",
        env={"A": "1"},
        ipc="host",
        gpus="all",
        cap_add=("IPC_LOCK",),
        ulimits={"memlock": -1},
        devices=("/dev/null",),
        mounts=("/srv/models:/models:ro",),
        secret_files={"/run/keys/api": Secret("hunter2-of-the-lab")},
        stop_timeout_s=3,
    )
    verdicts(docker, Container("restest", state="absent"))
    comes_and_stays(docker, first)
    seen = output(docker, "docker", "exec", "restest", "sha256sum", "/run/keys/api")
    assert seen.split()[0] == hashlib.sha256(b"hunter2-of-the-lab").hexdigest()
    count = "docker inspect restest | grep -c hunter2-of"  # counted there: what comes is masked
    assert output(docker, "sh", "-c", count) == "0"
    assert output(docker, "grep", "-rl", "hunter2-of", "/var/lib/spark-cluster/journal") == ""
    comes_and_stays(docker, dataclasses.replace(first, env={"A": "2"}))
    comes_and_stays(docker, dataclasses.replace(first, secret_files={"/k": Secret("other")}))
    output(docker, "docker", "kill", "restest")
    comes_and_stays(docker, first)
    comes_and_stays(docker, Container("restest", state="absent"))


def test_container_that_ends_at_once_or_cannot_start(docker):
    base = Container("restest", IMAGE.ref, ("-c", "echo oh dear; exit 7"), entrypoint="/bin/sh")
    said = error(docker, base)
    assert "ended right after its start" in said
    assert "oh dear" in said
    assert output(docker, "docker", "inspect", "-f", "{{.State.Status}}", "restest") == "exited"
    assert "/srv/none does not exist" in error(
        docker, dataclasses.replace(base, mounts=("/srv/none:/x",))
    )
    assert output(docker, "ls", "-d", "/srv/none") == ""
