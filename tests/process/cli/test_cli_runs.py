"""Runs from the command line, on real agents over pipes: status, recap, JSON, errors."""

import json

import pytest
from cli_fixtures import FILES
from factories import TWO_NODES, put
from json_schema import document as fits


@pytest.fixture
def project(project):
    """With two nodes and a playbook."""
    put(project / "inventory.yaml", TWO_NODES)
    put(project / "playbooks/mine.py", FILES)
    return project


def test_a_playbook_by_name(run, project):
    status, out, _ = run("playbook", "mine")
    assert status == 0
    assert (project / "spark2/srv/a").read_text() == "1"
    assert "changed File:/srv/a" in out
    assert "files" in out
    recap = out[out.index("node ") :].splitlines()
    assert recap[1].split()[:3] == ["spark1", "0", "2"]
    (record,) = (project / "state/spark-cluster/runs").iterdir()
    events = [json.loads(line)["event"] for line in record.read_text().splitlines()]
    assert events[0] == "RunStarted"
    assert events[-1] == "RunFinished"
    assert events.count("Result") == 4
    status, out, _ = run("playbook", "mine")
    assert "changed File" not in out


def test_json_is_one_document_on_stdout(run):
    status, out, err = run("playbook", "mine", "--json")
    document = fits("playbook", out)
    assert status == 0
    assert document["ok"] is True
    assert document["changed"] == 4
    assert document["result"] == ["spark1", "spark2"]
    assert document["nodes"]["spark1"]["change"] == 2
    assert document["seconds"]["files"] <= document["seconds"]["total"]
    assert "changed" in err, "people can follow it on the other output"


def test_check_and_its_exit_code(run, project):
    status, out, _ = run("playbook", "mine", "--check", "--diff")
    assert status == 0
    assert "would change" in out
    assert "+1" in out
    assert not (project / "spark1/srv").exists()
    assert run("playbook", "mine", "--check", "--exit-code")[0] == 10
    assert run("playbook", "mine")[0] == 0
    assert run("playbook", "mine", "--check", "--exit-code")[0] == 0
