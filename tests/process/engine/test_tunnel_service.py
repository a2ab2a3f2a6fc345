"""The tunnel as a systemd user service: its file, what systemctl is asked, what goes wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_cluster.engine import client_target
from spark_cluster.errors import Failed, UsageError

ARGV = ["/opt/python 3/bin/python", "-m", "spark_cluster", "--project", '/home/a/50%"x$y', "tunnel"]


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """`systemctl(status)`: a program of that name, which notes its arguments in `calls`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = tmp_path / "calls"

    def make(status=0):
        program = folder / "systemctl"
        script = f'echo "$*" >> {calls}\n'
        if status:
            script += f"echo 'Failed to connect to bus: No medium found' >&2\nexit {status}\n"
        program.write_text("#!/bin/sh\n" + script)
        program.chmod(0o755)
        return calls

    monkeypatch.setenv("PATH", str(folder))
    return make


def test_install_writes_the_unit_and_starts_it(systemctl, tmp_path):
    calls, folder = systemctl(), tmp_path / "config" / "systemd" / "user"
    path = client_target.install(folder, "spark1", ARGV)
    name = "spark-cluster-tunnel-spark1.service"
    assert path == folder / name
    assert calls.read_text().splitlines() == [
        "--user daemon-reload",
        f"--user enable {name}",
        f"--user restart {name}",
    ]
    assert '"/home/a/50%%\\"x$$y"' in path.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    path = tmp_path / client_target.unit_name("spark1")
    path.write_text(client_target.unit_text("spark1", [sys.executable, *ARGV[1:]]))
    argv = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert str(path) not in done.stderr
    assert path.name not in done.stderr


def test_without_systemd_or_its_session_the_reason_and_another_way_are_given(
    systemctl, tmp_path, monkeypatch
):
    systemctl(status=1)
    with pytest.raises(Failed, match="No medium found") as caught:
        client_target.install(tmp_path / "new", "spark1", ARGV)
    assert "login session" in caught.value.hint
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="systemd") as caught:
        client_target.install(tmp_path / "other", "spark1", ARGV)
    assert "launchd" in caught.value.hint
    assert not (tmp_path / "other").exists()


def test_a_control_character_is_refused():
    with pytest.raises(UsageError, match="control character"):
        client_target.unit_text("spark1", ["/bin/a\nb"])


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "/home/a/.config/systemd/user"),
        ({"XDG_CONFIG_HOME": "/conf"}, "/conf/systemd/user"),
        ({"XDG_CONFIG_HOME": "relative"}, "/home/a/.config/systemd/user"),
    ],
)
def test_the_folder_of_the_users_units(environment, expected):
    assert str(client_target.unit_folder(environment, Path("/home/a"))) == expected


def test_the_commands_of_the_service(systemctl, tmp_path, monkeypatch, capsys):
    from spark_cluster.cli import main

    systemctl()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yaml").write_text(
        "nodes: {spark1: {address: 10.0.0.1, roles: [head]}}\n"
    )
    for option in ("--install", "--remove"):
        words = ["tunnel", option, "--json", "--port", "8123", "--remote-port", "9000"]
        monkeypatch.setattr("sys.argv", ["spark-cluster", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        found = json.loads(capsys.readouterr().out)
        assert found["changed"]
        file = Path(found["file"])
        if option == "--install":
            words = f'"--project" "{tmp_path}" "tunnel" "--port" "8123" "--remote-port" "9000"'
            assert words in file.read_text()
        else:
            assert not file.exists()
            assert not client_target.remove(file.parent, "spark1"), "it is gone"
