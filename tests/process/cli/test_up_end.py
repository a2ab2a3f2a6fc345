"""The end of `up`: what it leaves on the screen, as the picture of the documentation has it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import put

Run = Callable[..., tuple[int, str, str]]

INVENTORY = """\
nodes:
  spark1: {address: spark1.example, roles: [head]}
serve: {recipe: lab-paris}
"""

PLAYBOOK = """\
from dataclasses import replace
from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import vram
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.result import Served, VerifiedServer
from spark_cluster.engine.vram import NodeVram

def main(play, *, deployment, **given):
    held = [NodeVram("spark1", (GpuProcess(2693, "ray::RayWorkerProc.run", 533),), 124610, 117636)]
    with play.stage("load"):
        for phase in ("before", "loading", "ready", "under_load"):
            vram.record(play.bus, phase, held)
    endpoint = Endpoint({host!r}, 8000, {model!r}{more})
    deployment = replace(deployment, endpoint=endpoint)
    part = VerifiedServer(deployment.first, "Paris", {{"vllm": "0.32.0"}})
    return Served(deployment, (part,), [], held, held, under_load=held)
"""


@pytest.fixture
def up(run: Run, project: Path) -> Callable[..., str]:
    """Return what `up` prints of a verified endpoint."""

    def up(host: str = "192.0.2.11", model: str = "paris", more: str = "") -> str:
        put(project / "inventory.yaml", INVENTORY)
        put(project / "playbooks/up.py", PLAYBOOK.format(host=host, model=model, more=more))
        status, out, err = run("up", "--tp", "1", "--recipe", "lab-paris")
        assert status == 0, err
        return out

    return up


def request(out: str) -> list[str]:
    """Return the words of the request to copy; none where there is none."""
    _, _, rest = out.partition("\nto ask it:\n")
    return shlex.split(rest.partition("\n\n")[0])


def test_it_says_how_to_ask_and_what_comes_next(up: Callable[..., str]) -> None:
    out = up()
    words = request(out)
    assert words[0] == "curl"
    assert "http://192.0.2.11:8000/v1/chat/completions" in words
    asked = json.loads(words[-1])
    assert asked["model"] == "paris"
    assert "capital of France" in asked["messages"][0]["content"], "the recipe's own question"
    for command in ("clients", "tunnel", "verify", "dashboard"):
        assert f"\nspark-cluster {command} " in out


def test_an_endpoint_on_the_heads_loopback_is_asked_through_a_tunnel(
    up: Callable[..., str],
) -> None:
    out = up("127.0.0.1")
    assert "bound to the head's loopback; from here: spark-cluster tunnel\n" in out
    assert "http://127.0.0.1:8000/v1/chat/completions" in request(out)


def test_a_key_is_named_by_its_variable(up: Callable[..., str]) -> None:
    words = request(up(more=", api_key='sk-secret'"))
    assert words[:3] == ["printf", "Authorization: Bearer %s", "$SPARK_API_KEY"]
    assert "sk-secret" not in " ".join(words)


@pytest.mark.parametrize("given", [{"more": ", tls='self-signed'"}, {"model": "org/$(x)"}])
def test_what_only_clients_can_write_is_left_to_it(
    up: Callable[..., str], given: dict[str, str]
) -> None:
    """A certificate has to be saved first; a model's name may mean something to a shell."""
    out = up(**given)
    assert request(out) == []
    assert "\nspark-cluster clients " in out


def test_commands_to_copy_are_about_the_same_nodes(
    up: Callable[..., str], run: Run, project: Path
) -> None:
    up()
    put(project / "other place/nodes.yaml", (project / "inventory.yaml").read_text())
    status, out, _ = run("-i", "other place/nodes.yaml", "up", "--tp", "1")
    assert status == 0
    assert "\nspark-cluster -i 'other place/nodes.yaml' clients " in out
