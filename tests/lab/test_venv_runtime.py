"""`runtime: venv` on real systemd: Ray and vLLM as units, out of a virtual environment."""

import json
from pathlib import Path
from typing import Any

import pytest
from commandline import CommandLine, until
from exposure import only_the_endpoint
from hostile import unit as hostile
from lab_recipes import shipped, write

from spark_cluster_lab import LabNode

pytestmark = pytest.mark.lab

NAME = "lab-venv"
PREPARE = """\
# vLLM for CPUs is installed for the Python of the lab's image, which a node may have in another
# version: that Python, and an environment of it which finds the packages where they are.
SCRIPT = r'''
made=$(docker create spark-vllm:lab true)
docker export "$made" | tar -x -C / --skip-old-files --wildcards \\
  'usr/bin/python3.*' 'usr/lib/python3.*' '*/libgomp.so*' '*/libnuma.so*'
docker rm "$made" >/dev/null
python=$(ls /opt/vllm/lib | grep '^python3')
"$python" -m venv --without-pip /srv/engine
packages=/srv/engine/lib/$python/site-packages
echo "/opt/vllm/lib/$python/site-packages" > "$packages/engine.pth"
for name in ray vllm; do
  sed '1s|.*|#!/srv/engine/bin/python3|' "/opt/vllm/bin/$name" > "/srv/engine/bin/$name"
  chmod 755 "/srv/engine/bin/$name"
done
'''


def main(play):
    image = Image("spark-vllm:lab", archive="/srv/images/spark-vllm.tar")
    made = Command("an environment", ("sh", "-euc", SCRIPT), creates="/srv/engine/bin/vllm")
    play.apply(play.nodes, "containers", [image, made])
"""


def recipe() -> dict[str, Any]:
    """The lab's recipe without its image."""
    made = shipped(name=NAME, runtime="venv", venv={"path": "/srv/engine"})
    return {key: value for key, value in made.items() if key not in ("image", "mounts")}


@pytest.fixture(scope="module")
def user(user: CommandLine) -> CommandLine:
    write(user, recipe())
    user("playbook", user.playbook(PREPARE))
    return user


UP = ("up", "--tp", "2", "--recipe", NAME, "--allow-venv")


def units(node: LabNode) -> list[str]:
    """The engine's units that run."""
    wanted = ["spark-ray.service", "spark-vllm.service"]
    argv = ["systemctl", "list-units", "--plain", "--no-legend", "--state=running", *wanted]
    return [line.split()[0] for line in node.run(argv).stdout.splitlines()]


def test_it_serves_over_both_nodes_without_a_container(user, spark1, spark2):
    document = user.json(*UP)
    assert "Paris" in document["answer"]
    assert units(spark1) == ["spark-ray.service", "spark-vllm.service"]
    assert units(spark2) == ["spark-ray.service"]
    for node in (spark1, spark2):
        assert node.run(["docker", "ps", "-q"]).stdout == ""
    held = {node["name"]: node["processes"] for node in user.json("vram")["nodes"]}
    assert all(held[name] for name in ("spark1", "spark2"))
    assert user.json("status")["state"] == "serving"
    assert "Application startup complete" in user("logs", "--tail", "4000").out

    assert user.json(*UP)["changed"] == 0


def test_no_password_is_in_what_others_may_read(spark1, spark2):
    token = spark1.run(
        ["sh", "-c", "cat /var/lib/spark-cluster/secrets/spark-ray/*"]
    ).stdout.strip()
    assert len(token) > 16
    for node in (spark1, spark2):
        shown = node.run(["systemctl", "show", "spark-ray", "spark-vllm"]).stdout
        shown += node.run(["sh", "-c", "cat /etc/systemd/system/spark-*; ps -eo args"]).stdout
        assert token not in shown


HOSTILE = """
PROGRAM = {program!r}
SHELL = 'python3 /srv/hostile/unit.py "$@" >/srv/hostile/new; ' \\
    'mv /srv/hostile/new /srv/hostile/found; exec sleep infinity'


def main(play):
    command = ("sh", "-c", SHELL, "sh", *{sockets!r})
    play.apply(play.nodes, [
        Directory("/srv/hostile"),
        File("/srv/hostile/unit.py", content=PROGRAM),
        Unit("spark-hostile", command, mounts=("/srv/hostile:/srv/hostile",)),
    ])
"""


def listening(node: LabNode) -> set[str]:
    """Paths of the sockets that programs of the node listen on, and systemd's for datagrams."""
    lines = node.run(["ss", "-xlnpH"]).stdout.splitlines()
    paths = {word for line in lines for word in line.split() if word[0] in "/@"}
    return paths | {"/run/systemd/notify", "/run/systemd/journal/socket"}


def test_a_hostile_program_reaches_nothing_of_the_node(user, spark2):
    sockets = listening(spark2)
    assert {"/run/docker.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"} <= sockets
    assert any(path.startswith("/run/containerd/") for path in sockets)
    program = Path(hostile.__file__).read_text()
    text = HOSTILE.format(program=program, sockets=sorted(sockets))
    try:
        # The program works: root outside connects to them.
        spark2.run(["mkdir", "-p", "/srv/hostile"])
        (spark2.root / "srv/hostile/unit.py").write_text(program)
        outside = json.loads(spark2.run(["python3", "/srv/hostile/unit.py", *sockets]).stdout)
        assert set(outside["connected"]) >= {"/run/docker.sock", "/run/systemd/private"}
        assert "/dev/net/tun" in outside["devices"]
        assert (outside["namespaces"], "systemd" in outside["roots"]) == (True, True)
        user("--limit", "spark2", "playbook", user.playbook(text))
        found = spark2.root / "srv/hostile/found"
        until(found.exists, what="the program has ended")
        seen = json.loads(found.read_text())
    finally:
        spark2.run(["systemctl", "disable", "--now", "spark-hostile"], check=False)
        spark2.run(["sh", "-c", "rm -rf /srv/hostile /etc/systemd/system/spark-hostile.service"])
        spark2.run(["systemctl", "daemon-reload"])
    assert seen["uid"] == 0
    assert seen["connected"] == []
    assert seen["roots"] == [], "another process's root folder shows what is hidden from its own"
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    others = [path for path in seen["devices"] if not path.startswith("/dev/pts/")]
    assert {Path(path).name for path in others} <= harmless
    assert seen["namespaces"] is False
    assert seen["status"]["NoNewPrivs"] == "1"
    assert int(seen["status"]["CapBnd"], 16) == 1 << 14 | 1 << 23, "IPC_LOCK and SYS_NICE"


@pytest.mark.soak
def test_a_neighbour_reaches_the_endpoint_and_nothing_else(user, spark1, spark2):
    user(*UP)
    only_the_endpoint(spark1, spark2)


def test_a_unit_that_has_ended_is_told_and_down_leaves_none(user, spark1, spark2):
    spark2.run(["systemctl", "stop", "spark-ray"])
    assert any("spark2" in problem for problem in user.json("status", status=5)["problems"])
    user("down")
    for node in (spark1, spark2):
        assert units(node) == []
        assert node.run(["sh", "-c", "ls /etc/systemd/system/spark-[rv]* || true"]).stdout == ""
