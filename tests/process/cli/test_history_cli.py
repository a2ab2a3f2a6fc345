"""history and revert from the command line, on real agents over pipes."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from factories import TWO_NODES, put
from json_schema import document as fits

from spark_cluster.agent import revert as revert_module
from spark_cluster.cli.history import LeftAsIs, RevertedNode, _details, _show_reverted, described
from spark_cluster.cli.terminal import Console
from spark_cluster.node.host import Host
from spark_cluster.resources.netplan import Netplan

PLAYBOOK = """\
from spark_cluster.resources import Command, File

def main(play):
    play.apply(play.nodes, [File("/config", content="new\\n"), Command("flash it", ("true",))])
"""


@pytest.fixture
def project(project, monkeypatch):
    """With two nodes and a playbook."""
    monkeypatch.setenv("COLUMNS", "200")
    put(project / "inventory.yaml", TWO_NODES)
    put(project / "play.py", PLAYBOOK)
    return project


@pytest.fixture
def changed(run, tmp_path):
    """Both nodes were changed once; the run's id."""
    assert run("playbook", "play.py")[0] == 0
    (record,) = (tmp_path / "state/spark-cluster/runs").iterdir()
    return record.stem


def test_there_and_back(run, changed, tmp_path):
    _, out, _ = run("history")
    assert out.splitlines()[0].split() == ["run", "when", "spark1", "spark2", "who", "command"]
    assert changed in out
    assert out.count("2 changes") == 2
    (known,) = fits("history", run("history", "--json", "--node", "spark2")[1])["runs"]
    assert known["nodes"] == {"spark2": {"changes": 2, "paths": 1, "notes": []}}
    _, out, _ = run("history", changed)
    assert "/config: new file" in out
    assert "Command:flash it" in out
    shown = fits("history-run", run("history", changed[:15], "--json")[1])
    assert [e["action"] for e in shown["nodes"]["spark1"]["entries"]] == [
        *("file", "converged", "converged")
    ]

    assert run("revert", changed, "--check", "--exit-code")[0] == 10
    status, out, _ = run("revert", changed, "--check", "--diff")
    assert status == 0
    assert "would change File:/config" in out
    assert "-new" in out
    assert (tmp_path / "spark1/config").exists()
    status, out, _ = run("revert", changed)
    assert status == 0
    assert not (tmp_path / "spark1/config").exists()
    assert not (tmp_path / "spark2/config").exists()
    assert "not reverted" in out
    assert "Command:flash it  what it did stays  (spark1, spark2)" in out
    _, out, _ = run("history")
    assert "reverted by" in out
    assert out.count("1 file") == 2, "a revert changes files, by no resource"


def test_what_one_node_refuses_is_no_success(run, changed, project):
    (project / "spark1/config").write_text("mine\n")
    status, out, _ = run("revert", changed, "--json")
    document = fits("revert", out)
    assert (status, document["ok"]) == (1, False)
    assert "/config was changed since" in document["nodes"]["spark1"]["error"]


def test_a_node_that_is_away(run, changed, piped_nodes):
    piped_nodes["spark2"].away = 1
    status, out, err = run("history", "--json")
    assert status == 3
    document = fits("history", out)
    assert document["errors"]["spark2"]["message"] == "no answer"
    assert document["runs"][0]["nodes"].keys() == {"spark1"}
    assert "spark2: " in err


def test_step_by_step(run, tmp_path, monkeypatch):
    monkeypatch.setattr("spark_cluster.cli.options._can_ask", lambda *_args, **_options: None)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\nn\n"))
    status, out, _ = run("playbook", "play.py", "--step", "--limit", "spark1")
    assert status == 0
    assert out.count("change it?") == 2
    assert "spark1  File:/config  new" in out
    assert (tmp_path / "spark1/config").exists()
    assert out.splitlines()[-2].split() == ["spark1", "0", "1", "0", "0", "1"]
    monkeypatch.setattr("sys.stdin", io.StringIO("s\n"))
    status, _, err = run("playbook", "play.py", "--step", "--limit", "spark2")
    assert status == 1
    assert "stopped by the user before File:/config" in err
    assert "--start-at 'File:/config' continues there" in err


def test_a_revert_that_was_killed_is_shown_and_continued(run, tmp_path, monkeypatch):
    (tmp_path / "spark1").mkdir()
    (tmp_path / "spark1/config").write_text("old\n")
    run("playbook", "play.py", "--limit", "spark1")
    _, out, _ = run("history", "--json", "--limit", "spark1")
    changed = fits("history", out)["runs"][0]["run"]

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(revert_module, "_put", killed)
        host = Host(root=tmp_path / "spark1", run_id="killed-one")
        revert_module.revert(host, changed, lambda _: None)
    with (tmp_path / f"spark1/var/lib/spark-cluster/journal/{changed}/changes.jsonl").open(
        "a"
    ) as f:
        f.write('{"torn')
    _, out, _ = run("history", "--limit", "spark1")
    again = f"spark-cluster revert {changed} again"
    assert f"partly reverted by killed-one, which was killed: run {again}" in out
    torn = "one entry was torn by a crash before its change began; the others are whole"
    assert f"spark1: {torn}" in out
    assert torn in run("history", changed, "--limit", "spark1")[1]
    assert "began to revert what run" in run("history", "killed-one", "--limit", "spark1")[1]
    _, out, err = run("revert", changed, "--limit", "spark1", "--json")
    assert fits("revert", out)["nodes"]["spark1"]["continued"] == "killed-one"
    assert "continued run killed-one" in out + err
    assert torn in out + err
    assert (tmp_path / "spark1/config").read_text() == "old\n"
    assert "reverted by killed-one" in run("history", "--limit", "spark1")[1]


def test_an_entry_without_its_path_is_shown_by_its_resource():
    """What a node sends of its journal may be a lie; it is no traceback."""
    entry = {"action": "file", "resource": "File:/etc/x", "time": 1.0}
    (one,) = _details("r1", {"spark1": {"entries": [entry]}}, {}).nodes["spark1"].entries
    assert described(one).startswith("  File:/etc/x: ")


def test_what_a_revert_leaves_is_told_with_the_command_for_its_nodes(capsys):
    left = [LeftAsIs("Netplan:/etc/netplan/x.yaml", Netplan.reverts)]
    app: Any = SimpleNamespace(console=Console(width=400), show_recap=lambda: None)
    _show_reverted(app, {name: RevertedNode(left=left) for name in ("spark1", "spark2")})
    shown = capsys.readouterr().out
    assert "`spark-cluster exec -b -l spark1,spark2 -- netplan apply`" in shown
