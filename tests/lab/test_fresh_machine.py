"""The lab's commands on a machine that has none of the programs that the lab calls.

Programs are hidden by a PATH with nothing but an apt-get of the test's own. What is there of the
machine's networks is hidden too, so that a lab that is up meanwhile is neither seen nor touched.
"""

from __future__ import annotations

import ast
import os
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_cluster.cli.lab import command
from spark_cluster.errors import Failed, UsageError
from spark_cluster.lab import cgroup, machine, network
from spark_cluster.lab.artefact import Artefact
from spark_cluster.lab.build_progress import BuildProgress

PACKAGE = Path(machine.__file__).parent
ALWAYS_THERE = {"apt-get", "apt-config", "chroot", "cp", "sync", "systemctl"}
"""apt is asked for by name where it is missing; chroot, cp and sync are coreutils, which is
essential; systemctl is looked for."""
APT = """#!/bin/sh
echo "apt-get $*" >> {log}
case "$1" in
  indextargets) echo "http://mirror.invalid/debian bookworm" ;;
  install) echo "E: no network here" >&2; exit 100 ;;
esac
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without tools; what apt-get was asked is in the file that this returns."""
    log = tmp_path / "apt.log"
    log.touch()
    folder = tmp_path / "bin"
    folder.mkdir()
    apt = folder / "apt-get"
    apt.write_text(APT.format(log=log))
    apt.chmod(0o755)
    (folder / "apt-config").symlink_to(shutil.which("true") or "/bin/true")
    for name in ("netns", "net", "cgroup"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("SPARK_CLUSTER_LAB", str(tmp_path / "lab"))
    monkeypatch.setattr(machine, "SYSTEM_PATH", str(folder))
    monkeypatch.setattr(network, "NETNS", tmp_path / "netns")
    monkeypatch.setattr(network, "SYS_NET", tmp_path / "net")
    monkeypatch.setattr(cgroup, "TREE", tmp_path / "cgroup")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        "platform.freedesktop_os_release",
        lambda: {"ID": "debian", "VERSION_CODENAME": "bookworm"},
    )
    return log


def invoke(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def test_status_and_down_answer_down(bare: Path) -> None:
    status = invoke("status")
    assert status.exit_code == 0, status.output
    assert status.output.startswith("lab: down")
    assert invoke("down").output.strip() == "the lab was down already"
    assert "install" not in bare.read_text()


@pytest.mark.parametrize("words", [("up",), ("up", "--fresh"), ("prepare",), ("tools",)])
def test_what_needs_the_tools_installs_them_first(bare: Path, words: tuple[str, ...]) -> None:
    error = invoke(*words).exception
    assert isinstance(error, Failed)
    assert "apt-get install" in error.message
    assert "no network here" in error.message
    asked = [line for line in bare.read_text().splitlines() if "indextargets" not in line]
    assert asked[0].startswith("apt-get update")
    wanted = set(asked[1].split()) - {"apt-get", "install"}
    assert {"mmdebstrap", "systemd-container", "iptables", "iproute2"} <= wanted


@pytest.mark.parametrize(
    "words", [("ssh", "spark1"), ("reset", "spark1"), ("break", "mtu"), ("mend",)]
)
def test_what_needs_a_node_says_that_the_lab_is_down(bare: Path, words: tuple[str, ...]) -> None:
    result = invoke(*words)
    if words == ("mend",):
        assert result.output.strip() == "nothing was broken"
    else:
        assert isinstance(result.exception, UsageError), result.output
    assert "install" not in bare.read_text()


def test_the_packages_can_be_listed(bare: Path) -> None:
    listed = invoke("tools", "--tests", "--list").output.split()
    assert {"openssh-server", "mmdebstrap"} <= set(listed)


def test_every_program_of_the_lab_is_in_the_list() -> None:
    """Whatever the lab's modules run on this machine is installed, or always there."""
    called = {name for path in sorted(PACKAGE.glob("*.py")) for name in programs(path.read_text())}
    assert {"ip", "mmdebstrap", "iptables"} <= called  # it does find them
    assert called - set(machine.TOOLS) - ALWAYS_THERE == set()


def programs(source: str) -> set[str]:
    """First words of the argument lists in a module that go to `run` or `output`, or are built
    up in a variable."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        calls = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if calls and node.func.id in ("run", "output") and node.args:
            found |= first_word(node.args[0])
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            found |= first_word(node.value) if named(node) & {"command", "argv", "words"} else set()
    return found


def named(node: ast.AnnAssign | ast.Assign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def first_word(value: ast.expr) -> set[str]:
    if isinstance(value, ast.List) and value.elts and isinstance(value.elts[0], ast.Constant):
        return {str(value.elts[0].value)}
    return set()


def test_progress_of_a_build_says_what_how_much_and_how_long(tmp_path: Path) -> None:
    thing = Artefact(tmp_path, "thing", "recipe", lambda _: None, usual_s=100, usual_mb=200)
    small = Artefact(tmp_path, "small", "recipe", lambda _: None, usual_s=20, usual_mb=1)
    now = [0.0]
    said: list[str] = []
    progress = BuildProgress([thing, small], said.append, clock=lambda: now[0])
    assert progress.headline() == (
        "building once what the nodes are booted from: thing, small "
        "(201 MB; about 2 min on two quiet cores)"
    )
    thing.unfinished.mkdir()
    with (thing.unfinished / "half").open("wb") as file:
        file.truncate(100_000_000)
    now[0] = 30.0
    assert progress.line().startswith("thing 100 MB of about 200 MB, about ")
    first = progress.left_s()
    now[0] = 300.0  # a slow machine: the estimate follows it
    assert progress.left_s() > first
    thing.unfinished.rename(thing.path)
    small.unfinished.mkdir()
    assert progress.line().startswith("small, about ")


def test_progress_is_shown_while_a_build_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_cluster.lab.build_progress.INTERVAL_S", 0.01)
    thing = Artefact(tmp_path, "thing", "recipe", lambda _: None, usual_s=1, usual_mb=1)
    thing.unfinished.mkdir()
    seen, shown = [], threading.Event()

    def say(text: str) -> None:
        seen.append(text)
        if text.startswith("thing"):
            shown.set()

    with BuildProgress([thing], say).shown():
        assert shown.wait(120)
