"""Commands of `setup` on real agents, one after another in one process."""

from pathlib import Path

import pytest

from spark_cluster import Cluster
from spark_cluster.cli import cli
from spark_cluster.cli.app import App
from spark_cluster.cli.setup_flow import Asker, Flow, StepFailed, model

PLAYBOOK = """\
from spark_cluster.resources import File


def main(play):
    play.apply(play.nodes, [File("/motd", content="NAME")])
"""


@pytest.fixture
def flow(project: Path) -> Flow:
    (project / "inventory.yaml").write_text(
        "nodes: {spark1: {address: a, roles: [head]}, spark2: {address: b}}\n"
    )
    for name in ("one", "two"):
        (project / f"{name}.py").write_text(PLAYBOOK.replace("NAME", name))
    return Flow(cli, App(Cluster(project=project)), Asker(yes=True))


def test_one_command_after_another_each_with_its_own_run(flow, project, capsys):
    with flow.step("provision", "make them ready") as step:
        flow.run(step, "playbook", "one.py")
        flow.run(step, "playbook", "two.py")
        flow.run(step, "playbook", "two.py")
    for node in ("spark1", "spark2"):
        assert (project / node / "motd").read_text() == "two"
    shown = capsys.readouterr().out
    assert shown.count("$ spark-cluster") == 3
    records = list((project / "state/spark-cluster/runs").glob("*.jsonl"))
    assert len(records) == 3, "each command is a run of its own"


def test_what_a_command_would_change_is_asked_without_a_word(flow, project, capsys):
    found = flow.document("playbook", "one.py", "--check")
    assert found["changed"] == 2
    assert not (project / "spark1/motd").exists()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_an_inventory_that_is_the_users_own_keeps_its_recipe(flow, project, capsys):
    before = (project / "inventory.yaml").read_text()
    with flow.step("model", "what to serve") as step:
        chosen = model(flow, step, "gpt-oss-20b", None, None)
    assert chosen == ["--recipe", "gpt-oss-20b"]
    assert "`serve: {recipe: gpt-oss-20b}`" in " ".join(capsys.readouterr().out.split())
    assert (project / "inventory.yaml").read_text() == before


def test_a_node_that_is_lost_stops_the_step(flow, project, capsys):
    (project / "inventory.yaml").write_text(
        "nodes: {spark1: {address: a, roles: [head]}, lost: {address: b}}\n"
    )
    with pytest.raises(StepFailed) as stopped, flow.step("up", "serve it") as step:
        flow.run(step, "playbook", "one.py")
    assert stopped.value.status == 3
    assert "switch it on" in capsys.readouterr().out
    assert flow.document("playbook", "one.py", "--check") is None
