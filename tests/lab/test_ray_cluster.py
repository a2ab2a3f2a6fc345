"""A Ray cluster without a model on two booted nodes: its jobs, and who may end them."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator

import example_pages
import pytest
import readme
from commandline import CommandLine, until
from json_schema import document as fits

from spark_cluster.engine.names import RAY

pytestmark = pytest.mark.lab

LEFT = """\
docker ps --all --filter name=spark- --format '{{.Names}}'
pgrep -af '[r]aylet' || true
nft list tables | grep spark_cluster || true
"""
"""Prints what is left of it on a node."""

SLOW = "print('begun', flush=True); import time; time.sleep(600)"


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A user with the how-to's job; Ray is up."""
    made = CommandLine(tmp_path_factory.mktemp("ray"))
    example_pages.write_files("ray.md", made.home)
    made("down")
    made(*readme.words("spark-cluster ray up"))
    yield made
    made("down")


def test_ray_up_again_changes_nothing_and_serves_nothing(user):
    found = user.json("ray", "up")
    fits("ray-up", json.dumps(found))
    assert found["changed"] == 0
    cluster = found["cluster"]
    assert (cluster["state"], cluster["recipe"], cluster["jobs"]) == ("running", "lab-paris", [])
    assert [(node["name"], node["gpus"]) for node in cluster["nodes"]] == [
        ("spark1", 1.0),
        ("spark2", 1.0),
    ]
    assert user.json("status")["state"] == "stopped", "no model is served, and nothing is wrong"
    assert user.json("status")["ray"] == {"nodes": 2, "gpus": 2.0}


def test_a_job_all_reduces_over_both_nodes(user):
    ran = user(*readme.words("spark-cluster ray submit --working-dir train -- python3 train.py"))
    for address in ("192.168.177.11", "192.168.177.12"):
        assert f"{address}: the sum over 2 ranks is 3\n" in ran.out
    assert "INFO" not in ran.err, "nothing of Ray's client"
    (job,) = user.json("ray", "list")["jobs"]
    assert (job["status"], job["exit_code"]) == ("SUCCEEDED", 0)


def test_the_page_of_ray_is_reached_with_the_token_alone(user):
    started = user.start("ray", "dashboard", "--token")
    assert started.process.stdout is not None
    url = started.process.stdout.readline().strip()
    token = started.process.stdout.readline().removeprefix("token: ").strip()
    with pytest.raises(urllib.error.HTTPError, match=r"40[13]"):
        urllib.request.urlopen(f"{url}/api/version", timeout=60)
    request = urllib.request.Request(f"{url}/api/version")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["ray_version"]
    started.interrupt(signal.SIGINT)
    started.end(status=0)


def test_a_failed_job_gives_its_exit_status(user):
    ran = user("ray", "submit", "--env", "STEPS=4", "--", "sh", "-c", "exit $STEPS", status=4)
    assert "failed" in ran.err


def test_a_closed_laptop_leaves_the_job_which_others_cannot_end(user, lab):
    started = user.start("ray", "submit", "--", "python3", "-c", SLOW)
    assert started.process.stderr is not None
    assert started.process.stdout is not None
    name = started.process.stderr.readline().split()[1]
    until(lambda: "begun" in (started.process.stdout.readline() or ""), what="its log")
    started.interrupt(signal.SIGKILL)
    started.end(status=None)
    found = user.json(*readme.words("spark-cluster ray status"))
    fits("ray-status", json.dumps(found))
    assert [job["id"] for job in found["jobs"]] == [name]
    for words in (("up", "--tp", "2"), ("bench", "fabric", "--out", "refused")):
        assert f"job {name} is running on Ray" in user(*words, status=4).err
    assert user.json("ray", "up")["changed"] == 0, "it keeps its jobs"
    attached = user.start(*readme.words("spark-cluster ray logs -f JOB", {"JOB": name}))
    assert attached.process.stdout is not None
    until(lambda: "begun" in (attached.process.stdout.readline() or ""), what="its log again")
    assert user.json("ray", "stop", name)["changed"]
    out, err = attached.process.communicate(timeout=120)
    assert attached.process.returncode == 1, out + err
    assert f"job {name} stopped" in err
    assert user.json("ray", "list")["jobs"][0]["status"] == "STOPPED"


def test_down_leaves_nothing(user, lab):
    user("ray", "submit", "--no-wait", "--", "sleep", "600")
    found = user.json(*readme.words("spark-cluster ray down"))
    fits("ray-down", json.dumps(found))
    for name in ("spark1", "spark2"):
        node = lab.node(name)
        until(lambda node=node: node.run(["sh", "-c", LEFT]).stdout == "", what=f"{name} is clean")
    assert RAY not in lab.node("spark1").run(["docker", "ps"]).stdout
    ran = user("ray", "list", status=1)
    assert "no Ray cluster is running" in ran.err
    assert user.json("ray", "status")["state"] == "stopped"
