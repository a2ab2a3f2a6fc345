"""Unit, against a systemctl that keeps real state in a file, and its file against the real one."""

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from spark_cluster.node.values import Secret
from spark_cluster.resources import Unit
from spark_cluster.resources import unit as module

FILE = "/etc/systemd/system/spark-vllm.service"
KEYS = "/var/lib/spark-cluster/secrets/spark-vllm"
SERVER = Unit(
    "spark-vllm",
    ("vllm", "serve", "/srv/models/m", "--json", '{"a": "$5 100%"}'),
    search_path=("/opt/vllm/bin",),
    env={"B": "two words", "A": 'a "quote" \\ %h'},
    mounts=("/srv/models:/srv/models:ro", "/var/lib/ray:/tmp/ray"),
    devices=("/dev/nvidia0", "char-nvidia*"),
    limits={"MEMLOCK": "infinity"},
    labels={"spark-cluster.tp": "1"},
)
SECRET = dataclasses.replace(SERVER, secret_files={"/run/secrets/env/KEY": Secret("hunter2")})


@pytest.fixture
def systemd(node, monkeypatch):
    node.install("systemd")
    monkeypatch.setattr(module, "STAYS_S", 0.0)
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    node.path("/srv/models").mkdir(parents=True)
    node.path("/etc/systemd/system").mkdir(parents=True)
    node.path("/var/lib/ray").mkdir(parents=True)
    return node


def unit(node, name="spark-vllm.service"):
    with node.state("systemd") as state:
        return state["units"][name]


@pytest.mark.parametrize("stays", [100.0, 0.0], ids=["while looked at", "after the last look"])
@pytest.mark.parametrize("restart", ["always", "no"])
def test_end_right_after_the_start_is_a_failure_with_its_log(systemd, restart, stays, monkeypatch):
    monkeypatch.setattr(module, "STAYS_S", stays)
    with systemd.state("systemd") as state:
        log = "ValueError: no such model\n"
        state["behaviour"] = {"spark-vllm.service": {"dies": True, "log": log, "status": 3}}
    result = systemd.apply(dataclasses.replace(SERVER, restart=restart))
    assert "unit spark-vllm ended right after its start with status 3" in result.error
    assert "ValueError: no such model" in result.error
    assert unit(systemd)["active"] == "inactive", "its restarts are ended"


def test_secrets_are_in_private_files_and_nowhere_else(systemd):
    result = systemd.apply(SECRET)
    (file,) = systemd.path(KEYS).iterdir()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("hunter2", 0o600)
    text = systemd.path(FILE).read_text()
    assert f'BindReadOnlyPaths="{KEYS}/{file.name}":"/run/secrets/env/KEY"' in text
    assert 'TemporaryFileSystem="/run/secrets/env:ro"' in text
    for place in (result.event, systemd.calls("systemd"), text):
        assert "hunter2" not in str(place)
    journal = systemd.path("/var/lib/spark-cluster/journal")
    assert not [f for f in journal.rglob("*") if f.is_file() and b"hunter2" in f.read_bytes()]
    assert systemd.apply(SECRET).verdict == "ok"
    other = dataclasses.replace(SERVER, secret_files={"/run/secrets/env/KEY": Secret("hunter3")})
    assert systemd.apply(other).verdict == "change"
    assert unit(systemd)["starts"] == 2


WHOLE = dataclasses.replace(
    SERVER,
    mounts=(*SERVER.mounts, "/srv/results:/srv/results"),
    secret_files={"/run/secrets/env/KEY": Secret("1"), "/run/secrets/ray-token": Secret("2")},
)


def test_the_file_is_as_it_was_reviewed():
    """It may write its mounts only, has the declared devices only and of /run its secrets only; its
    words are quoted as systemd reads them."""
    kept = Path(__file__).with_name("reviewed.service").read_text()
    assert WHOLE.text.partition("[X-Spark-Cluster]")[0] == kept


def test_the_file_says_what_was_declared():
    assert module.declared(SERVER.text.encode()) == {
        "command": list(SERVER.command),
        "env": dict(SERVER.env),
        "labels": {"spark-cluster.tp": "1"},
        "spec": SERVER.spec,
    }
    for nothing in (b"", b"Declared=[1]", b"Declared={", b"\xff"):
        assert module.declared(nothing) == {}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_itself_takes_the_file(tmp_path):
    file = tmp_path / "spark-vllm.service"
    file.write_text(WHOLE.text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "spark-vllm" in line]
    assert ours == []
