"""Two nodes with a GPU each and a link without RDMA, on which a virtual environment serves TP=2."""

from __future__ import annotations

import json

import pytest
from doctor_samples import interface, on_gpus, seen

from spark_cluster.doctor import examine
from spark_cluster.doctor.observations import CheckResult, Observations

NODE = {check.id: check for check in examine.NODE}
PAIR = {check.id: check for check in examine.PAIR}


def pair(id: str, *nodes: Observations) -> CheckResult:
    return PAIR[id].result([node.named() for node in nodes], "gpu1+gpu2")


@pytest.fixture
def gpus() -> list[Observations]:
    return [on_gpus(1), on_gpus(2)]


def test_a_healthy_server_has_no_failure_and_nothing_unknown(gpus: list[Observations]) -> None:
    found = examine.judge(gpus)
    assert {result.id for result in found if result.status == "fail"} == set()
    assert {result.id for result in found if result.status == "unknown"} == set()
    assert examine.Diagnosis(tuple(found)).exit_code == 0


def test_the_address_is_one_of_the_link_that_the_inventory_names() -> None:
    result = NODE["serving.address"].result(on_gpus(1), "gpu1")
    assert (result.status, "spark-vllm 10.90.1.11" in result.found) == ("ok", True)
    rows = [interface("eth0", "10.90.1.11/24"), interface("fabric0", "10.90.2.11/24")]
    wrong = NODE["serving.address"].result(on_gpus(1, ip=json.dumps(rows)), "gpu1")
    assert (wrong.status, wrong.issue) == ("fail", "engine-on-lan")


def test_a_link_that_the_inventory_names_is_compared() -> None:
    slow = json.dumps([interface("fabric0", "10.90.1.12/24", mtu=1500)])
    nodes = (on_gpus(1), on_gpus(2, ip=slow))
    assert pair("pair.mtu", *nodes).found == "gpu1 9000, gpu2 1500"
    assert NODE["link.mtu"].result(nodes[1], "gpu2").status == "warn"
    other = json.dumps([interface("fabric0", "10.91.1.12/24")])
    assert pair("pair.subnets", nodes[0], on_gpus(2, ip=other)).status == "fail"
    bare = on_gpus(2, ip=json.dumps([interface("fabric0")]))
    assert NODE["link.twin-address"].result(bare, "gpu2").status == "fail"


def test_versions_are_those_of_the_environment(gpus: list[Observations]) -> None:
    assert pair("pair.ray-version", *gpus).status == "ok"
    other = on_gpus(2, versions="==> spark-ray\nray=2.59.0\nvllm=0.26.0\n")
    assert pair("pair.ray-version", gpus[0], other).status == "fail"


def test_the_served_folder_is_compared(gpus: list[Observations]) -> None:
    result = pair("pair.model-files", *gpus)
    assert (result.status, result.found) == ("ok", "/srv/models/paris: the same files")
    other = on_gpus(2, models="==> /srv/models/paris\n1024 config.json\n")
    assert "gpu2: 1 files of /srv/models/paris" in pair("pair.model-files", gpus[0], other).found


def test_units_have_no_image_to_compare(gpus: list[Observations]) -> None:
    result = pair("pair.images", *gpus)
    assert (result.status, result.found) == ("ok", "no container runs over two nodes")


def test_a_node_without_ssh_host_keys_shares_none(gpus: list[Observations]) -> None:
    assert pair("pair.host-keys", *gpus).status == "ok"
    assert pair("pair.host-keys", gpus[0], seen(2)).status == "unknown"


@pytest.mark.parametrize(
    "id", [check.id for check in (*examine.NODE, *examine.PAIR) if check.spark]
)
def test_what_only_a_spark_has_stays_unknown_on_a_spark(id: str) -> None:
    absent = {"hcas": None, "history": None, "devices": None, "fw_ver": None, "board_id": None}
    nodes = [seen(number, **absent, width=None) for number in (1, 2)]
    check = NODE.get(id)
    result = check.result(nodes[0], "spark1") if check else pair(id, *nodes)
    assert result.status == "unknown"
