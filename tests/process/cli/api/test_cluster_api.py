"""`Cluster` as a program uses it: what it opens, returns, raises, and leaves alone."""

from __future__ import annotations

import ast
import gc
import json
import signal
import sys
from pathlib import Path

import pytest
from factories import put
from json_schema import document as fits
from program import run as command

import spark_cluster
from spark_cluster import Allowances, Cluster, Options, Selection
from spark_cluster.cli.serving import texts
from spark_cluster.config.launch import read_overrides
from spark_cluster.errors import InvalidFile, Refused, Unreachable, UsageError
from spark_cluster.importers.vllm_flags import kinds

LOST = "nodes: {spark1: {address: 10.0.0.1, roles: [head]}, lost: {address: 10.0.0.2}}\n"


def test_a_playbook(cluster: Cluster, project: Path) -> None:
    first = cluster.playbook("mine")
    assert (first.ok, first.result) == (True, ["spark1", "spark2"])
    assert first.run.changed == 4
    assert first.nodes["spark2"].change == 2
    assert (project / "spark2/srv/a").read_text() == "1"
    fits("playbook", json.dumps(first.to_dict()))
    assert (project / f"state/spark-cluster/runs/{first.run.id}.jsonl").exists()
    assert cluster.playbook("mine").run.changed == 0


def test_a_selection_that_chooses_nothing(cluster: Cluster) -> None:
    nothing = Options(selection=Selection(tags=frozenset({"nothing"})))
    with pytest.raises(UsageError, match="--tags nothing: nothing in this run has that") as caught:
        cluster.playbook("mine", options=nothing)
    assert caught.value.hint.startswith("there are: ")


def test_a_misspelt_tag_is_refused_before_a_right_one_changes_anything(cluster, project) -> None:
    wrong = Options(selection=Selection(tags=frozenset({"playbook", "contaners"})))
    with pytest.raises(UsageError, match="--tags contaners: nothing in this run") as caught:
        cluster.playbook("mine", options=wrong)
    assert "containers" in caught.value.hint
    assert not (project / "spark1/srv").exists()


@pytest.mark.parametrize("tags", ["('own',)", "(f'o{chr(119)}n',)"])
def test_tags_of_a_playbook_of_ones_own_are_known(cluster, project, tags) -> None:
    apply = f"play.apply(play.nodes, [File('/a', content='1', tags={tags})])"
    text = f"from spark_cluster.resources import File\ndef main(play):\n    {apply}\n"
    put(project / "playbooks/own.py", text)
    cluster.playbook("own", options=Options(selection=Selection(tags=frozenset({"own"}))))
    assert (project / "spark1/a").exists()


def test_it_prints_nothing_and_leaves_the_process_alone(cluster, capfd, monkeypatch) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    frozen, interval = gc.get_freeze_count(), sys.getswitchinterval()
    monkeypatch.setattr(sys, "setswitchinterval", lambda _s: pytest.fail("it is the user's"))
    cluster.playbook("mine")
    assert capfd.readouterr() == ("", "")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert (gc.get_freeze_count(), sys.getswitchinterval()) == (frozen, interval)


def test_a_node_that_is_not_reached_is_in_the_result(project: Path) -> None:
    put(project / "inventory.yaml", LOST)
    cluster = Cluster(project=project)
    found = cluster.playbook("mine")
    assert (found.ok, found.run.ok, found.result) == (False, False, ["spark1"])
    assert list(found.errors) == ["lost"]
    with pytest.raises(Unreachable, match="no answer"):
        found.raise_for_errors()
    asked = cluster.ping()
    assert asked.nodes["spark1"].rtt_ms > 0
    assert (asked.ok, list(asked.errors)) == (False, ["lost"])
    for kind, result in (("playbook", found), ("ping", asked)):
        fits(kind, json.dumps(result.to_dict()))


@pytest.mark.parametrize("head", ["spark1", "lost"])
def test_down_stops_what_it_reaches_and_ends_with_the_error_of_the_other(project, head) -> None:
    nodes = {name: {"address": f"{name}.local"} for name in ("spark1", "lost")}
    nodes[head]["roles"] = ["head"]
    put(project / "inventory.yaml", json.dumps({"nodes": nodes}))
    absent = "#!/bin/sh\necho 'Error: No such container: x' >&2\nexit 1\n"
    put(project / "spark1/usr/local/bin/docker", absent, 0o755)
    put(project / "spark1/usr/local/bin/nvidia-smi", "#!/bin/sh\n", 0o755)
    put(project / "spark1/var/lib/spark-cluster/ray/token", "x")
    with pytest.raises(Unreachable, match="no answer") as caught:
        Cluster(project=project).down()
    assert caught.value.where == "lost"
    assert not (project / "spark1/var/lib/spark-cluster/ray").exists()


def test_a_question_after_a_run_is_not_asked_through_its_display(cluster: Cluster) -> None:
    with cluster.play("ask", cluster.nodes, change=False):
        cluster.prompts.around = pytest.fail
    with cluster.prompts.around():
        pass


def test_facts_are_what_the_command_prints(cluster: Cluster, project: Path) -> None:
    printed = json.loads(command("facts", "--json", cwd=project).stdout)
    found = json.loads(json.dumps(cluster.facts().to_dict(), default=str))
    for node in (*printed["nodes"], *found["nodes"]):
        assert node.pop("disk_free_bytes") > 0, "it changes meanwhile"
    assert found == printed


def test_vram(cluster: Cluster, project: Path) -> None:
    script = "#!/bin/sh\necho 17, VLLM::EngineCore, 900\n"
    for name in ("spark1", "spark2"):
        put(project / name / "usr/local/bin/nvidia-smi", script, 0o755)
    found = cluster.vram()
    assert [(one.name, one.used_mib) for one in found.nodes] == [("spark1", 900), ("spark2", 900)]
    fits("vram", json.dumps(found.to_dict()))


def test_addresses_instead_of_an_inventory(project: Path) -> None:
    cluster = Cluster(["192.168.177.5", "me@spark-b.local"], project=project)
    first, second = cluster.nodes
    assert [(n.name, n.address, n.user) for n in (first, second)] == [
        ("spark1", "192.168.177.5", None),
        ("spark2", "spark-b.local", "me"),
    ]
    assert (first.is_head, second.is_head) == (True, False)
    assert all(first.address.rpartition(".")[0] not in str(net) for net in cluster.inventory.pool)
    assert [n.name for n in Cluster(["a", "b"], limit="spark2").nodes] == ["spark2"]


@pytest.mark.parametrize(
    ("addresses", "error", "message"),
    [
        ([], UsageError, "addresses of the nodes: found none"),
        (["a", "a"], UsageError, "found a, a"),
        (["two words"], InvalidFile, "nodes.spark1.address"),
        (["me@"], InvalidFile, "nodes.spark1.address"),
    ],
)
def test_addresses_that_are_none(project, addresses, error, message) -> None:
    with pytest.raises(error, match=message):
        _ = Cluster(addresses, project=project).nodes


def test_what_cannot_be_is_refused_before_a_node_is_asked(project: Path) -> None:
    put(project / "inventory.yaml", "nodes: {a: {address: 127.0.0.1, port: 1, roles: [head]}}\n")
    cluster = Cluster(project=project)
    with pytest.raises(Refused, match="needs 2 nodes"):
        cluster.up("gemma4-31b-nvfp4", tp=2, allow=Allowances(venv=True))
    with pytest.raises(UsageError, match="max-num-seq"):
        cluster.up("gemma4-31b-nvfp4", overrides={"max-num-seq": 2})
    with pytest.raises(UsageError, match="no recipe is given"):
        cluster.up()
    with pytest.raises(UsageError, match="holds a run already"):
        cluster.bench("dual", out=put(project / "r/run.json", "{}").parent)


def test_no_inventory(project: Path) -> None:
    (project / "inventory.yaml").unlink()
    with pytest.raises(InvalidFile, match="no such inventory"):
        Cluster(project=project).ping()
    with pytest.raises(UsageError, match=r"the project folder .* does not exist"):
        Cluster(project=project / "nowhere").ping()


def test_a_port_stands_in_place_of_the_inventorys(project: Path) -> None:
    put(project / "inventory.yaml", f"{LOST}serve: {{api_key: {{env: K}}, engine_port: 18000}}\n")
    serve = Cluster(project=project, port=9000).inventory.serve
    assert (serve.port, serve.engine_port) == (9000, 18000)


def test_a_closed_cluster_does_nothing_more(cluster: Cluster) -> None:
    with cluster as opened:
        assert opened.ping().ok
    with pytest.raises(UsageError, match="this Cluster is closed"):
        cluster.ping()


def test_overrides_are_those_of_the_command_line() -> None:
    given = texts({"max-model-len": "32k", "enforce-eager": True, "env.A": "1", "image.ref": None})
    assert given == ("max-model-len=32k", "enforce-eager=true", "env.A=1", "image.ref=")
    assert read_overrides(given, "vllm", kinds("vllm")) == {
        "max-model-len": 32000, "enforce-eager": True, "env.A": "1", "image.ref": None,
    }  # fmt: skip
    assert texts(("a=1", "a=2")) == ("a=1", "a=2")


def test_importing_the_package_imports_nothing() -> None:
    """It travels to the nodes; the names of the API are imported when they are asked for."""
    (source,) = map(Path, [spark_cluster.__file__])
    statements = [type(node) for node in ast.parse(source.read_text()).body]
    assert ast.Import not in statements
    assert ast.ImportFrom not in statements
    assert {name: getattr(spark_cluster, name) for name in spark_cluster.__all__}
    with pytest.raises(AttributeError, match="no attribute 'Clutser'"):
        _ = spark_cluster.Clutser  # type: ignore[attr-defined]


def test_what_a_playbook_returns_is_written_whatever_it_is(cluster: Cluster, project: Path) -> None:
    code = (
        "from pathlib import Path\n\n\n"
        "def main(play):\n"
        "    found = {'file': Path('/a'), 'bytes': b'\\xff'}\n"
        "    return {**found, 'kind': Path, 'each': (1, {'b': None})}\n"
    )
    put(project / "playbooks/odd.py", code)
    found = json.loads(json.dumps(cluster.playbook("odd").to_dict()))["result"]
    assert (found["file"], found["bytes"]) == ("/a", r"b'\xff'")
    assert (found["kind"], found["each"]) == ("<class 'pathlib.Path'>", [1, {"b": None}])
