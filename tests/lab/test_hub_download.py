"""A model from the hub, by the real `hf` in a real container; the hub is a small server on the node
that holds a file back until it is told to go on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from commandline import CommandLine, until

from spark_cluster_lab import Lab, LabNode

pytestmark = pytest.mark.lab

TOKEN = "hf_LabTokenThatNobodyMayRead"
PORT = 9797
HUB = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOME, COMMIT, FILE = Path("/run/lab-hub"), "a" * 40, b'{"model_type": "llama"}'
ABOUT = {"id": "org/m", "modelId": "org/m", "sha": COMMIT, "private": False,
         "siblings": [{"rfilename": "config.json"}]}
TREE = [{"type": "file", "path": "config.json", "size": len(FILE), "oid": "b" * 40}]


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        with (HOME / "seen").open("a") as out:
            print(self.command, self.path, self.headers.get("Authorization"), file=out)
        if self.path.startswith("/api/models/"):
            data = json.dumps(TREE if "/tree/" in self.path else ABOUT).encode()
        else:
            data = FILE
            while body and not (HOME / "go").exists():
                time.sleep(0.1)
        self.send_response(200)
        for name, value in (("Content-Length", len(data)), ("Content-Type", "application/json"),
                            ("ETag", f'"{"b" * 40}"'), ("X-Repo-Commit", COMMIT)):
            self.send_header(name, str(value))
        self.end_headers()
        if body:
            self.wfile.write(data)


ThreadingHTTPServer(("127.0.0.1", PORT), Hub).serve_forever()
"""
PLAY = """
def main(play):
    images = play.role("images", ref="spark-vllm:lab", archive="/srv/images/spark-vllm.tar")
    models = play.role(
        "models", name="org/m", path="/srv/models/hub", image="spark-vllm:lab",
        mounts=("/opt/vllm:/opt/vllm:ro",), endpoint="http://127.0.0.1:PORT",
        download_timeout_s=LIMIT,
    )
    play.apply(play.head, "containers", images, models)
"""
IN_SIGHT = """
token=/run/lab-hub/token
cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | grep -aoFf $token && exit 1
docker ps -aq | xargs -r docker inspect | grep -Ff $token && exit 1
grep -rlFf $token /var/lib/docker/containers /var/lib/spark-cluster /etc /srv && exit 1
journalctl --no-pager | grep -Ff $token && exit 1
exit 0
"""


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A user with a hub token, and a hub on the first node."""
    node = lab.node("spark1")
    node.reset()
    node.run(["mkdir", "-p", "/run/lab-hub"])
    node.run(["sh", "-c", f"echo {TOKEN} > /run/lab-hub/token"])
    (node.root / "root/hub.py").write_text(HUB.replace("PORT", str(PORT)))
    node.run(["systemd-run", "--unit=lab-hub", "--collect", "python3", "/root/hub.py"])
    home = tmp_path_factory.mktemp("user")
    yield CommandLine(home).with_environment(HF_TOKEN=TOKEN)
    node.reset()


def play(user: CommandLine, limit: float = 600) -> str:
    return user.playbook(PLAY.replace("PORT", str(PORT)).replace("LIMIT", str(limit)))


def downloads(node: LabNode) -> list[str]:
    """Containers that download, running or not."""
    names = node.run(["docker", "ps", "-a", "--format", "{{.Names}}"]).stdout.split()
    return [name for name in names if name.startswith("spark-download-")]


def at_work(node: LabNode) -> bool:
    """The hub was asked for the file, and has not given it yet."""
    seen = node.run(["cat", "/run/lab-hub/seen"], check=False).stdout
    return "GET /org/m/resolve/" in seen


def test_a_download_that_takes_longer_than_the_laptop_stays(
    user: CommandLine, spark1: LabNode
) -> None:
    first = user.start("playbook", play(user))
    until(lambda: at_work(spark1), 180, "hf asks for the file")

    seen = spark1.run(["cat", "/run/lab-hub/seen"]).stdout
    assert f"Bearer {TOKEN}" in seen  # it does have the token
    found = spark1.run(["sh", "-c", IN_SIGHT], check=False)
    assert found.returncode == 0, found.stdout  # and nobody else
    (name,) = downloads(spark1)
    mounts = json.loads(spark1.run(["docker", "inspect", name]).stdout)[0]["HostConfig"]["Mounts"]
    path = next(m["Source"] for m in mounts if m["Target"] == "/run/secrets/hub-token")
    assert spark1.run(["stat", "-c", "%a %u", path]).stdout.split() == ["600", "0"]
    assert spark1.run(["stat", "-f", "-c", "%T", path]).stdout.strip() == "tmpfs"

    first.interrupt()
    first.end(status=130)
    assert downloads(spark1) == [name]  # it goes on
    second = user.start("playbook", play(user))
    until(lambda: "still running" in user.record.read_text(), 60, "the next run finds it")
    spark1.run(["touch", "/run/lab-hub/go"])
    second.end(status=0, timeout=120)
    assert spark1.run(["cat", "/srv/models/hub/.complete"]).stdout == "org/m@main\n"
    assert "llama" in spark1.run(["cat", "/srv/models/hub/config.json"]).stdout
    assert downloads(spark1) == []
    assert spark1.run(["sh", "-c", "ls -A /run/spark-cluster-downloads"]).stdout == ""
    # One download: the second run waited for the first one's.
    seen = spark1.run(["cat", "/run/lab-hub/seen"]).stdout
    assert seen.count("GET /org/m/resolve/") == 1
    assert user.json("playbook", play(user))["changed"] == 0


@pytest.mark.soak
def test_at_its_limit_a_download_ends_with_its_container(
    user: CommandLine, spark1: LabNode
) -> None:
    spark1.run(["sh", "-c", "rm -rf /run/lab-hub/go /run/lab-hub/seen /srv/models/hub"])
    ran = user("playbook", play(user, limit=12), status=1)
    assert "not done after 12 s" in ran.printed
    assert at_work(spark1)
    until(lambda: downloads(spark1) == [], 60, "its container is gone")
    assert spark1.run(["sh", "-c", "ls -A /run/spark-cluster-downloads"]).stdout == ""
    assert not (spark1.root / "srv/models/hub/.complete").exists()
