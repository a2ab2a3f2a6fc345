"""`swap` there and back, its way back from one that fails, and `supervise`; on real vLLM."""

from collections.abc import Iterator
from typing import Any

import pytest
from commandline import CommandLine, processes, until

from spark_cluster_lab.breakage import BREAKAGES

pytestmark = pytest.mark.lab

OTHER, BROKEN = "lab-paris-short", "lab-paris-broken"
NOWHERE = "  - {source: /nowhere, target: /nowhere, read_only: true}\n"


@pytest.fixture(scope="module")
def serving(user) -> CommandLine:
    """The shipped recipe serves, at TP=1; a shorter one is there, and one that cannot start."""
    user.recipe(OTHER, ("max-model-len: 4096", "max-model-len: 1024"))
    user.recipe(BROKEN, ("mounts:\n", f"mounts:\n{NOWHERE}"))
    user("up", "--tp", "1", "--recipe", "lab-paris")
    return user


def test_there(serving):
    document = serving.json("swap", OTHER, "--tp", "1")
    assert document["former"] == {"recipe": "lab-paris", "tp": 1, "overrides": ""}
    assert "Paris" in document["answer"]
    assert not any(node["processes"] for node in document["released"]), "the memory was back"
    assert {"fetch", "stop", "prove", "start", "load", "verify"} <= document["seconds"].keys()
    assert document["down_s"] > document["seconds"]["load"]


def test_one_that_fails_ends_in_the_old_one(serving):
    ran = serving("swap", BROKEN, "--tp", "1", status=1)
    assert "/nowhere does not exist on the node" in ran.printed
    assert f"{OTHER} (tp 1) was started again, is verified, and serves" in ran.printed
    assert serving.json("status")["state"] == "serving"
    assert "swap lab-paris-broken --tp 1" in serving("history").printed


def test_back(serving):
    ran = serving("swap", "lab-paris", "--tp", "1")
    assert f"in place of {OTHER} (tp 1)" in ran.printed
    held = processes(serving.json("vram"))
    assert [name for name, found in held.items() if found] == ["spark1"]


QUICK = {"look_s": 2, "answer_s": 3, "misses": 2, "pause_s": 1}


def supervised(user: CommandLine) -> CommandLine:
    """The same user, whose supervision looks often."""

    def change(document: dict[str, Any]) -> None:
        document.setdefault("settings", {})["supervise"] = QUICK

    return user.with_inventory("supervised", change)


@pytest.mark.soak
def test_an_engine_that_hangs_serves_again(serving, spark1):
    """It answers /health, its process is there, and no completion comes."""
    user = supervised(serving)
    user("up", "--tp", "1", "--recipe", "lab-paris")
    user("supervise", "install")
    assert user.json("supervise", "install")["changed"] == 0

    until(lambda: phase(user) == "serving", what="the supervision has seen an answer")
    spark1.run(["pkill", "-STOP", "-f", "VLLM::EngineCor"])
    until(lambda: phase(user) != "serving", what="the supervision has noticed", every=1.0)
    until(lambda: phase(user) == "serving", what="the server answers again", every=1.0)
    events = [event["text"] for event in user.json("supervise", "status")["events"]]
    assert any("waiting (stopped): 2 times no answer" in text for text in events), events
    assert "loading (started)" in events
    assert serving.json("status")["state"] == "serving"


def phase(user: CommandLine) -> str:
    return str(user.json("supervise", "status")["phase"])


def test_an_engine_that_is_killed_serves_again(serving, spark1, detected):
    """Nothing is done on the laptop."""
    user = supervised(serving)
    user("supervise", "install")
    until(lambda: phase(user) == "serving", what="the supervision has seen an answer")
    with detected("engine-killed") as fault:
        spark1.run(["pkill", "-KILL", "-f", "VLLM::EngineCor"])
        until(lambda: phase(user) != "serving", what="the supervision has noticed")
        fault.said_in(user("supervise", "status").printed)
    until(lambda: phase(user) == "serving", what="the server answers again", every=1.0)
    assert serving.json("status")["state"] == "serving"


def test_supervision_leaves_down_alone(serving, spark1):
    serving("down")
    user = supervised(serving)
    until(lambda: user.json("supervise", "status")["phase"] == "idle", what="it is idle")
    user("supervise", "remove")
    assert user.json("supervise", "status")["installed"] is False
    left = spark1.run(["ls", "/var/lib/spark-cluster/supervise"], check=False)
    assert left.returncode != 0


@pytest.fixture
def pair(serving) -> Iterator[CommandLine]:
    """A user whose server on both nodes is supervised, also after a boot."""
    user = supervised(serving)
    user("up", "--tp", "2", "--recipe", "lab-paris")
    user("supervise", "install", "--at-boot")
    until(lambda: phase(user) == "serving", what="the supervision has seen an answer")
    yield user
    user("supervise", "remove")


@pytest.mark.soak
@pytest.mark.parametrize("which", ["spark1", "spark2"])
def test_a_power_cut_of_either_node(lab, pair, which, detected):
    """Head or worker: nothing is done on the laptop, and completions come again."""
    node = lab.node(which)
    with detected(f"power-cut-{which}") as fault:
        node.poweroff(orderly=False)
        node.boot()
        until(lambda: pair.status().get("state") == "serving", what="it serves again", every=2.0)
        until(lambda: phase(pair) == "serving", every=2.0)
        fault.said_in(pair("supervise", "status").printed)


@pytest.mark.soak
def test_rays_head_is_gone(pair, spark1, detected):
    """Ray's worker ends with it, is started again, and so is the server."""
    with detected("ray-head-gone") as fault:
        spark1.run(["pkill", "-KILL", "-x", "gcs_server"])
        until(lambda: phase(pair) != "serving", what="the supervision has noticed")
        fault.said_in(pair("supervise", "status").printed)
    until(lambda: phase(pair) == "serving", what="it serves again", every=2.0)
    until(lambda: pair.status().get("state") == "serving", what="status says so", every=2.0)


@pytest.mark.soak
def test_a_power_cut_after_which_the_link_has_other_addresses(lab, pair, spark1, detected):
    """The supervision names what the laptop has to repair; then `up` uses the new addresses."""
    moved = BREAKAGES["other-subnet"]
    try:
        with detected("address-after-power-cut") as fault:
            for node in lab.nodes:
                moved.break_(node)
            spark1.poweroff(orderly=False)
            spark1.boot()
            until(lambda: pair.json("supervise", "status")["problems"], what="it is noticed")
            fault.said_in(pair("supervise", "status").printed)
        assert "Paris" in pair.json("up", "--tp", "2", "--recipe", "lab-paris")["answer"]
        until(lambda: not pair.json("supervise", "status")["problems"], what="nothing is left")
    finally:
        pair("down")
        for node in lab.nodes:
            moved.repair(node)
