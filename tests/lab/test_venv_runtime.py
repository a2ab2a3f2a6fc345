"""`runtime: venv` on real systemd: Ray and vLLM as units, out of a virtual environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CommandLine
from exposure import exposure

from spark_cluster.lab import LabNode

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


def recipe_text() -> str:
    """The lab's recipe without its image."""
    shipped = (Path(__file__).parents[2] / "recipes/lab-paris.yaml").read_text()
    parts = [p for p in shipped.split("\n\n") if not p.startswith(("image:", "mounts:"))]
    engine = "runtime: venv\nvenv: {path: /srv/engine}"
    return "\n\n".join([parts[0].replace("lab-paris", NAME), engine, *parts[1:]])


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path_factory.mktemp("venv"))
    (made.home / "recipes").mkdir()
    (made.home / f"recipes/{NAME}.yaml").write_text(recipe_text())
    made("down")
    made("playbook", made.playbook(PREPARE))
    yield made
    made("down")


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
    assert "Application startup complete" in user("logs").out

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


@pytest.mark.soak
def test_a_neighbour_reaches_the_endpoint_and_nothing_else(user, spark1, spark2):
    user(*UP)
    with exposure(spark1, spark2) as seen:
        assert {(node, port) for node, _, port in seen.open()} == {("spark1", 8000)}


def test_doctor_reads_the_units(user):
    checks = user.json("doctor")["checks"]
    wrong = [(c["id"], c["node"], c["found"]) for c in checks if c["status"] == "fail"]
    assert wrong == []


def test_a_unit_that_has_ended_is_told_and_down_leaves_none(user, spark1, spark2):
    spark2.run(["systemctl", "stop", "spark-ray"])
    assert any("spark2" in problem for problem in user.json("status", status=5)["problems"])
    user("down")
    for node in (spark1, spark2):
        assert units(node) == []
        assert node.run(["sh", "-c", "ls /etc/systemd/system/spark-[rv]* || true"]).stdout == ""
