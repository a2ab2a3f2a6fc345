"""Models that are loaded when they are asked for, with real vLLM: short memory, and a kill."""

import time
from typing import Any

import pytest
import word_model
from commandline import CommandLine, until
from lab_model import complete, embed
from lab_recipes import words, write

from spark_cluster_lab import LabNode

pytestmark = pytest.mark.lab

URL = "http://10.89.0.11:8000"
LOADER = "spark-cluster-model-loader"
ONE, TWO = "spark-vllm-lab-words", "spark-vllm-lab-words-2"

SPARE_KIB = 3 * 2**18
"""Beyond what one on request needs. Each server holds half a GiB, so one fits next to the one that
is always there, and two do not."""


@pytest.fixture(scope="module")
def user(user: CommandLine) -> CommandLine:
    word_model.write(user.home / "recipes/words")
    for name, served in (("lab-words", "words"), ("lab-words-2", "words-2")):
        changed = words("embedding", name=name)
        changed["model"]["served_name"] = served
        write(user, changed)

    def several(inventory: dict[str, Any]) -> None:
        del inventory["serve"]["recipe"]
        requested = [{"recipe": name, "on_request": True} for name in ("lab-words", "lab-words-2")]
        inventory["serve"]["recipes"] = ["lab-paris", *requested]
        inventory.setdefault("settings", {})["model_loader"] = {"stays_s": 1}

    return user.with_inventory("on-request", several)


def refused(model: str) -> str:
    """Ask until the proxy has seen that its server is gone; return what the loader says."""

    def told() -> str:
        status, document, retry = embed(URL, model)
        error = document.get("error", {})
        if status == 503 and error["code"] == "model_loading":
            assert int(retry) >= 2
            return str(error["message"])
        return ""

    return str(until(told, what="the loader answers"))


def answers(model: str) -> None:
    until(lambda: embed(URL, model)[0] == 200, what=f"{model} answers", every=1.0)


def needed_kib(node: LabNode) -> int:
    """Return what must be available before a model on request is loaded, as its label says."""
    label = '{{index .Config.Labels "spark-cluster.needs-gib"}}'
    said = node.run(["docker", "inspect", "--format", label, ONE]).stdout
    return round(float(said) * 2**20)


def states(user: CommandLine) -> dict[str, str]:
    found = user.json("status")
    assert (found["state"], found["problems"]) == ("serving", [])
    return {one["model"]: one["state"] for one in found["models"]}


def test_up_verifies_each_by_a_request_for_it(user):
    chat, *small = user.json("up")["models"]
    assert "Paris" in chat["answer"]
    assert [(one["on_request"], one["verified"]) for one in small] == [(True, ["embedding"])] * 2
    document = user.json("up")
    assert document["changed"] == 0
    assert states(user) == dict.fromkeys(("paris", "words", "words-2"), "serving")


def test_one_that_is_asked_for_is_loaded_and_another_goes_for_it(user, spark1):
    spark1.run(["docker", "stop", "-t", "2", ONE, TWO])
    spark1.set_state(mem_available_kb=needed_kib(spark1) + SPARE_KIB)
    try:
        assert refused("words").startswith("words is not loaded: it is ")
        assert "Paris" in complete(URL, 60), "the others go on"
        answers("words")
        assert states(user) == {"paris": "serving", "words": "serving", "words-2": "on request"}
        checks = user.json("doctor", "--only", "serving.containers")["checks"]
        assert {check["status"] for check in checks} == {"ok"}
        time.sleep(2)  # for so long it stays (stays_s)
        refused("words-2")
        spark1.run(["systemctl", "kill", "--signal", "KILL", LOADER])
        answers("words-2")
        assert states(user) == {"paris": "serving", "words": "on request", "words-2": "serving"}
        said = spark1.run(["journalctl", "-u", LOADER, "-o", "cat"]).stdout
        assert f"{TWO}: {ONE} is unloaded for it" in said
    finally:
        spark1.set_state(mem_available_kb=None)


def test_down_leaves_nothing_of_it(user, spark1):
    assert user.json("down")["vram"]["nodes"][0]["used_mib"] == 0
    left = "ls /run/spark-cluster-model-loader /var/lib/spark-cluster/model-loader 2>/dev/null"
    assert spark1.run(["sh", "-c", left], check=False).stdout == ""
    assert spark1.run(["systemctl", "is-enabled", LOADER], check=False).returncode != 0
    assert spark1.run(["docker", "ps", "-aq"]).stdout == ""
