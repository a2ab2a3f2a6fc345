"""The role `start_limit`: program, configuration and unit on a node that serves."""

from __future__ import annotations

import json

from role_samples import a_spark, ids, one

from spark_cluster.engine import supervision
from spark_cluster.node import own_program, paths


def test_where_it_serves(role):
    """P16: the unit is started at boot, without `supervise`."""
    resources = role("start_limit", a_spark())
    config = json.loads(one(resources, "File", paths.START_LIMIT_SETTINGS).content)
    assert config["server"] == "spark-vllm"
    unit = one(resources, "File", "/etc/systemd/system/").content
    program = next(r for r in resources if r.id.endswith(".pyz"))
    starts = " ".join(own_program.entry(program.path, supervision.START_LIMIT.program))
    assert f"ExecStart=/usr/bin/python3 -I -S -B {starts} {paths.START_LIMIT_SETTINGS}\n" in unit
    service = one(resources, "Service")
    assert (service.running, service.enabled) == (True, True)
    assert {f"File:{paths.START_LIMIT_SETTINGS}", program.id} <= set(service.triggers())


def test_absent_it_is_removed(role):
    gone = ids(role("start_limit", a_spark(), state="absent"))
    assert gone[0] == "Service:spark-cluster-start-limit"
    assert gone[-1] == f"Directory:{paths.START_LIMIT}"
