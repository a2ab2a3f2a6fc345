"""The end of `up`: what it leaves on the screen, as the picture of the documentation has it."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import readme
from factories import put

Run = Callable[..., tuple[int, str, str]]

INVENTORY = """\
nodes:
  spark1: {address: spark1.example, roles: [head]}
serve: {recipe: lab-paris}
"""

PLAYBOOK = """\
from dataclasses import replace
from cases import cases
from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import vram
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.result import Served, VerifiedServer
from spark_cluster.engine.vram import NodeVram
from spark_cluster.runner.events import Result

RUN = cases({file!r}, "up_end.toml")

def reading(*used):
    return [
        NodeVram(f"spark{{n}}", (GpuProcess(pid, "ray::RayWorkerProc.run", mib),), 124610, 117636)
        for n, pid, mib in zip((1, 2), (2693, 1560), used)
    ]

def main(play, *, deployment, **given):
    for stage, changed in RUN["stages"].items():
        with play.stage(stage):
            for node, resource, seconds, changes in changed:
                play.bus.emit(Result(node, "role", resource, "change", seconds, changes))
    empty = [NodeVram(f"spark{{n}}", (), 124610, 117636) for n in (1, 2)]
    held, loaded = reading(533, 535), reading(547, 549)
    phases = ("before", empty), ("loading", reading(528, 530)), ("ready", held)
    for phase, readings in (*phases, ("under_load", loaded)):
        vram.record(play.bus, phase, readings)
    endpoint = Endpoint({host!r}, 8000, {model!r}{more})
    deployment = replace(deployment, endpoint=endpoint)
    part = VerifiedServer(deployment.first, "Paris", RUN["versions"])
    return Served(deployment, (part,), [], held, held, under_load=loaded)
"""


@pytest.fixture
def up(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what `up` prints of a verified endpoint."""

    monkeypatch.setenv("COLUMNS", "80")

    def up(host="192.0.2.11", model="paris", more="", inventory="mine") -> str:
        put(project / f"inventories/{inventory}.yaml", INVENTORY)
        put(
            project / "playbooks/up.py",
            PLAYBOOK.format(host=host, model=model, more=more, file=__file__),
        )
        status, out, err = run("-i", inventory, "up", "--tp", "1")
        assert status == 0, err
        return out

    return up


def request(out: str) -> list[str]:
    """Return the words of the request to copy; none where there is none."""
    _, _, rest = out.partition("\nto ask it:\n")
    return shlex.split(rest.partition("\n\n")[0])


def test_it_says_how_to_ask_and_what_comes_next(up):
    out = up()
    words = request(out)
    assert words[0] == "curl"
    assert "http://192.0.2.11:8000/v1/chat/completions" in words
    asked = json.loads(words[-1])
    assert asked["model"] == "paris"
    assert "capital of France" in asked["messages"][0]["content"], "the recipe's own question"
    for command in ("clients", "tunnel", "verify", "dashboard"):
        assert f"\nspark-cluster -i mine {command} " in out


def test_an_endpoint_on_the_heads_loopback_is_asked_through_a_tunnel(up):
    out = up("127.0.0.1", inventory="other place")
    tunnel = "spark-cluster -i 'other place' tunnel"
    assert f"bound to the head's loopback; from here: {tunnel}\n" in out
    assert "http://127.0.0.1:8000/v1/chat/completions" in request(out)


def test_a_key_is_named_by_its_variable(up):
    words = request(up(more=", api_key='sk-secret'"))
    assert words[:3] == ["printf", "Authorization: Bearer %s", "$SPARK_API_KEY"]
    assert "sk-secret" not in " ".join(words)


@pytest.mark.parametrize("given", [{"more": ", tls='self-signed'"}, {"model": "org/$(x)"}])
def test_what_only_clients_can_write_is_left_to_it(up, given):
    """A certificate has to be saved first; a model's name may mean something to a shell."""
    out = up(**given)
    assert request(out) == []
    assert "\nspark-cluster -i mine clients " in out


def test_the_picture_of_up_is_what_comes_out(up):
    """The recorded figures, shown once more: no line of the picture is one of an older version."""
    out = up("10.89.0.11", inventory="lab")
    assert not readme.unlike(readme.picture("up"), out)
    older = ["  spark1  changed Image:spark-vllm:lab  absent → present", "✔ load"]
    assert readme.unlike(older, out) == older
