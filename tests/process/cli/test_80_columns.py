"""Every command at a terminal of 80 columns: nothing beyond the edge, and no broken word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fake_cluster import FakeCluster, LocalDialer, Make
from terminal import on_screen

from spark_cluster.cli import ELSEWHERE, cli, main
from spark_cluster.runner import dialer

COLUMNS = 80
NODES = ("spark-living-room-1", "spark-living-room-2", "spark-basement-10", "spark-basement-11")
COPIED = ("spark-cluster ", "curl ", "docker ", "systemctl ", "journalctl ", "`", "python -m ")
"""What is copied to a shell stays in one line, which the terminal breaks."""


def commands(group: click.Group, *before: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of a group and of every command below it."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        if not before and name in ELSEWHERE:
            continue
        yield (*before, name)
        found = group.get_command(ctx, name)
        if isinstance(found, click.Group):
            yield from commands(found, *before, name)


ALL = list(commands(cli))


def shown(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], columns: int = COLUMNS) -> str:
    """Return what a command leaves on a terminal."""
    monkeypatch.setattr("sys.argv", ["spark-cluster", *words])
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with on_screen(columns) as screen, pytest.raises(SystemExit):
        main()
    text = screen.close()
    assert "Traceback" not in text, text
    return text


def faults(text: str, words: set[str]) -> list[str]:
    """Return the lines that do not fit, with the reason.

    Args:
        words: those that the same command shows where there is room.
    """
    found = []
    for line in text.splitlines():
        told = re.sub(r"^\s*(?:\S ?\s|\S.{0,21}?  +)?", "", line)
        if len(line) > COLUMNS and " " in told and not told.startswith(COPIED):
            found.append(f"beyond the edge: {line}")
        if line != line.rstrip():
            found.append(f"ends in blanks: {line}")
        letters = [one for one in line.split() if re.fullmatch("[a-z]{2,}", one)]
        if broken := [one for one in letters if words and one not in words]:
            found.append(f"broken {broken}: {line}")
    return found


@pytest.mark.parametrize("words", [(), *ALL], ids=" ".join)
def test_help(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, (*words, "--help"))
    assert not faults(text, set()), text


LINES = (
    "status", "ping", "facts", "vram", "doctor", "history", "logs", "version", "clients",
    "models list", "models size", "caches list", "keys list",
    "supervise status", "ray status", "ray list", "up --check --offline", "up --tp 4",
    "provision --check", "down --check", "swap lab-paris --check", "revert 20260101", "plan",
    "plan gemma4-31b-fp8", "plan gemma4-31b-fp8 --for latency", "plan nosuch", "recipes list", "recipes show gemma4-31b-fp8", "recipes search qwen", "lint gemma4-31b-fp8",
    "lint nosuch", "predict gemma4-31b-fp8", "explain --about all", "explain --about gpu-dead",
    "explain inventory.yaml", "bench suites", "bench suites dual", "bench show nosuch",
    "tunnel --install --remove", "init --yes", "tune gemma4-31b-fp8",
    "playbook long", "exec -- echo words", "exec -- nosuch", "verify", "nosuch", "up --nosuch", "setup --check --yes",
    "trust --limit nosuch", "dashboard --port 99999",
)  # fmt: skip


@pytest.fixture(scope="module")
def four_nodes(lasting_cluster: Make) -> FakeCluster:
    """Four nodes with long names."""
    made = lasting_cluster(*NODES, more="serve: {recipe: gemma4-31b-fp8}\n")
    made.play.connections.close()  # each command has its own
    return made


@pytest.fixture
def cluster(
    four_nodes: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> FakeCluster:
    """The nodes as the command line reaches them."""
    monkeypatch.setattr(dialer, "Dialer", lambda *_: LocalDialer(four_nodes))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(four_nodes.project)
    return four_nodes


@pytest.mark.parametrize("line", LINES)
def test_output(line: str, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    words = tuple(line.split())
    text = shown(monkeypatch, words)
    wide = shown(monkeypatch, words, 1000)
    Path("/tmp/out80", line.replace("/", "_")).write_text(text + "\n=== wide\n" + wide)
    assert not faults(text, set(wide.split())), text
