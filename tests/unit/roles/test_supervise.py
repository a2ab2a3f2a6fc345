"""The role `supervise`: program, configuration and unit on the head, and nothing elsewhere."""

from __future__ import annotations

import json

from role_samples import a_spark, ids, one, together

from spark_cluster.engine import supervision
from spark_cluster.node.supervisor import Limits

UNIT_FILE = "/etc/systemd/system/spark-cluster-supervise.service"


def test_on_the_head(role):
    head, _ = together(a_spark(), a_spark(1))
    resources = role("supervise", head, look_s=2)
    config = json.loads(one(resources, "File", supervision.UNIT.config).content)
    assert config["limits"]["look_s"] == 2
    assert Limits(**config["limits"]).misses == 3
    unit = one(resources, "File", "/etc/systemd/system/").content
    program = one(resources, "File", f"{supervision.UNIT.folder}/")
    starts = f"{program.path}/spark_cluster/node spark_cluster.node.supervisor:main"
    assert f"ExecStart=/usr/bin/python3 -I -S -B {starts} {supervision.UNIT.config}\n" in unit
    service = one(resources, "Service")
    assert program.id in service.triggers()
    order = [
        program.id,
        f"File:{UNIT_FILE}",
        service.id,
        f"UnusedPrograms:{supervision.UNIT.folder}",
    ]
    assert [name for name in ids(resources) if name in order] == order, "at a power cut, too"
    assert (service.running, service.enabled) == (True, False)
    assert f"File:{supervision.UNIT.config}" in service.triggers()


def test_at_boot_is_asked_for(role):
    assert one(role("supervise", a_spark(), at_boot=True), "Service").enabled is True


def test_its_limits_are_those_of_the_program(role):
    """Defaults stand in the role, for its reference page, and in the program."""
    config = json.loads(one(role("supervise", a_spark()), "File", supervision.UNIT.config).content)
    assert Limits(**config["limits"]) == Limits()


def test_elsewhere_and_absent_it_is_removed(role):
    head, other = together(a_spark(), a_spark(1))
    gone = ids(role("supervise", other))
    assert gone == ids(role("supervise", head, state="absent"))
    assert gone[0] == f"Service:{supervision.UNIT.name}"
    assert gone[-1] == f"Directory:{supervision.UNIT.folder}"
