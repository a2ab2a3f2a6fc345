"""The Python API on booted nodes and real vLLM: from a run that is left to the memory of `down`."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import notebook
import pytest
import readme
from commandline import CHECKOUT, CommandLine
from example_pages import write_files
from json_schema import document as fits

from spark_cluster import Cluster, Options
from spark_cluster.errors import Interrupted
from spark_cluster.runner.events import RunFinished, StageStarted
from spark_cluster_lab import Lab
from spark_cluster_lab.layout import PASSWORD, USER

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def cluster(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The lab's nodes, as a program in a folder of its own opens them; nothing serves."""
    home = tmp_path_factory.mktemp("program")
    with pytest.MonkeyPatch.context() as patched, Cluster("lab", project=home) as made:
        patched.setenv("XDG_STATE_HOME", str(home / "state"))
        patched.setenv("HOME", str(home))
        made.down()
        yield made
        made.down()


def test_fabric_as_its_page_shows_it(lab, tmp_path):
    """The node asks for a password that is in a variable."""
    write_files("fabric.md", tmp_path)
    (tmp_path / "company-ca.crt").write_text("a certificate\n")
    user = CommandLine(tmp_path, environment={"PW": PASSWORD})
    asked = user.with_inventory("inventory", lambda d: d.update(become={"password": {"env": "PW"}}))
    for node in lab.nodes:
        node.run(["mv", f"/etc/sudoers.d/{USER}", f"/root/{USER}"])
        node.run(["usermod", "-aG", "sudo", USER])
    try:
        asked("playbook", "certificates.py")
    finally:
        for node in lab.nodes:
            node.run(["mv", f"/root/{USER}", f"/etc/sudoers.d/{USER}"])
            node.run(["gpasswd", "-d", USER, "sudo"])
    for node in lab.nodes:
        made = node.run(["stat", "-c", "%U %a", "/usr/local/share/ca-certificates/company-ca.crt"])
        assert made.stdout == "root 644\n"
    printed = subprocess.run(
        [sys.executable, "kernels.py"], check=True, capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, stdin=subprocess.DEVNULL,
    ).stdout  # fmt: skip
    kernel = os.uname().release
    assert {f"spark1 {kernel}", f"spark2 {kernel}"} <= set(printed.splitlines())
    assert printed.count("load average") == 2


def test_up_is_left_while_it_loads_and_done_again(cluster):
    with cluster.events(cluster.up, tp=1) as events:
        for event in events:
            if isinstance(event, StageStarted) and event.stage == "load":
                break
    with pytest.raises(Interrupted, match="interrupted"):
        events.result()
    stream = cluster.events(cluster.up, tp=1)
    *_, last = stream
    assert isinstance(last, RunFinished)
    found = stream.result()
    assert last.ok
    assert "Paris" in found.served.answer
    fits("up", json.dumps(found.to_dict()))
    assert cluster.up(tp=1).run.changed == 0
    assert cluster.status().state == "serving"
    assert [one.status for one in cluster.verify(only=("answer",)).verdicts] == ["ok"]
    assert [bool(node.processes) for node in cluster.vram().nodes] == [True, False]


def test_the_example_of_the_page(cluster, monkeypatch, capsys):
    """With the lab's inventory and recipe; what is up already is only verified."""
    monkeypatch.chdir(os.environ["HOME"])
    example = readme.blocks("python", "docs/how-to/python-api.md")[1]
    for theirs, here in (
        ('["192.168.1.10", "192.168.1.11"]', '"lab"'),
        ('"gemma4-31b-nvfp4", tp=2', "tp=1"),
    ):
        assert theirs in example
        example = example.replace(theirs, here)
    exec(example, {})
    assert "http://10.89.0.11:8000" in capsys.readouterr().out


def test_the_script_and_the_notebook(cluster, monkeypatch, capsys):
    """Both bring up what is up already, and verify it; the notebook takes it down."""
    monkeypatch.chdir(os.environ["HOME"])
    script = runpy.run_path(str(EXAMPLES / "serve.py"))
    assert script["main"](["--inventory", "lab", "--tp", "1", "--only", "answer"]) == 0
    said = capsys.readouterr().out
    assert "paris at http://10.89.0.11:8000" in said
    assert "ok       " in said
    left = notebook.run(EXAMPLES / "cluster.ipynb", cluster='Cluster("lab")', SERVE="True")
    assert "Paris" in left["served"].answer
    assert any(reading.processes for reading in left["stopped"].before)
    assert not any(reading.processes for reading in left["stopped"].now)


def test_down(cluster):
    assert cluster.down(options=Options(check=True)).stopped is None
    found = cluster.down()
    assert not any(reading.processes for reading in found.stopped.now)
    fits("down", json.dumps(found.to_dict()))
    assert cluster.status().state == "stopped"
