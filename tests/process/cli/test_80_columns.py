"""Every command at a terminal of 80 columns: nothing beyond the edge, and no broken word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from cases import cases
from piped_cluster import Dials, Make, PipedCluster
from terminal import on_screen

from spark_cluster.cli import COMMANDS, ELSEWHERE, cli, clients, doctor, main, served, stored
from spark_cluster.cli.api import Cluster
from spark_cluster.cli.app import App
from spark_cluster.cli.served import vram_table
from spark_cluster.config.facts import GpuProcess
from spark_cluster.doctor.examine import Diagnosis
from spark_cluster.doctor.observations import CheckResult
from spark_cluster.engine.image_copies import StoredImage, StoredImages
from spark_cluster.engine.proxy import NamedKey
from spark_cluster.engine.verify import CheckVerdict, Verification
from spark_cluster.engine.vram import NodeVram
from spark_cluster.runner import dialer

COLUMNS = 80
LISTED = {"ls", "ps"}
"""What a fake Docker lists: nothing."""
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
LINES = cases(__file__, "lines.toml")["lines"]


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
    assert "...\n" not in text.partition("\nCommands:\n")[2], "a sentence is cut"


@pytest.fixture(scope="module")
def four_nodes(lasting_cluster: Make) -> PipedCluster:
    """Four nodes with long names."""
    made = lasting_cluster(*NODES, more="serve: {recipe: gemma4-31b-fp8}\n")
    made.play.connections.close()  # each command has its own
    for node in made.nodes.values():
        node.programs["docker"] = lambda words, stdin, kept=node.programs["docker"]: (
            "" if LISTED.intersection(words) else kept(words, stdin)
        )
    return made


@pytest.fixture
def cluster(
    four_nodes: PipedCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> PipedCluster:
    """The nodes as the command line reaches them."""
    monkeypatch.setattr(dialer, "Dialer", lambda *_: Dials(four_nodes.dial))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(four_nodes.project)
    return four_nodes


@pytest.mark.parametrize("line", LINES)
def test_output(line: str, cluster: PipedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes that are played run in this process and take its standard output for moments, in
    which a line of the screen can be lost: what is missing is looked for up to three times."""
    words = tuple(line.split())
    text, known = shown(monkeypatch, words), set[str]()
    for _ in range(3):
        known.update(shown(monkeypatch, words, 1000).split())
        if not (found := faults(text, known)):
            break
    assert not found, text


def test_every_command_is_looked_at() -> None:
    code = {"completion"}  # what it prints is a program
    live = {"top"}  # its node needs a driver: test_top_cli
    assert {line.split()[0] for line in (*LINES, *SHOWN)} - {"nosuch"} == set(COMMANDS) - {
        *ELSEWHERE, *code, *live}  # fmt: skip


def test_what_is_stopped_says_how_to_serve_and_what_is_not_known_is_not_none(
    cluster, monkeypatch
) -> None:
    assert "to serve: spark-cluster up\n" in shown(monkeypatch, ("status",))
    assert "None" not in shown(monkeypatch, ("facts",))


LONG = "ghcr.io/spark-arena/dgx-vllm-eugr-nightly-tf5-with-a-long-name:20260614-cuda13"
WHY = "the ranges overlap, so that what was measured decides; " * 3


def vram(name: str) -> NodeVram:
    process = GpuProcess(2388, "VLLM::Worker_TP0_EngineCore_of_a_long_name", 98_700, "gemma-4-31b")
    return NodeVram(name, (process,), 124_610, 20_832)


def verdict(status: Any) -> CheckVerdict:
    about = ("tool_call", "tool_call", "two tool calls in parallel", True, status)
    return CheckVerdict(*about, WHY, WHY, WHY, WHY, 1.2)


VRAM = [vram(name) for name in NODES]
SHOWN: dict[str, Callable[[App], object]] = {
    "vram": lambda app: app.console.print(vram_table(VRAM, VRAM, VRAM, VRAM)),
    "images": lambda app: stored._show_images(
        app,
        StoredImages(NODES[0], [StoredImage("sha256:" + "1" * 64, [LONG], [], 22_000_000_000,
                     "2026", ["spark-vllm"], ["gemma4-31b-fp8", "gemma4-31b-nvfp4"])]),
    ),
    "keys": lambda app: clients._show_keys(
        app, [NamedKey("alice-on-her-laptop-in-the-living-room", "2026-11-25", True, False)]
    ),
    "doctor": lambda app: doctor._show_findings(
        app,
        Diagnosis(tuple(
            CheckResult("memory.earlyoom-is-off", node, "fail", WHY, WHY, WHY, "slow",
                        cause=WHY, fix="spark-cluster provision --tags memory --limit NODE")
            for node in NODES
        )),
    ),
    "verify": lambda app: served._show_verification(
        app,
        Verification("m", "http://10.0.0.1:8000/v1", "gemma4-31b-fp8", 2, "chat",
                     tuple(map(verdict, ("ok", "failed", "not applicable", "not run")))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_results(name: str) -> None:
    def show(columns: int) -> str:
        with on_screen(columns) as screen:
            SHOWN[name](App(Cluster("lab")))
        return screen.close()

    text = show(COLUMNS)
    assert not faults(text, set(show(1000).split())), text


def test_a_fix_of_doctor_names_the_inventory() -> None:
    with on_screen(1000) as screen:
        SHOWN["doctor"](App(Cluster("lab")))
    assert "fix: spark-cluster -i lab provision --tags memory --limit NODE" in screen.close()
