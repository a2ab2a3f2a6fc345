"""A Ray cluster without a model on two booted nodes: its jobs, and who may end them."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import example_pages
import pytest
import readme
from commandline import CHECKOUT, CommandLine, until
from json_schema import document as fits
from on_nodes import containers, left_of_ray

from spark_cluster.engine.names import RAY

pytestmark = pytest.mark.lab


SLOW = "print('begun', flush=True); import time; time.sleep(600)"


@pytest.fixture(scope="module")
def user(user: CommandLine) -> CommandLine:
    """A user with the how-to's job; Ray is up."""
    example_pages.write_files("ray.md", user.home)
    user.recipe("lab-paris-short", ("max-model-len: 4096", "max-model-len: 1024"))
    user(*readme.words("spark-cluster ray up"))
    return user


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


def test_a_closed_laptop_leaves_the_job_which_others_cannot_end(user, lab):
    started = user.start("ray", "submit", "--", "python3", "-c", SLOW)
    name = started.process.stderr.readline().split()[1]
    until(lambda: "begun" in (started.process.stdout.readline() or ""), what="its log")
    started.interrupt(signal.SIGKILL)
    started.end(status=None)
    found = user.json(*readme.words("spark-cluster ray status"))
    fits("ray-status", json.dumps(found))
    assert [job["id"] for job in found["jobs"]] == [name]
    for words in ("up --tp 2", "swap lab-paris", "down", "bench fabric --out refused"):
        assert f"job {name} is running on Ray" in user(*words.split(), status=4).err
    assert user.json("ray", "up")["changed"] == 0, "it keeps its jobs"
    attached = user.start(*readme.words("spark-cluster ray logs -f JOB", {"JOB": name}))
    until(lambda: "begun" in (attached.process.stdout.readline() or ""), what="its log again")
    assert user.json("ray", "stop", name)["changed"]
    out, err = attached.process.communicate(timeout=120)
    assert attached.process.returncode == 1, out + err
    assert f"job {name} stopped" in err
    assert user.json("ray", "list")["jobs"][0]["status"] == "STOPPED"


def test_the_programs_of_the_page_run_as_they_stand(user):
    user.with_inventory("inventory", lambda _: None)
    ran = subprocess.run(
        [sys.executable, "jobs.py"], check=True, capture_output=True, text=True, cwd=user.home,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "the sum over 2 ranks is 3\n" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "0"
    assert user.json("ray", "status")["state"] == "stopped"


def test_a_model_takes_the_place_of_jobs_on_request_only(user):
    user("ray", "up")
    name = user("ray", "submit", "--no-wait", "--", "sleep", "600").out.strip()
    assert f"job {name} is running on Ray" in user("up", "--tp", "2", status=4).err
    assert f"ended job {name}" in user("up", "--tp", "2", "--end-jobs").out
    under = user("ray", "submit", "--no-wait", "--", "sleep", "600").out.strip()
    assert user.json("up", "--tp", "2")["changed"] == 0, "the job goes on beside the model"
    for words in ("up --tp 2 --recipe lab-paris-short", "swap lab-paris-short", "down"):
        assert f"job {under} is running on Ray" in user(*words.split(), status=4).err
    assert user.json("status")["state"] == "serving"
    assert [job["id"] for job in user.json("ray", "status")["jobs"]] == [under]
    user("down", "--end-jobs")
    user(*readme.words("spark-cluster ray up"))


def test_down_leaves_nothing(user, lab):
    user("ray", "submit", "--no-wait", "--", "sleep", "600")
    found = user.json(*readme.words("spark-cluster ray down"))
    fits("ray-down", json.dumps(found))
    for name in ("spark1", "spark2"):
        node = lab.node(name)
        until(lambda node=node: not left_of_ray(node), what=f"{name} is clean")
    assert RAY not in containers(lab.node("spark1"))
    ran = user("ray", "list", status=1)
    assert "no Ray cluster is running" in ran.err
    assert user.json("ray", "status")["state"] == "stopped"
