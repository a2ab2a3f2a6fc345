"""`swap` and `supervise` at the command line: what is refused, and what people see."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from factories import put
from program import invoke

from spark_cluster.cli import up
from spark_cluster.cli.terminal import Console
from spark_cluster.engine.supervision import Supervision, SupervisionEvent
from spark_cluster.errors import SparkClusterError, UsageError
from spark_cluster.node.supervisor import SupervisionState

INVENTORY = "nodes: {a: {address: 127.0.0.1, port: 1, roles: [head]}}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    put(tmp_path / "inventory.yaml", INVENTORY)
    monkeypatch.chdir(tmp_path)


def test_a_swap_takes_no_selection():
    error = invoke("swap", "gemma4-31b-nvfp4", "--tags", "vllm").exception
    assert isinstance(error, UsageError)
    assert "takes no selection of roles" in error.message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("no-such-recipe",), "no-such-recipe"),
        (("gemma4-31b-nvfp4", "--tp", "2"), "needs 2 nodes"),
        (("gemma4-31b-nvfp4", "-o", "max-num-seq=2"), "max-num-seq"),
    ],
)
def test_what_cannot_be_is_refused_before_a_node_is_asked(words, message):
    error = invoke("swap", *words).exception
    assert isinstance(error, SparkClusterError)
    assert message in str(error)


def test_what_is_unloaded_has_a_name():
    ran = invoke("down", "--unload", "comfyui")
    assert ran.exit_code == 2
    assert "'comfyui' is not 'ollama'" in ran.output


def shown(found: Supervision) -> str:
    out = io.StringIO()
    app: Any = SimpleNamespace(console=Console(file=out, width=200))
    up._show_supervision(app, found)
    return out.getvalue()


def test_what_supervision_shows():
    state = SupervisionState("waiting", reason="memory is still held by PID 7 [x] (9 MiB)")
    events = tuple(SupervisionEvent(float(n), f"event {n}") for n in range(20))
    text = shown(
        Supervision(
            installed=True,
            active="active",
            at_boot=False,
            state=state,
            problems=("10.0.0.5 is gone",),
            events=events,
        )
    )
    assert "supervision: active, not started at boot (install --at-boot)" in text
    assert "server: waiting: memory is still held by PID 7 [x] (9 MiB)" in text
    assert "! 10.0.0.5 is gone" in text
    assert "event 19" in text
    assert "event 9\n" not in text, "the last ten"


def test_where_it_is_not_installed():
    found = Supervision(installed=False, active="inactive", at_boot=False, state=SupervisionState())
    assert "`spark-cluster supervise install`" in shown(found)
