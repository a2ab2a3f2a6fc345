"""Each check: what it says of healthy nodes, of sick ones, and of nodes that do not tell."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cases import cases, each_case, each_row
from doctor_cases import ALL_DOWN, NOT_SICK, SICK, SWAP, UNLIKE
from doctor_samples import (
    answer,
    environment,
    inspected,
    interface,
    interfaces,
    on_gpus,
    seen,
    with_env,
)
from hostile.agent import answers
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from spark_cluster.doctor import examine
from spark_cluster.doctor.observations import CheckResult, Observations, Probed
from spark_cluster.issues.entries import catalogue
from spark_cluster.node.containers import ContainerState, LogLine, moment, parse_state
from spark_cluster.resources import Unit

NODE = {check.id: check for check in examine.NODE}
PAIR = {check.id: check for check in examine.PAIR}
PROBES = {check.id: check for check in examine.PROBES}


def found(id: str, number: int = 1, **changes: Any) -> CheckResult:
    context = changes.pop("context", None)
    return NODE[id].result(
        seen(number, context=context, **changes),
        f"spark{number}",
        alone=bool(context) and not context.get("linked", True),
    )


@pytest.mark.parametrize(("id", "changes", "status", "words"), SICK)
def test_sick_nodes(id, changes, status, words):
    result = found(id, **changes)
    assert result.status == status, result
    assert words in result.found
    assert result.issue
    assert result.cause
    assert result.fix
    assert not re.search(r"NODE|PID|USER", result.fix), "it is known here"


@pytest.mark.parametrize(("id", "changes", "status", "words"), NOT_SICK)
def test_nodes_that_are_not_sick_or_tell_too_little(id, changes, status, words):
    result = found(id, **changes)
    assert result.status == status, result
    assert words in result.found


def test_a_fresh_healthy_pair_without_an_engine_gives_no_alarm():
    nothing = {"containers": "[]\n", "logs": "", "images": "", "versions": "", "apps": "",
               "holders": "", "models": "", "previous": ("", 1, "Data from the specified boot (-1) "
               "is not available: No such boot ID in journal"), "history": ("No history\n", 2),
               "load": "0, 208, 4.12, Not Active, Not Active, Not Active, Not Active"}  # fmt: skip
    nodes = [seen(number, **nothing) for number in (1, 2)]
    assert {f.id: f.found for f in examine.judge(nodes) if f.status != "ok"} == {}


@each_case(__file__, "earlyoom.json")
def test_free_swap_that_keeps_earlyoom_from_acting(case):
    """P08: earlyoom's limits are joined by AND, and GPU memory leaves swap free."""
    running = "/usr/bin/earlyoom\0-r\0" + "3600\0" + case["options"].replace(" ", "\0") + "\0"
    result = found("memory.earlyoom", earlyoom=running, swaps=SWAP)
    assert (result.status, case["words"] in result.found) == (case["status"], True), result
    assert found("memory.earlyoom", earlyoom=running).status == "ok", "there is no swap"


def test_one_spark_alone_needs_no_link():
    alone = {"linked": False}
    bare = {"hcas": ALL_DOWN, "containers": "[]", "logs": "", "apps": "", "holders": ""}
    node = seen(1, context=alone, **bare)
    assert {f.id: f.found for f in examine.judge([node]) if f.status != "ok"} == {}


def test_a_healthy_pair_gives_no_alarm():
    every = examine.judge([seen(1), seen(2)])
    assert {result.id: result.found for result in every if result.status != "ok"} == {}
    assert [result for result in every if not result.found or result.cause or result.fix] == []
    assert len(every) == 2 * len(examine.NODE) + len(examine.PAIR)
    assert "known" not in found("driver.known-bad").found, "neither to be bad nor to be good"


# --- nodes compared ----------------------------------------------------------------------------


@pytest.mark.parametrize(("id", "changes", "status", "words"), UNLIKE)
def test_nodes_that_are_not_alike(id, changes, status, words):
    result = PAIR[id].result([seen(1), seen(2, **changes)], "spark1+spark2")
    assert result.status == status, result
    assert words in result.found
    assert result.cause
    assert result.fix


def without_link(number: int) -> str:
    """`ip -j addr` while the cable is out: networkd takes the twins' addresses away."""
    rows = interfaces(number)
    return json.dumps([{**r, "addr_info": []} if "np" in r["ifname"] else r for r in rows])


def test_what_hangs_on_a_link_that_is_down_is_not_known():
    """The cable is what is wrong: neither the engine's address nor /etc/hosts is to blame."""
    address = found("serving.address", ip=without_link(1), hcas=ALL_DOWN)
    assert (address.status, address.fix) == ("unknown", "")
    assert "no interface of the link has an address" in address.found
    both = [seen(n, ip=without_link(n), hcas=ALL_DOWN) for n in (1, 2)]
    names = PAIR["pair.names"].result(both, "spark1+spark2")
    assert names.status == "unknown"
    assert "the link of spark1 is down" in names.found
    fresh = [seen(n, ip=without_link(n), hosts="127.0.0.1 localhost\n") for n in (1, 2)]
    assert PAIR["pair.names"].result(fresh, "spark1+spark2").status == "warn"
    lan = with_env(1, "spark-ray", VLLM_HOST_IP="192.168.1.163")
    assert found("serving.address", ip=without_link(1), containers=lan).status == "fail"


def test_the_same_arguments_in_another_order_are_the_same():
    words = ["serve", "/srv/models/gemma", "--enable-auto-tool-choice", "--headless"]
    words += ["--max-model-len=32768", "--tensor-parallel-size", "2", "--node-rank", "1"]
    rank = inspected(2, "spark-ray", Path="vllm", Args=words)
    result = PAIR["pair.engine-args"].result([seen(1), seen(2, containers=rank)], "x")
    assert result.status == "ok", result
    assert "2 ranks" in result.found


# --- what is not told -------------------------------------------------------------------------


def without(number: int, *sources: str) -> Any:
    """A node that did not answer some of what it was asked."""
    return seen(number, **dict.fromkeys(sources))


NEEDS = [(check.id, need) for check in examine.NODE for need in check.needs]
TOOL_OPTIONAL = {("system.tailscale-ssh", "tailscale")}  # not there means that all is well


@pytest.mark.parametrize(("id", "need"), [pair for pair in NEEDS if pair not in TOOL_OPTIONAL])
def test_without_what_it_needs_a_check_knows_nothing(id, need):
    result = NODE[id].result(without(1, need), "spark1")
    assert result.status == "unknown", result
    assert result.found


@pytest.mark.parametrize(
    ("id", "need"), [(check.id, need) for check in examine.PAIR for need in check.needs]
)
def test_nodes_of_which_one_does_not_tell(id, need):
    result = PAIR[id].result([seen(1), without(2, need)], "spark1+spark2")
    if (id, need) == ("pair.os", "dgx"):  # not there on another system than DGX OS
        assert result.status == "warn"
    else:
        assert result.status == "unknown", result


def test_versions_that_nothing_reports():
    result = PAIR["pair.ray-version"].result([seen(1), seen(2, versions="")], "spark1+spark2")
    assert result.status == "unknown"
    assert "spark2: nothing reports the versions of Ray and vLLM" in result.found


SOURCES = sorted({need for check in examine.NODE for need in check.needs})


@settings(max_examples=settings.default.max_examples // 3)
@given(missing=st.sets(st.sampled_from(SOURCES)))
def test_what_is_missing_never_makes_a_check_fail(missing):
    """A node that tells less can make a check say `unknown`, never find trouble that is not there;
    but Docker that is not there is worth a warning."""
    for result in examine.judge([without(1, *missing), seen(2)]):
        assert result.status in ("ok", "unknown", "warn"), result
        if result.status == "warn":
            assert result.id in ("pair.os", "serving.docker"), result


@settings(max_examples=min(4 * settings.default.max_examples, 2000))
@given(answers(answer(1)))
def test_whatever_the_tools_of_a_node_print_ends_no_examination(told):
    """Of a hostile node, too: what cannot be read is unknown, and the other node is judged."""
    hostile = dataclasses.replace(seen(1), answer=told)
    for result in examine.judge([hostile, seen(2)]):
        assert result.status in ("ok", "warn", "fail", "unknown")


JOURNAL = cases(__file__, "checks.toml")["journal"]
UNIT_OF_ONE = Unit("spark-vllm", ("vllm", "serve", "m"), labels={"spark-cluster.tp": "1"})
UNIT_STARTED = "Fri 2026-11-20 14:02:01.250000 UTC"


def in_venv(unit: Unit, journal: Any = JOURNAL) -> Observations:
    """The first node with a unit and its journal, as the agent answers, and without Docker."""
    node = seen(1, tools="systemctl\n", unit_logs=journal)
    known = f"ActiveState=active\nNRestarts=1\nExecMainStartTimestamp={UNIT_STARTED}\n"
    shown = {"status": 0, "stdout": unit.text + known, "stderr": ""}
    node.answer["commands"]["spark-vllm"] = shown  # type: ignore[index]
    return node


def test_the_journal_of_a_unit_is_read_like_a_containers_log():
    node = in_venv(UNIT_OF_ONE)
    assert [line.text for line in node.engines[0].log][2:] == [
        "Loading weights took 371.35 seconds",
        "INFO:     Application startup complete.",
    ]
    slow = NODE["serving.load-time"].result(node, "spark1")
    assert (slow.status, slow.found) == ("warn", "spark-vllm: 371 s")
    before = NODE["serving.gpu-dead"].result(node, "spark1")
    assert (before.status, "before its last start" in before.found) == ("warn", True)
    assert NODE["serving.image-arch"].result(node, "spark1").status == "ok"
    now = JOURNAL.replace("T14:01:58", "T14:02:01")
    after = NODE["serving.gpu-dead"].result(in_venv(UNIT_OF_ONE, now), "spark1")
    assert (after.status, "No CUDA GPUs" in after.found) == ("fail", True)


def test_a_journal_that_does_not_answer_is_no_empty_one():
    for journal in (None, ("", 1, "No journal files were found.")):
        result = NODE["serving.gpu-dead"].result(in_venv(UNIT_OF_ONE, journal), "spark1")
        assert (result.status, "journal of the engine's units" in result.found) == ("unknown", True)


def test_an_engine_in_a_virtual_environment_is_looked_at_like_a_container():
    """Its unit's file says what was declared; without Docker there are no containers."""
    unit = Unit(
        "spark-vllm",
        ("vllm", "serve", "m"),
        env={**environment(1), "VLLM_HOST_IP": "192.168.1.163"},
        labels={"spark-cluster.tp": "2"},
    )
    node = in_venv(unit)
    assert (
        "spark-vllm was restarted once" in NODE["serving.containers"].result(node, "spark1").found
    )
    address = NODE["serving.address"].result(node, "spark1")
    assert (address.status, "VLLM_HOST_IP=192.168.1.163" in address.found) == ("fail", True)
    assert NODE["serving.memlock"].result(node, "spark1").status == "ok"
    assert NODE["serving.rdma-device"].result(node, "spark1").status == "ok"


# --- logs -------------------------------------------------------------------------------------


def test_a_first_line_from_before_docker_noted_the_start_is_of_this_run():
    def started(text: str) -> ContainerState:
        return parse_state(json.dumps([{"State": {"Status": "running", "StartedAt": text}}]))

    state = started("2026-11-22T13:55:11.185084604Z")
    assert state.since_start(LogLine(moment("2026-11-22T13:55:11.184649739Z"), "ready"))
    assert not state.since_start(LogLine(moment("2026-11-22T13:55:10.938571614Z"), "the end"))
    across = started("2026-11-22T00:00:00Z")
    assert across.since_start(LogLine(moment("2026-11-21T23:59:59.999Z"), "ready"))
    for no_time in ("0001-01-01T00:00:00Z", "2026-13-45T00:00:00Z", "soon", ""):
        assert started(no_time).started in (moment(no_time), "")
    assert moment("2026-11-20T14:03:30.12Z text") > moment("2026-11-20T14:03:30.119999999Z")


# --- probes -----------------------------------------------------------------------------------


OF_PROBES = cases(__file__, "probed.json")
made = TypeAdapter(Probed).validate_python
HEALTHY = made(OF_PROBES["healthy"])
PROBED = [
    (row["check"], made(row["probed"]), row["status"], row["found"]) for row in OF_PROBES["sick"]
]


@pytest.mark.parametrize(("id", "probed", "status", "words"), PROBED)
def test_probes(id, probed, status, words):
    result = PROBES[id].result(probed, "a+b")
    assert result.status == status, result
    assert words in result.found


@pytest.mark.parametrize("id", PROBES)
def test_healthy_probes(id):
    assert PROBES[id].result(HEALTHY, "a+b").status == "ok"
    assert PROBES[id].result(Probed(), "a+b").status == "unknown"


# --- the registry -----------------------------------------------------------------------------


def test_every_check_has_a_sick_case():
    sick = {id for id, *_ in (*SICK, *UNLIKE, *PROBED)}
    assert {check.id for check in examine.ALL} == sick


def test_every_known_issue_of_a_check_has_a_sick_case():
    results = [found(id, **changes) for id, changes, *_ in SICK]
    results += [PAIR[id].result([seen(1), seen(2, **changes)], "a+b") for id, changes, *_ in UNLIKE]
    results += [PROBES[id].result(probed, "a+b") for id, probed, *_ in PROBED]
    sick = {(result.id, result.issue) for result in results}
    every = {(id, issue.id) for issue in catalogue().values() for id in issue.all_checks}
    known = {"driver.known-bad", examine.ID}  # tests/unit/roles/test_drivers.py, test_examine.py
    assert {(id, issue) for id, issue in every - sick if id not in known} == set()


def test_findings_are_sorted_and_selected():
    sick = seen(1, hcas=ALL_DOWN, units=None)
    every = examine.judge([sick, seen(2)])
    order = [result.status for result in every]
    assert order == sorted(order, key=["fail", "warn", "unknown", "ok"].index)
    assert {f.area for f in examine.judge([sick], only=["link"])} == {"link"}
    assert [f.id for f in examine.judge([sick], only=["memory.swap"])] == ["memory.swap"]


def test_fixes_name_commands_and_roles_that_exist():
    from spark_cluster.cli import COMMANDS

    roles = {path.name for path in (Path(__file__).parents[3] / "roles").iterdir()}
    for fix in (issue.fix for issue in catalogue().values()):
        assert set(re.findall(r"spark-cluster ([a-z]+)", fix)) <= set(COMMANDS), fix
        assert set(re.findall(r"--tags (\w+)", fix)) <= roles, fix


# --- two nodes with a GPU each and a link without RDMA, which serve in a virtual environment ------


def compared(id: str, *nodes: Observations) -> CheckResult:
    return PAIR[id].result([node.named() for node in nodes], "gpu1+gpu2")


def test_a_healthy_server_has_no_failure_and_nothing_unknown():
    found = examine.judge([on_gpus(1), on_gpus(2)])
    assert {result.id for result in found if result.status == "fail"} == set()
    assert {result.id for result in found if result.status == "unknown"} == set()
    assert examine.Diagnosis(tuple(found)).exit_code == 0


def test_the_address_is_one_of_the_link_that_the_inventory_names():
    result = NODE["serving.address"].result(on_gpus(1), "gpu1")
    assert (result.status, "spark-vllm 10.90.1.11" in result.found) == ("ok", True)
    rows = [interface("eth0", "10.90.1.11/24"), interface("fabric0", "10.90.2.11/24")]
    wrong = NODE["serving.address"].result(on_gpus(1, ip=json.dumps(rows)), "gpu1")
    assert (wrong.status, wrong.issue) == ("fail", "engine-on-lan")


def test_a_link_that_the_inventory_names_is_compared():
    slow = json.dumps([interface("fabric0", "10.90.1.12/24", mtu=1500)])
    nodes = (on_gpus(1), on_gpus(2, ip=slow))
    assert compared("pair.mtu", *nodes).found == "gpu1 9000, gpu2 1500"
    assert NODE["link.mtu"].result(nodes[1], "gpu2").status == "warn"
    other = json.dumps([interface("fabric0", "10.91.1.12/24")])
    assert compared("pair.subnets", nodes[0], on_gpus(2, ip=other)).status == "fail"
    bare = on_gpus(2, ip=json.dumps([interface("fabric0")]))
    assert NODE["link.twin-address"].result(bare, "gpu2").status == "fail"


@each_row(__file__, "in_environments.json", "compared")
def test_what_serves_in_an_environment_is_compared(id, changes, status, words):
    result = compared(id, on_gpus(1), on_gpus(2, **changes))
    assert (result.status, words in result.found) == (status, True), result


def test_a_node_without_ssh_host_keys_shares_none():
    assert compared("pair.host-keys", on_gpus(1), seen(2)).status == "unknown"


@pytest.mark.parametrize(
    "id", [check.id for check in (*examine.NODE, *examine.PAIR) if check.spark]
)
def test_what_only_a_spark_has_stays_unknown_on_a_spark(id):
    absent = {"hcas": None, "history": None, "devices": None, "fw_ver": None, "board_id": None}
    nodes = [seen(number, **absent, width=None) for number in (1, 2)]
    check = NODE.get(id)
    result = check.result(nodes[0], "spark1") if check else compared(id, *nodes)
    assert result.status == "unknown"
