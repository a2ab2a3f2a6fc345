"""The main job on fresh nodes, in order: from nothing to a right answer, broken, repaired, down."""

import hashlib
import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab_model
import pytest
import readme
from commandline import WAIT_S, CommandLine, processes, until
from exposure import Exposure, exposure, only_the_endpoint
from factories import put
from hostile import unit as hostile

from spark_cluster.config.ports import EnginePorts
from spark_cluster.engine.ray import TOKEN_FILE
from spark_cluster.node.engine_caches import short
from spark_cluster.node.paths import CACHE_ROOT, NETPLAN
from spark_cluster_lab import Lab, LabNode

pytestmark = pytest.mark.lab

URL = "http://10.89.0.11:8000"
FABRIC_ADDRESS = "192.168.177.11"
KEY = "sk-lab-3f9c27d1e8a4"
OTHER_KEY = "sk-lab-77ab0e4419d2"
STATE = (Path(__file__).parent / "programs/state.sh").read_text()


class Story:
    """State that the steps of this file hand on."""

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


def served(user: CommandLine, name: str, key: str, **how: str) -> CommandLine:
    """The same user, who wants a key, and the endpoint otherwise."""
    put(user.home / name, key + "\n", 0o600)

    def change(document: dict[str, Any]) -> None:
        document["serve"] |= {"api_key": {"file": name}, **how}
        del document["serve"]["open"]

    return user.with_inventory(f"with-{name}", change)


@pytest.fixture(scope="module")
def keyed(user: CommandLine) -> CommandLine:
    return served(user, "key", KEY)


@pytest.fixture(scope="module")
def secured(user: CommandLine) -> CommandLine:
    return served(user, "other-key", OTHER_KEY, tls="self-signed")


def complete() -> str:
    """A completion, asked for from this machine."""
    return lab_model.complete(URL, WAIT_S)


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
    ran = user(*readme.words("spark-cluster up --tp 2"), "--json")
    document = ran.document
    did, would = user.verdicts(), story.would
    notes = ("          no API key (serve.open): ", f"          {URL}/v1 answers: Paris")
    for line in ran.err.splitlines():
        known = ("up --tp 2", "▸ ", "✔ ", "  spark1 ", "  spark2 ", *notes)
        assert line.startswith(known), line
    assert "no API key (serve.open): anyone who can reach 10.89.0.11" in ran.err
    assert document["access"] == {"api_key": False, "tls": None}
    assert document["ok"] is True
    assert document["changed"] == len(did["change"])
    assert document["endpoint"] == f"{URL}/v1"
    assert "Paris" in document["answer"]
    stages = {"prepare", "fetch", "start", "load", "verify", "under load", "total"}
    assert stages == set(document["seconds"])
    assert document["versions"].keys() >= {"vllm", "ray", "image", "docker", "driver"}
    for node in ("spark1", "spark2"):
        assert processes(document["vram"])[node], "it holds memory"
    held = {moment: document["vram"][moment] for moment in ("before", "peak", "nodes")}
    for before, peak, now in zip(*(held[m] for m in held), strict=True):
        assert before["used_mib"] == 0
        assert peak["used_mib"] >= now["used_mib"] > 100
    loaded = {one["name"]: one["used_mib"] for one in document["vram"]["under_load"]}
    for phases in document["memory"]:
        assert loaded[phases["node"]] == phases["under_load"] > 100
        assert phases["loading"] >= phases["under_load"] // 2
        assert phases["planned_ready"] is None, "a plan is of a GPU's memory"
    drawn = Path(document["memory_plot"]).read_text()
    assert all(word in drawn for word in ("spark1", "spark2", "loading", "under load"))
    assert user.json("vram", "--run", "last")["memory"] == document["memory"]
    # Check mode told the truth: all it promised came, and nothing that it did not announce.
    assert would["change"] <= did["change"]
    assert did["change"] <= would["change"] | would["unknown"]
    assert would["ok"] <= did["ok"]


def test_again_changes_nothing(user, story, spark1, spark2):
    before = looks(spark1), looks(spark2)
    story.containers = {**containers(spark1), "worker": containers(spark2)["spark-ray"]}
    document = user.json("up", "--tp", "2")
    assert document["changed"] == 0
    assert not user.verdicts()["change"]
    assert "Paris" in document["answer"]
    assert "under load" not in document["seconds"], "only a server that was started is loaded"
    assert document["memory_plot"] is None
    user("up", "--tp", "2", "--check", "--diff", "--exit-code")
    assert not user.verdicts()["change"] | user.verdicts()["unknown"]
    assert (looks(spark1), looks(spark2)) == before


def test_its_end_is_the_one_of_the_picture_and_its_request_is_answered_rightly(user):
    """From the endpoint's line on: what is above it depends on what there was to do."""
    sample = readme.picture("up")
    (first,) = [at for at, line in enumerate(sample) if line.startswith("paris at ")]
    out = user("up", "--tp", "2").out
    found = readme.unlike(sample[first:], out)
    assert [line.split()[0] for line in found] in ([], ["vllm"]), "versions are of the machine"
    request = out.partition("\nto ask it:\n")[2].partition("\n\n")[0]
    assert request.startswith("curl ")
    said = subprocess.run(
        ["bash", "-c", request], check=True, capture_output=True, text=True, timeout=WAIT_S
    )
    assert "Paris" in json.loads(said.stdout)["choices"][0]["message"]["content"]


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


def test_the_plan_said_what_the_engine_prints(user):
    """The figures of the real vLLM, as its own log has them; nothing was started for the plan."""
    planned = user.json("plan", "--tp", "2")
    log = user("logs", "--tail", "4000", "--container", "vllm").out
    assert "Application startup complete" in log
    printed = re.search(r"KV cache size: ([\d,]+) tokens", log)
    assert int(printed[1].replace(",", "")) == planned["kv_tokens"]
    concurrency = re.search(r"tokens per request: ([\d.]+)", log)
    assert float(concurrency[1]) == pytest.approx(planned["max_concurrency"], abs=0.01)
    assert planned["feasible"] is True
    assert [node["assumed"] for node in planned["nodes"]] == [False, False]


def test_the_benchmarks_run_next_to_what_make_demo_has_brought_up(user, tmp_path):
    """`make bench` after `make demo`: it measures the nodes that are up, and says what serves."""
    shortest = "--tools ours,floor --nodes 2 --runs 1"
    told = readme.make(*readme.words("make bench"), f"BENCH={shortest} --json {tmp_path / 'costs'}")
    assert "the lab is up already: spark1, spark2" in told
    assert "spark-vllm on spark1" in told
    costs = json.loads((tmp_path / "costs").read_text())["runs"]
    measured = {(cost["tool"], cost["nodes"], cost["kind"]) for cost in costs}
    assert measured == {(t, 2, k) for t in ("ours", "floor") for k in ("changing", "unchanged")}
    assert all(cost["wall"] > 0 and cost["sessions"] >= 1 for cost in costs)
    timed = [sys.executable, *readme.words("python -m benchmarks.commands"), "--only", "history"]
    timed += ["--runs", "1", "--json", str(tmp_path / "commands")]
    subprocess.run(timed, check=True, cwd=readme.CHECKOUT, timeout=WAIT_S)
    costs = json.loads((tmp_path / "commands").read_text())
    assert {cost["command"] for cost in costs} == {"floor: click", "floor: log in", "history"}


# --- who can reach what -------------------------------------------------------------------------


JOB = '{"entrypoint": "id > /tmp/ray/run_by_a_neighbour"}'


POST = """
import sys, urllib.error, urllib.request
_, url, body = sys.argv
request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    print(direct.open(request, timeout=5).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print("000")
"""
"""A program that prints the status of a POST, 000 where nobody answers."""


def submit_a_job(
    exposed: Exposure, port: int = EnginePorts().services["dashboard-agent-listen-port"]
) -> str:
    """Ask a node's Ray to run a command, as the neighbour can; the HTTP status, 000 without one."""
    url = f"http://{FABRIC_ADDRESS}:{port}/api/job_agent/jobs/"
    return exposed.neighbour.run([sys.executable, "-I", "-c", POST, url, JOB]).strip()


def test_a_neighbour_reaches_the_endpoint_and_nothing_else(spark1, spark2):
    with exposure(spark1, spark2) as seen:
        assert {(node, port) for node, _, port in seen.open()} == {("spark1", 8000)}
        assert submit_a_job(seen) == "000"
    # The peer does reach it, over the fabric.
    ask = ["bash", "-c", f"exec 3<>/dev/tcp/{FABRIC_ADDRESS}/{EnginePorts().gcs}"]
    spark2.run(ask)


def test_rays_token_is_nowhere_to_be_read(user, spark1, spark2):
    token = spark1.run(["cat", TOKEN_FILE]).stdout
    assert len(bytes.fromhex(token)) == 32
    look = (
        "docker inspect $(docker ps -q); ps axww; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; "
        "for c in $(docker ps -q); do docker logs $c 2>&1; done; journalctl -q --no-pager"
    )
    where = "/var/lib/spark-cluster /var/lib/docker/containers /var/log /etc /tmp /home /root"
    for node in (spark1, spark2):
        told = node.run(["sh", "-c", look], check=False).stdout
        assert "RAY_AUTH_TOKEN_PATH=/run/secrets/ray-token" in told
        assert token not in told
        found = node.ssh(f"sudo grep -rlF -f - {where}", stdin=token + "\n").stdout.split()
        assert TOKEN_FILE in found
        for path in found:
            assert path.startswith("/var/lib/spark-cluster/secrets/spark-")
            assert node.run(["stat", "-c", "%a %U", path]).stdout == "600 root\n"
    assert token not in "".join(p.read_text() for p in (user.home / "state").rglob("*.jsonl"))
    assert token not in user("logs", "--tail", "4000").printed


def test_a_container_has_little_of_the_node(spark1, spark2):
    """Tried by the same program as in a unit, in each container that has the GPU."""
    program = Path(hostile.__file__).read_text()
    for node, name in ((spark1, "spark-vllm"), (spark1, "spark-ray"), (spark2, "spark-ray")):
        argv = ["docker", "exec", name, "python3", "-c", program, "/run/docker.sock"]
        seen = json.loads(node.run(argv).stdout)
        assert seen["uid"] == 0
        assert int(seen["status"]["CapBnd"], 16) == 1 << 1 | 1 << 14, "DAC_OVERRIDE and IPC_LOCK"
        assert seen["status"]["NoNewPrivs"] == "1"
        assert seen["connected"] == seen["roots"] == []
        assert not seen["namespaces"]
        assert not {"systemd", "sshd", "dockerd"} & set(seen["processes"])
        config = json.loads(node.run(["docker", "inspect", name]).stdout)[0]["HostConfig"]
        assert config["PidMode"] != "host"
        assert not config["Privileged"]


def test_a_container_writes_the_caches_of_its_image_only(user, spark1):
    """It has its model to read, and what it leaves in its caches leads root nowhere."""
    image = spark1.run(["docker", "inspect", "-f", "{{.Image}}", "spark-ray"]).stdout.strip()
    own = f"{CACHE_ROOT}/images/{short(image)}"
    written = "/srv/models/paris/config.json"
    for command in (f"echo x >> {written}", f"rm {written}", "ls /srv/models | grep -v paris"):
        assert spark1.run(
            ["docker", "exec", "spark-ray", "sh", "-c", command], check=False
        ).returncode
    plant = (
        f"cd {CACHE_ROOT} && echo left > mine && rm -rf triton vllm-x && ln -s /etc triton && "
        "ln -s /root vllm-x && mkfifo fifo"
    )
    spark1.run(["docker", "exec", "spark-ray", "sh", "-c", plant])
    assert spark1.run(["cat", f"{own}/mine"]).stdout == "left\n"
    assert spark1.run(["ls", CACHE_ROOT]).stdout.split() == ["images"]
    before = spark1.run(["stat", "-c", "%a %u %Y", "/etc", "/root"]).stdout
    listed = [part["path"] for part in user.json("caches", "list")["parts"]]
    assert not any(path.endswith("triton") for path in listed), "a link is not an entry"
    assert user.json("up", "--tp", "2")["changed"] == 0
    user("caches", "prune", "--older-than", "0", "--kind", "triton", "--apply")
    assert spark1.run(["stat", "-c", "%a %u %Y", "/etc", "/root"]).stdout == before
    spark1.run(["sh", "-c", f"cd {own} && rm -f mine triton vllm-x fifo"])


def test_a_firewall_that_someone_flushed_is_reported_and_restored(user, spark1, spark2):
    spark1.run(["nft", "flush", "ruleset"])
    with exposure(spark1, spark2) as seen:
        reached = {program for _, program, _ in seen.open(spark1)}
        assert {"gcs_server", "raylet"} <= reached, "the scan sees what is open"
        assert submit_a_job(seen) == "401", "and Ray still asks for its token"
    told = user.json("status", status=5)["problems"]
    assert told == ["the firewall of the engine's ports on spark1: it is not in force"]
    checks = user.json("doctor", "--only", "serving.firewall", status=5)["checks"]
    assert [c["status"] for c in checks] == ["fail", "ok"]
    ran = user.json("doctor", "--probe", "--only", "network.open-ports", status=5)
    (finding,) = ran["checks"]
    assert "spark1 6379 (gcs_server)" in finding["found"]
    assert user.json("up", "--tp", "2")["changed"] == 1
    assert user.verdicts()["change"] == {"spark1 NftTable:spark_cluster"}
    assert user.json("status")["state"] == "serving"
    (finding,) = user.json("doctor", "--probe", "--only", "network.open-ports")["checks"]
    assert "gcs_server" not in finding["found"]


def test_whatever_is_done_to_nftables_the_ports_stay_closed(user, spark1, spark2):
    """Each of these flushes every table."""
    for verb in ("start", "reload", "restart", "stop"):
        spark1.run(["systemctl", verb, "nftables"])
        assert "spark_cluster" in spark1.run(["nft", "list", "tables"]).stdout, verb
        assert user.json("status")["state"] == "serving", verb
    with exposure(spark1, spark2) as seen:
        assert submit_a_job(seen) == "000"


# --- broken and repaired ------------------------------------------------------------------------


def test_drift_is_repaired_and_nothing_else(user, story, spark1, spark2):
    spark1.run(["chmod", "700", CACHE_ROOT])
    spark2.run(["chmod", "644", NETPLAN])
    drifted = {f"spark1 Directory:{CACHE_ROOT}", f"spark2 Netplan:{NETPLAN}"}
    user("up", "--tp", "2", "--check", "--exit-code", status=10)
    assert user.verdicts()["change"] == drifted
    document = user.json("up", "--tp", "2")
    assert document["changed"] == len(drifted)
    assert user.verdicts()["change"] == drifted
    assert "Paris" in document["answer"]
    now = {**containers(spark1), "worker": containers(spark2)["spark-ray"]}
    assert now == story.containers, "it went on serving"


def test_killed_worker_is_said_and_repaired(user, spark2, detected):
    with detected("worker-killed") as fault:
        spark2.run(["docker", "kill", "spark-ray"])
        problems = until(lambda: user.status()["problems"], what="status says that it is wrong")
        fault.said_in("\n".join(problems))
    assert user.status()["state"] in ("failed", "degraded")
    said = user("status", status=5).out
    assert "Ray's container on spark2 is exited" in said
    assert "spark-cluster -i lab up repairs it" in said
    repaired = user.json("up", "--tp", "2")
    assert repaired["changed"] > 0
    assert "Paris" in repaired["answer"]
    assert "Paris" in complete()
    assert user.json("status")["state"] == "serving"


# --- one node, a key, TLS ---------------------------------------------------------------------


def test_switch_to_one_node_with_a_key(user, keyed, story, spark1, spark2):
    # With the differences shown and the events told, so that a leak has every chance.
    ran = keyed("-v", "up", "--tp", "1", "--diff", "--json")
    assert "Paris" in ran.document["answer"]
    assert ran.document["endpoint"] == f"{URL}/v1"
    assert ran.document["access"] == {"api_key": True, "tls": None}
    assert KEY not in ran.printed
    assert set(containers(spark1)) == {"spark-vllm"}
    assert containers(spark2) == {}
    assert KEY not in "".join(p.read_text() for p in (user.home / "state").rglob("*.jsonl"))
    again = keyed.json("up", "--tp", "1")
    assert again["changed"] == 0
    found = keyed.json("status")
    assert (found["state"], found["endpoint"]) == ("serving", f"{URL}/v1")
    assert "reached from the network, with the API key" in keyed("status").out
    story.containers = containers(spark1)


def test_up_at_once_after_the_engine_died(keyed, story, spark1):
    """Its API goes on for a while: `up` took its end for a fault of what was started."""
    spark1.run(["pkill", "-KILL", "-f", "VLLM::EngineCor"])
    assert "Paris" in keyed.json("up", "--tp", "1")["answer"]
    assert keyed.json("status")["state"] == "serving"
    story.containers = containers(spark1)


def test_one_node_alone_opens_nothing_but_the_endpoint(spark1, spark2):
    """vLLM's own processes meet on a port of the kernel's choice, in some versions on all
    addresses."""
    assert "spark_cluster" in spark1.run(["nft", "list", "tables"]).stdout
    assert "spark_cluster" not in spark2.run(["nft", "list", "tables"]).stdout
    only_the_endpoint(spark1, spark2)


def operations(node: LabNode) -> list[tuple[str, str]]:
    """(method, path) of all that vLLM itself says it serves, and of what it does not list."""
    fetch = (
        "import urllib.request as u\n"
        "print(u.urlopen('http://127.0.0.1:18000/openapi.json', timeout=60).read().decode())\n"
    )
    paths = json.loads(node.ssh(["python3", "-c", fetch]).stdout)["paths"]
    found = {
        (method.upper(), re.sub(r"\{[^}]*\}", "x", path))
        for path, methods in paths.items()
        for method in methods
    }
    unlisted = ("/metrics", "/docs", "/openapi.json", "/redoc", "/", "/nothing/there")
    return sorted(found | {("GET", path) for path in unlisted})


def asked(method: str, path: str, key: str = "", body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body, asked for from this machine."""
    connection = http.client.HTTPConnection("10.89.0.11", 8000, timeout=120)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= {"Content-Type": "application/json"} if body is not None else {}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_every_path_of_vllm_asks_for_the_key(keyed, spark1):
    known = operations(spark1)
    listed = {path for _, path in known}
    assert {"/v1/models", "/v1/chat/completions", "/tokenize", "/invocations"} <= listed
    assert len(known) > 20
    for method, path in known:
        # What is no JSON starts nothing, whatever the path would do.
        body = b"no JSON" if method == "POST" else None
        if (method, path) != ("GET", "/health"):
            for key in ("", "sk-wrong"):
                status, said = asked(method, path, key, body)
                assert status == 401, (method, path, key, said)
            assert json.loads(said)["error"]["code"] == "invalid_api_key"
        status, said = asked(method, path, KEY, body)
        assert status not in (401, 403, 502, 503, 504), (method, path, said)
    assert asked("GET", "/health") == (200, b"")
    assert asked("GET", "/v1/models", KEY)[0] == 200


def test_vllm_itself_is_not_reached_and_no_other_proxy_runs(keyed, spark1):
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("10.89.0.11", 18000), timeout=60)
    assert spark1.run(["systemctl", "is-active", "haproxy"], check=False).stdout == "inactive\n"
    assert spark1.run(["systemctl", "is-enabled", "haproxy"], check=False).stdout == "masked\n"


def test_the_key_is_nowhere_to_be_read(keyed, spark1):
    where = "/var/lib/spark-cluster /var/lib/docker/containers /var/log /etc /run /tmp /home /root"
    grep = f"sudo grep -rslF -f - {where} || true"
    assert spark1.ssh(grep, stdin=KEY + "\n").stdout.split() == []
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    where = where.replace(" /run", "")  # systemd's copy for the unit
    found = spark1.ssh(f"sudo grep -rsliF -f - {where} || true", stdin=digest + "\n").stdout.split()
    assert found == ["/etc/spark-cluster/endpoint/api-keys"]
    assert spark1.run(["stat", "-c", "%a %U", found[0]]).stdout == "600 root\n"
    look = (
        "docker inspect spark-vllm; docker logs spark-vllm 2>&1; ps axww; "
        "cat /proc/[0-9]*/cmdline; journalctl -q --no-pager; cat /proc/[0-9]*/environ"
    )
    told = spark1.run(["sh", "-c", look], check=False).stdout
    assert "/srv/models/paris" in told
    assert KEY not in told
    assert "VLLM_API_KEY" not in told
    assert KEY not in keyed("logs").printed
    owner = spark1.run(["ps", "-o", "user=", "-C", "haproxy"]).stdout.split()
    assert owner
    assert "root" not in owner


def test_a_named_key_is_taken_and_revoked_while_the_proxy_runs(keyed, story, spark1):
    show = ["systemctl", "show", "-P", "MainPID", "spark-cluster-endpoint"]
    before = spark1.run(show).stdout
    key = keyed.json(*readme.words("spark-cluster keys add NAME", {"NAME": "alice"}))["key"]
    assert asked("GET", "/v1/models", key)[0] == 200
    assert [one["in_force"] for one in keyed.json("keys", "list")["keys"]] == [True]
    journal = ["journalctl", "-q", "--no-pager", "-u", "spark-cluster-endpoint", "-n", "50"]
    until(lambda: "key=alice GET /v1/models status=200" in spark1.run(journal).stdout, 60)
    assert keyed.json("keys", "revoke", "alice")["revoked"]
    assert asked("GET", "/v1/models", key)[0] == 401
    assert (spark1.run(show).stdout, containers(spark1)) == (before, story.containers)


def test_another_key_and_tls_without_loading_the_model_again(keyed, secured, story, spark1):
    document = secured.json("up", "--tp", "1")
    assert document["endpoint"] == "https://10.89.0.11:8000/v1"
    assert "Paris" in document["answer"]
    assert containers(spark1) == story.containers, "vLLM goes on as it was"
    shown = document["access"]["certificate_sha256"]
    certificate = ssl.get_server_certificate(("10.89.0.11", 8000), timeout=60)
    presented = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
    assert shown == presented
    said = secured("status").out
    assert ":".join(shown[i : i + 2] for i in range(0, 64, 2)).upper() in said
    assert "https://10.89.0.11:8000/v1" in said
    # Who trusts it, as a user would: by its name and address, with nothing switched off.
    trusting = ssl.create_default_context(cadata=certificate)
    request = urllib.request.Request(
        "https://10.89.0.11:8000/v1/models", headers={"Authorization": f"Bearer {OTHER_KEY}"}
    )
    with urllib.request.urlopen(request, timeout=60, context=trusting) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(request, timeout=60)
    request.add_header("Authorization", f"Bearer {KEY}")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=60, context=trusting)
    assert keyed.json("status", status=5)["state"] == "failed"
    again = secured.json("up", "--tp", "1")
    assert (again["changed"], again["access"]["certificate_sha256"]) == (0, shown)
    file = "/etc/spark-cluster/endpoint/self-signed.pem"
    assert spark1.run(["stat", "-c", "%a %U", file]).stdout == "600 root\n"


def test_on_the_loopback_the_network_does_not_reach_it(user):
    local = served(user, "local", KEY, bind="loopback")
    document = local.json("up", "--tp", "1")
    assert document["endpoint"] == "http://127.0.0.1:8000/v1"
    assert "Paris" in document["answer"]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("10.89.0.11", 8000), timeout=60)


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
    for node in (spark1, spark2):
        assert not list((node.root / "var/lib/spark-cluster/secrets").glob("*/*"))
        assert "spark_cluster" not in node.run(["nft", "list", "tables"]).stdout
        units = node.root / "etc/systemd/system"
        assert not (units / "spark-cluster-firewall.service").exists()
        assert not (units / "nftables.service.d/spark-cluster.conf").exists()
    unit = "spark-cluster-endpoint.service"
    assert spark1.run(["systemctl", "is-active", unit], check=False).stdout == "inactive\n"
    assert not (spark1.root / "etc/systemd/system" / unit).exists()
    left = sorted(p.name for p in (spark1.root / "etc/spark-cluster/endpoint").iterdir())
    assert left == ["named-keys", "self-signed.pem"], "both are in force after the next `up`"
    again = user.json("down")
    assert again["changed"] == 0
    stopped = user.json("status")
    assert stopped["state"] == "stopped"
