"""Faults around a server: each is found within seconds, in words that say what to do.

The words and the limits are in docs/faults.toml. The steps stand in one order: those that end
before a server runs, then those on one server over both nodes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from commandline import WAIT_S, CommandLine, Started, until
from small_disk import small_disk
from waiting import HANG_S

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster_lab import LabNode
from spark_cluster_lab.breakage import BREAKAGES

pytestmark = pytest.mark.lab

VLLM_MOUNT = "{source: /opt/vllm, target: /opt/vllm, read_only: true}"
FAULTY = "/srv/faulty"
NO_RAY = f"{{source: {FAULTY}/vllm, target: /opt/vllm, read_only: true}}"
OWN_VERSION = """\
  - {source: /srv/faulty/_version.py, target: PLACE, read_only: true}
"""
UP = ("up", "--tp", "2")


def recipe(user: CommandLine, name: str, old: str, new: str) -> tuple[str, ...]:
    """Write a recipe of the user's own; return the options that serve it on both nodes."""
    user.recipe(name, (old, new))
    return (*UP, "--recipe", name)


@pytest.fixture(scope="module")
def user(user: CommandLine) -> CommandLine:
    user("provision", timeout=WAIT_S)
    return user


@contextmanager
def listening(node: LabNode, address: str, port: int) -> Iterator[None]:
    """Another program of the node that has a port."""
    serve = ["python3", "-m", "http.server", str(port), "--bind", address]
    node.run(["systemd-run", "--quiet", "--collect", "--unit=lab-other", *serve])
    until(lambda: f":{port} " in node.run(["ss", "-Hltn"]).stdout, what="it listens")
    try:
        yield
    finally:
        node.run(["systemctl", "stop", "lab-other"])


# --- before anything serves ---------------------------------------------------------------------


def test_wrong_interface_in_the_inventory(user, detected):
    def change(document: dict[str, Any]) -> None:
        named = {"enp9s9np9": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.178.11/24"}
        twins = [{"name": name, "address": address} for name, address in named.items()]
        document["nodes"]["spark1"]["fabric"] = {"interfaces": twins}

    other = user.with_inventory("wrong-interface", change)
    with detected("wrong-interface") as fault:
        fault.said_in(other(*UP, status=None).printed)


def test_wrong_interface_in_the_recipe(user, detected):
    words = recipe(user, "wrong", "env:\n", "env:\n  GLOO_SOCKET_IFNAME: enp9s9np9\n")
    with detected("wrong-interface-variable") as fault:
        fault.said_in(user(*words, status=None).printed)


def test_port_of_the_endpoint_is_taken(user, spark1, detected):
    with listening(spark1, "10.89.0.11", 8000), detected("port-taken") as fault:
        fault.said_in(user("up", "--tp", "1", status=None).printed)


def test_port_of_ray_is_taken(user, spark1, detected):
    with listening(spark1, "0.0.0.0", 6379), detected("ray-port-taken") as fault:
        fault.said_in(user(*UP, status=None).printed)


def test_image_without_ray(user, spark1, spark2, detected):
    """An overlay of the environment, without the package and its program."""
    layers = f"lowerdir=/opt/vllm,upperdir={FAULTY}/new,workdir={FAULTY}/work"
    script = (
        f"mkdir -p {FAULTY} && mount -t tmpfs tmpfs {FAULTY} && cd {FAULTY} && "
        f"mkdir new work vllm && mount -t overlay overlay -o {layers} vllm && "
        "rm -rf vllm/bin/ray vllm/lib/python3*/site-packages/ray"
    )
    words = recipe(user, "no-ray", VLLM_MOUNT, NO_RAY)
    for node in (spark1, spark2):
        node.run(["sh", "-c", script])
    try:
        with detected("image-without-ray") as fault:
            fault.said_in(user(*words, status=None).printed)
    finally:
        for node in (spark1, spark2):
            node.run(["sh", "-c", f"umount {FAULTY}/vllm; umount {FAULTY}; rmdir {FAULTY}"])


def test_different_versions_of_ray(user, spark1, spark2, detected):
    """Of one image name there are two images: what the worker's Ray says of itself is older."""
    found = spark1.run(["sh", "-c", "ls /opt/vllm/lib/python3*/site-packages/ray/_version.py"])
    place = found.stdout.strip()
    for node, change in ((spark1, ""), (spark2, 's/^version = .*/version = "2.48.0"/')):
        node.run(["mkdir", "-p", FAULTY])
        node.run(["sh", "-c", f"sed '{change}' {place} > {FAULTY}/_version.py"])
    mount = OWN_VERSION.replace("PLACE", place)
    words = recipe(user, "other-ray", "\nray:\n", f"{mount}\nray:\n")
    try:
        with detected("ray-versions") as fault:
            fault.said_in(user(*words, status=None).printed)
    finally:
        for node in (spark1, spark2):
            node.run(["rm", "-r", FAULTY])


def test_disk_of_the_caches_is_full(user, spark2, detected):
    with small_disk(spark2, CACHE_ROOT, "1m"), detected("cache-disk-full") as fault:
        fault.said_in(user(*UP, status=None).printed)


def test_memory_is_taken(user, spark2, detected):
    words = recipe(user, "own-share", "  kv-cache-memory-bytes: 64M\n", "")
    spark2.set_state(mem_available_kb=3_000_000)
    try:
        with detected("memory-taken") as fault:
            fault.said_in(user(*words, status=None).printed)
    finally:
        spark2.set_state(mem_available_kb=None)


def test_clocks_that_differ(user, spark2, detected):
    broken = BREAKAGES["clock-ahead"]
    broken.break_(spark2)
    try:
        with detected("clocks-apart") as fault:
            fault.said_in(user("doctor", "--only", "pair").printed)
    finally:
        broken.repair(spark2)


# --- while it loads -----------------------------------------------------------------------------


def loads(user: CommandLine) -> Started:
    """Begin `up`, and return when it waits for the server."""
    before = set((user.home / "state").rglob("*.jsonl"))
    started = user.start(*UP)

    def waits() -> bool:
        assert started.process.poll() is None, started.process.communicate()
        new = set((user.home / "state").rglob("*.jsonl")) - before
        return any('"stage": "load"' in path.read_text() for path in new)

    until(waits, what="it waits for the server")
    return started


def signal_server(node: LabNode, name: str) -> None:
    """Stop (or let go on) all processes of the server, whose container goes on running."""
    pids = node.run(["docker", "top", "spark-vllm", "-eo", "pid"]).stdout.split()[1:]
    node.run(["kill", f"-{name}", *pids])


def test_up_twice_at_once_a_laptop_that_is_gone_and_ctrl_c(user, spark1, spark2, detected):
    """The server stands still meanwhile, so that all of it happens while it loads."""
    spark2.run(["rm", "-rf", "/srv/models/paris"])
    with detected("model-missing") as fault:
        first = loads(user)
        fault.said_in("\n".join(user.verdicts()["change"]))
    signal_server(spark1, "STOP")
    try:
        with detected("up-twice") as fault:
            fault.said_in(user(*UP, status=1).printed)
        first.process.kill()
        first.process.communicate()
        with detected("laptop-gone") as fault:
            fault.said_in(user("status").printed)
        second = loads(user)
        with detected("interrupted") as fault:
            second.interrupt()
            fault.said_in(second.end(status=130).printed)
    finally:
        signal_server(spark1, "CONT")
    document = user.json(*UP)
    assert document["changed"] == 0, user.verdicts()["change"]
    assert "Paris" in document["answer"]


# --- while it serves ----------------------------------------------------------------------------


def test_no_tool_parser(user, detected):
    with detected("no-tool-parser") as fault:
        fault.said_in(user("verify", "--only", "tool_use").printed)


def test_raylet_killed(user, spark2, detected):
    """Docker starts Ray there again at once; the server's engine has lost its worker."""
    assert user.status()["state"] == "serving"

    def problems() -> str:
        found = "\n".join(user.status()["problems"])
        return found if "restarted" in found else ""

    with detected("raylet-killed") as fault:
        spark2.run(["pkill", "-KILL", "-x", "raylet"])
        fault.said_in(until(problems, HANG_S, "status finds it"))


def test_address_of_the_head_changed(user, spark1, detected):
    other = user.with_inventory(
        "supervised", lambda document: document.update(settings={"supervise": {"look_s": 2}})
    )
    other("supervise", "install")
    broken = BREAKAGES["other-subnet"]
    try:
        with detected("address-changed") as fault:
            broken.break_(spark1)
            until(lambda: other.json("supervise", "status")["problems"], HANG_S, "it is noticed")
            fault.said_in(other("supervise", "status").printed)
    finally:
        broken.repair(spark1)
        other("supervise", "remove")
