"""`supervise status`, `status` and `doctor`: what people see."""

import io
from types import SimpleNamespace
from typing import Any

import pytest

from spark_cluster.cli import doctor, served, up
from spark_cluster.cli.terminal import Console
from spark_cluster.doctor.examine import Diagnosis
from spark_cluster.doctor.observations import CheckResult
from spark_cluster.engine.result import NodeState, Status
from spark_cluster.engine.supervision import Supervision, SupervisionEvent
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.supervisor import SupervisionState


def shown(found: Supervision) -> str:
    out = io.StringIO()
    app: Any = SimpleNamespace(
        console=Console(file=out, width=200), command="spark-cluster -i lab {}".format
    )
    up._show_supervision(app, found)
    return out.getvalue()


def test_what_supervision_shows():
    state = SupervisionState(
        "waiting", reason="memory is still held by PID 7 [x] (9 MiB)", boot="b"
    )
    events = tuple(SupervisionEvent(float(n), f"event {n}") for n in range(20))
    text = shown(Supervision(True, "active", False, state, ("10.0.0.5 is gone",), events))
    assert "supervision: active, not started at boot (install --at-boot)" in text
    assert "server: waiting: memory is still held by PID 7 [x] (9 MiB)" in text
    assert "! 10.0.0.5 is gone" in text
    assert "event 19" in text
    assert "event 9\n" not in text, "the last ten"


def test_before_its_first_look_the_server_is_not_called_idle():
    text = shown(Supervision(True, "active", True, SupervisionState()))
    assert "server: not looked at yet" in text


def test_where_it_is_not_installed():
    found = Supervision(installed=False, active="inactive", at_boot=False, state=SupervisionState())
    assert "`spark-cluster -i lab supervise install`" in shown(found)


@pytest.mark.parametrize(("runtime", "heading"), [("venv", "unit"), ("docker", "container")])
def test_status_names_the_kind_and_heads_units_as_units(runtime, heading, capsys):
    nodes = [NodeState("gpu1", True, {"spark-vllm": ContainerState(runtime=runtime)})]
    found = Status("serving", nodes, [], "http://h/v1", None, "m", 1, (), "embedding")
    served._show_status(SimpleNamespace(console=Console()), found)  # type: ignore[arg-type]
    told = capsys.readouterr().out
    assert heading in told.split()
    assert "embedding, tp 1" in told


def result(id: str, node: str, found: str, status: str = "unknown") -> CheckResult:
    return CheckResult(id, node, status, found, f"{id} is well", "", "slow")  # type: ignore[arg-type]


@pytest.mark.parametrize("verbose", [False, True])
def test_doctor_says_one_reason_for_many_unknown_checks_once(verbose, capsys):
    results = (
        result("serving.docker", "a", "no daemon", "fail"),
        result("serving.hcas", "a", "no daemon"),
        result("serving.memlock", "a", "no daemon"),
        result("link.rate", "a", "no ethtool"),
        result("serving.hcas", "b", "hung"),
    )
    app: Any = SimpleNamespace(console=Console(width=200), verbose=verbose, started=0.0)
    doctor._show_findings(app, Diagnosis(results))
    told = capsys.readouterr().out
    assert told.count("no daemon") == (3 if verbose else 2)
    assert ("2 checks  a" in told) is not verbose
    assert ("not known: serving.hcas, serving.memlock\n" in told) is not verbose
    assert "not known: whether link.rate is well" in told
    assert "serving.hcas  b" in told
