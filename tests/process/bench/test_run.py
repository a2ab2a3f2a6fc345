"""A run's record: what is measured is kept, in order, and never measured twice."""

import json
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_runs import begun, suite_of
from cases import each_row
from factories import make_node, make_recipe
from serve_plans import inventory_of

from spark_cluster.bench.expansion import Step, expand, result
from spark_cluster.bench.on_node import EndedCell
from spark_cluster.bench.record import NodeRecord, Setup, load_record
from spark_cluster.bench.references import predictions
from spark_cluster.bench.sequence import on_loopback
from spark_cluster.bench.steps import BenchRun, plan_of, results_of
from spark_cluster.bench.suite import Suite
from spark_cluster.config.project import Project
from spark_cluster.config.topology import Link
from spark_cluster.engine import tool_checks
from spark_cluster.engine.resolve import resolve
from spark_cluster.errors import InvalidFile


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def made(folder: Path, **suite: Any) -> BenchRun:
    given = suite_of(prompt=[8, 16], **suite)
    return begun(given, folder, expand(given))


def test_results_are_in_the_suites_order_and_the_first_one_stays(tmp_path):
    run = made(tmp_path)
    first, second = run.expansion.cells
    run.add([result(second, reasons=["cut"])])
    run.add([result(first), result(second)])
    assert [cell.id for cell in run.record.cells] == [first.id, second.id]
    assert run.record.cells[1].reason == "cut"
    assert run.pending == []
    assert load_record(tmp_path) == run.record


def test_a_run_is_the_same_after_it_was_read_again(tmp_path):
    run = made(tmp_path, depth=[0, 4096], tp=[1, 2])
    run.add([result(run.expansion.cells[0])])
    run.add_round_trip(0.042)
    run.add_round_trip(None)
    read = load_record(tmp_path)
    assert read.round_trip_ms == 0.042
    again = BenchRun(read, Suite.model_validate_json(read.suite_text), run.expansion, tmp_path)
    assert expand(again.suite).cells == run.expansion.cells
    assert [step.setup.id for step in again.pending] == [s.setup.id for s in run.expansion.steps]
    folders = [run.on_node(step) for step in run.expansion.steps]
    assert len(set(folders)) == len(folders)


def left_out(step: Step) -> dict[str, str]:
    """The cells that cannot be measured, with the reason."""
    return {cell.id: cell.skip for cell in step.cells if cell.skip}


@each_row(__file__, "measurable.json", "suites")
def test_what_cannot_be_measured_has_a_reason(engine, suite, why):
    """A replica behind the endpoint has one node."""
    recipe = make_recipe("gemma4-31b-fp8", engine=engine)
    found = expand(suite_of(**suite), {"r": recipe})
    (step,) = found.steps
    assert set(left_out(step)) == ({cell.id for cell in step.cells} if why else set())
    assert all(why in reason for reason in left_out(step).values())


def test_the_record_says_which_vllm_measured(tmp_path):
    run = made(tmp_path, tool="vllm-bench", request_rate=[1])
    for version in ("", "0.32.0", "0.32.0", "0.31.1", ""):
        run.add_version(version)
    assert (run.record.tool.name, run.record.tool.version) == ("vllm-bench", "0.31.1, 0.32.0")
    plain = made(tmp_path / "plain")
    plain.add_version("0.32.0")
    assert plain.record.tool.version == "0.4.0"
    asked = made(tmp_path / "asked", kind="tool_call", questions=["one"])
    asked.add_version("0.32.0")
    assert asked.record.tool.version == tool_checks.VERSION
    assert asked.record.tool.settings["questions"] == ["one"]


def test_the_plan_predicts_cells_with_one_request(project):
    suite = suite_of(prompt=[2048], depth=[0, 8192], concurrency=[1, 4], tp=[1, 2])
    found = expand(suite, {"r": make_recipe("gemma4-31b-fp8")})
    by_size = {}
    for setup in found.setups:
        keys = [cell.key for cell in found.cells if cell.setup == setup.id]
        told = predictions(project, setup, keys)
        assert len(told) == 2 * 3, "two depths, three figures, and none for several requests"
        assert all(0 < one.low < one.value < one.high for one in told)
        by_size[setup.tp] = {(one.metric, one.key.depth): one.value for one in told}
    assert by_size[2]["tg_tps", 0] > by_size[1]["tg_tps", 0]
    assert by_size[1]["tg_tps", 8192] < by_size[1]["tg_tps", 0]
    assert by_size[1]["ttfr_ms", 8192] > by_size[1]["ttfr_ms", 0]


def test_replicas_are_measured_through_the_endpoint_in_front_of_them(tmp_path):
    """The user's own endpoint is open to the network, with a key."""
    link = Link("enp1s0f1np1", IPv4Interface("192.168.177.12/24"))
    second = replace(make_node("spark2", head=False, address="10.0.0.2"), links=(link,))
    nodes = [make_node("spark1"), second]
    opened = inventory_of(*nodes, bind="management", open=True)
    given = suite_of(tool="vllm-bench", concurrency=[3], replicas=2)
    run = begun(given, tmp_path, expand(given, {"r": make_recipe()}))
    (step,) = run.expansion.steps
    resolved = resolve(make_recipe(), opened, nodes, 1, replicas=2)
    assert not resolved.endpoint.url.startswith("http://127.0.0.1:8000/")
    deployment = replace(resolved, endpoint=on_loopback(resolved.endpoint))
    play: Any = SimpleNamespace(head=nodes[0], inventory=opened)
    plan = plan_of(run, step, deployment, play)
    assert plan["health"] == tuple(
        f"http://{address}:18000/health" for address in ("127.0.0.1", second.fabric_ip)
    )
    (cell,) = plan["cells"]
    argv = cell["runs"][0]["argv"]
    assert argv[argv.index("--base-url") + 1] == "http://127.0.0.1:8000"
    assert argv[argv.index("--max-concurrency") + 1] == "3", "all of them at one endpoint"


def test_a_record_of_an_earlier_version_is_read(tmp_path):
    """Later fields (BIOS, round trip, logs of the start) are unknown in an old record."""
    run = made(tmp_path)
    run.add_setup(
        Setup(id="r-tp1", recipe="r", model="m", tp=1, nodes=("spark1",)),
        [NodeRecord(name="spark1", firmware="28.45.4028")],
    )
    told = json.loads((tmp_path / "run.json").read_text())
    del told["nodes"][0]["bios"], told["setups"][0]["logs"], told["round_trip_ms"]
    run.add([result(run.expansion.cells[0])])
    told["cells"] = json.loads((tmp_path / "run.json").read_text())["cells"]
    (tmp_path / "run.json").write_text(json.dumps(told))
    read = load_record(tmp_path)
    assert read == run.record
    assert (read.nodes[0].bios, read.round_trip_ms) == ("", None)


@pytest.mark.parametrize(
    "time", [1e300, -1e300, pytest.param(10**400, id="long"), float("nan"), True, "now"]
)
def test_times_that_no_clock_shows(tmp_path, time):
    """The output of a node's worker is untrusted input."""
    run = made(tmp_path)
    (step, *_) = run.expansion.steps
    told: dict[str, object] = {"status": 0, "started": time, "finished": time}
    (found,) = results_of(run, step.cells[0], EndedCell(told, {}, ()), tmp_path)
    assert (found.started, found.finished) == (None, None)


@pytest.mark.parametrize("id", ["", "..", "a/b", "../../etc", "/etc", "x" * 200])
def test_the_id_of_a_run_is_a_plain_name(tmp_path, id):
    """It names folders of the nodes, some of them root's; the record may be somebody else's."""
    run = made(tmp_path)
    record = run.record.model_copy(update={"id": id})
    with pytest.raises(InvalidFile, match="is not the id of a run"):
        BenchRun(record, run.suite, run.expansion, tmp_path)
