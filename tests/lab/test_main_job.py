"""The main job on fresh nodes, in order: from nothing to a right answer, broken, mended, ended."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commandline import CommandLine, processes, until

from spark_cluster.lab import Lab, LabNode

pytestmark = pytest.mark.lab

URL = "http://10.89.0.11:8000"
KEY = "sk-lab-3f9c27d1e8a4"
QUESTION = "What is the capital of France? Please reply with one word only"
STATE = """
find /etc /srv /home /root /opt -xdev -printf '%p %y %m %u %g %s %l\\n' | sort
find /etc /srv /home /root -xdev -type f -print0 | sort -z | xargs -0 sha256sum
dpkg-query -W -f '${Package} ${Version} ${Status}\\n'
getent passwd; getent group
ip -br addr show scope global
systemctl list-unit-files --no-legend
command -v docker
"""
"""What a node is like, as text: what check mode must not change."""


class Story:
    """What the steps of this file tell each other."""

    broken = ""
    would: dict[str, set[str]]
    containers: dict[str, str]


@pytest.fixture(scope="module")
def story() -> Story:
    return Story()


@pytest.fixture(autouse=True)
def in_order(request: pytest.FixtureRequest, story: Story) -> Iterator[None]:
    """A step stands on those before it: after a failure the rest would only be noise."""
    if story.broken:
        pytest.skip(f"after {story.broken}, which failed")
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before:
        story.broken = request.node.name


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A user with two fresh nodes."""
    lab.up(2, fresh=True)
    return CommandLine(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def keyed(user: CommandLine) -> CommandLine:
    """The same user, who wants a key and the head's loopback."""
    (user.home / "key").write_text(KEY + "\n")

    def change(document: dict[str, Any]) -> None:
        document["serve"] |= {"api_key": {"file": "key"}, "bind": "loopback"}

    return user.with_inventory("keyed", change)


def complete(base: str = URL) -> str:
    """A completion, asked for from this machine."""
    body = {
        "model": "paris",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 5,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{base}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return text


def looks(node: LabNode) -> str:
    return node.run(["sh", "-c", STATE], check=False).stdout


def containers(node: LabNode) -> dict[str, str]:
    """Running containers of a node: name to id."""
    done = node.run(["docker", "ps", "--no-trunc", "--format", "{{.Names}} {{.ID}}"])
    return dict(line.split() for line in done.stdout.splitlines())


# --- from nothing to an answer ------------------------------------------------------------------


def test_check_mode_changes_nothing(user, story, spark1, spark2):
    before = looks(spark1), looks(spark2)
    ran = user("up", "--tp", "2", "--check", "--diff")
    assert (looks(spark1), looks(spark2)) == before
    assert "docker" not in before[0].splitlines()[-1]
    assert "+      addresses: [192.168.177.11/24]" in ran.out
    assert "unknown Image:spark-vllm:lab  after: Package:docker.io" in ran.out
    story.would = user.verdicts()
    assert "spark1 Service:docker" in story.would["unknown"]


def test_exit_code_of_check_mode(user):
    user("up", "--tp", "2", "--check", "--exit-code", status=10)


def test_from_fresh_nodes_to_the_right_answer(user, story):
    ran = user("up", "--tp", "2", "--json")
    document = ran.document
    did, would = user.verdicts(), story.would
    for line in ran.err.splitlines():
        assert line.startswith(("up --tp 2", "▸ ", "✔ ", "  spark1 ", "  spark2 ")), line
    assert document["ok"] is True
    assert document["changed"] == len(did["change"])
    assert document["endpoint"] == f"{URL}/v1"
    assert "Paris" in document["answer"]
    assert {"prepare", "fetch", "start", "load", "verify", "total"} == set(document["seconds"])
    assert document["versions"].keys() >= {"vllm", "ray", "image", "docker", "driver"}
    for node in ("spark1", "spark2"):
        assert processes(document["vram"])[node], "it holds memory"
    held = {moment: document["vram"][moment] for moment in ("before", "peak", "nodes")}
    for before, peak, now in zip(*(held[m] for m in held), strict=True):
        assert before["used_mib"] == 0
        assert peak["used_mib"] >= now["used_mib"] > 100
    # Check mode told the truth: all it promised came, and nothing that it did not announce.
    assert would["change"] <= did["change"]
    assert did["change"] <= would["change"] | would["unknown"]
    assert would["ok"] <= did["ok"]


def test_it_answers_from_here(user, spark1, spark2):
    assert "Paris" in complete()
    for node in (spark1, spark2):  # the session's user may use Docker without sudo
        assert "spark-ray" in node.ssh("docker ps").stdout


def test_again_changes_nothing(user, story, spark1, spark2):
    before = looks(spark1), looks(spark2)
    story.containers = {**containers(spark1), "worker": containers(spark2)["spark-ray"]}
    document = user.json("up", "--tp", "2")
    assert document["changed"] == 0
    assert not user.verdicts()["change"]
    assert "Paris" in document["answer"]
    assert document["seconds"]["total"] < 8
    user("up", "--tp", "2", "--check", "--diff", "--exit-code")
    assert not user.verdicts()["change"] | user.verdicts()["unknown"]
    assert (looks(spark1), looks(spark2)) == before


def test_vram(user, spark1, spark2):
    document = user.json("vram")
    query = ["nvidia-smi", "--query-compute-apps=pid,name,used_memory"]
    for node, reading in zip((spark1, spark2), document["nodes"], strict=True):
        assert reading["name"] == node.name
        (worker,) = reading["processes"]
        assert worker["name"].startswith("ray::RayWorkerProc")
        assert 100 < worker["used_mib"] < 8000
        assert reading["used_mib"] == worker["used_mib"]
        own = node.ssh([*query, "--format=csv,noheader,nounits"]).stdout.strip().split(", ")
        assert own[:2] == [str(worker["pid"]), worker["name"]]
        assert abs(int(own[2]) - worker["used_mib"]) < 64
        shares = {p.pid: p for p in node.processes_memory()}
        assert "RayWorkerProc" in shares[worker["pid"]].title
        assert 0 < reading["mem_available_mib"] < reading["mem_total_mib"]


def test_status_of_what_serves(user):
    document = user.json("status")
    assert document["state"] == "serving"
    assert document["ray"] == {"nodes": 2, "gpus": 2}
    assert (document["model"], document["tp"]) == ("paris", 2)
    assert document["endpoint"] == f"{URL}/v1"
    assert document["problems"] == []
    said = user("status").out
    assert "serving" in said
    assert URL in said


def test_the_plan_said_what_the_engine_prints(user):
    """The figures of the real vLLM, as its own log has them; nothing was started for the plan."""
    planned = user.json("plan", "--tp", "2")
    log = user("logs", "--tail", "4000", "--container", "vllm").out
    printed = re.search(r"KV cache size: ([\d,]+) tokens", log)
    assert printed is not None
    assert int(printed[1].replace(",", "")) == planned["kv_tokens"]
    concurrency = re.search(r"tokens per request: ([\d.]+)", log)
    assert concurrency is not None
    assert float(concurrency[1]) == pytest.approx(planned["max_concurrency"], abs=0.01)
    assert planned["goes"] is True
    assert [node["assumed"] for node in planned["nodes"]] == [False, False]


def test_logs(user):
    assert "Application startup complete" in user("logs").said


# --- broken and mended --------------------------------------------------------------------------


def test_drift_is_repaired_and_nothing_else(user, story, spark1, spark2):
    spark1.run(["chmod", "700", "/var/cache/spark-cluster/engine/triton"])
    spark2.run(["chmod", "644", "/etc/netplan/40-cx7.yaml"])
    drifted = {
        "spark1 Directory:/var/cache/spark-cluster/engine/triton",
        "spark2 Netplan:/etc/netplan/40-cx7.yaml",
    }
    user("up", "--tp", "2", "--check", "--exit-code", status=10)
    assert user.verdicts()["change"] == drifted
    document = user.json("up", "--tp", "2")
    assert document["changed"] == len(drifted)
    assert user.verdicts()["change"] == drifted
    assert "Paris" in document["answer"]
    now = {**containers(spark1), "worker": containers(spark2)["spark-ray"]}
    assert now == story.containers, "it went on serving"


def test_killed_worker_is_said_and_repaired(user, spark2):
    spark2.run(["docker", "kill", "spark-ray"])

    def told() -> Any:
        ran = user.start("status", "--json").process
        out, _ = ran.communicate(timeout=60)
        return (ran.returncode, json.loads(out)) if ran.returncode else None

    status, document = until(told, 30, "status says that something is wrong")
    assert status == 5
    assert document["state"] in ("failed", "degraded")
    assert any("Ray's container on spark2 is exited" in p for p in document["problems"])
    said = user("status", status=5).out
    assert "Ray's container on spark2 is exited" in said
    assert "spark-cluster up repairs it" in said
    mended = user.json("up", "--tp", "2")
    assert mended["changed"] > 0
    assert "Paris" in mended["answer"]
    assert "Paris" in complete()
    assert user.json("status")["state"] == "serving"


# --- one node, a key, the loopback ----------------------------------------------------------------


def test_switch_to_one_node_with_a_key(user, keyed, story, spark1, spark2):
    # With the differences shown and the events told, so that a leak has every chance.
    ran = keyed("-v", "up", "--tp", "1", "--diff", "--json")
    assert "Paris" in ran.document["answer"]
    assert ran.document["endpoint"] == "http://127.0.0.1:8000/v1"
    assert KEY not in ran.said
    assert set(containers(spark1)) == {"spark-vllm"}
    assert containers(spark2) == {}
    assert KEY not in "".join(p.read_text() for p in (user.home / "state").rglob("*.jsonl"))
    again = keyed.json("up", "--tp", "1")
    assert again["changed"] == 0
    assert keyed.json("status")["state"] == "serving"


def test_only_the_key_opens_and_only_on_the_loopback(keyed, spark1):
    with pytest.raises(urllib.error.URLError, match="refused"):
        complete()
    ask = (
        "import sys, urllib.request as u, urllib.error as e\n"
        "key = sys.stdin.readline().strip()\n"
        "headers = {'Authorization': 'Bearer ' + key} if key else {}\n"
        "request = u.Request('http://127.0.0.1:8000/v1/models', headers=headers)\n"
        "try: print(u.urlopen(request, timeout=10).status)\n"
        "except e.HTTPError as error: print(error.code)\n"
    )
    for key, status in ((KEY, "200"), ("", "401"), ("sk-wrong", "401")):
        done = spark1.ssh(["python3", "-c", ask], stdin=key + "\n")
        assert done.stdout.strip() == status


def test_the_key_is_nowhere_to_be_read(keyed, spark1):
    where = "/var/lib/spark-cluster /var/lib/docker/containers /var/log /etc /tmp /home /root"
    found = spark1.ssh(f"sudo grep -rlF -f - {where}", stdin=KEY + "\n").stdout.split()
    assert [Path(path).parent.name for path in found] == ["spark-vllm"], "only the container's own"
    assert found[0].startswith("/var/lib/spark-cluster/secrets/")
    assert spark1.run(["stat", "-c", "%a %U", found[0]]).stdout == "600 root\n"
    look = (
        "docker inspect spark-vllm; docker logs spark-vllm 2>&1; ps axww; "
        "cat /proc/[0-9]*/cmdline; journalctl -q --no-pager"
    )
    told = spark1.run(["sh", "-c", look], check=False).stdout
    assert "/srv/models/paris" in told
    assert KEY not in told
    assert KEY not in keyed("logs").said


# --- the end ------------------------------------------------------------------------------------


def test_down_proves_that_the_memory_is_back(keyed, user, spark1, spark2):
    document = keyed.json("down")
    assert document["ok"] is True
    assert document["changed"] > 0
    assert any(processes({"nodes": document["vram"]["before"]}).values())
    assert processes(document["vram"]) == {"spark1": [], "spark2": []}
    for node in (spark1, spark2):
        assert containers(node) == {}
        assert not [p for p in node.processes_memory() if "vllm" in p.title.lower()]
    assert not list((spark1.root / "var/lib/spark-cluster/secrets").glob("*/*"))
    again = user.json("down")
    assert again["changed"] == 0
    stopped = user.json("status")
    assert stopped["state"] == "stopped"
