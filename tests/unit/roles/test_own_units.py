"""Roles of our own programs: program, settings and unit where they are wanted, and no more."""

import json

from role_samples import a_spark, ids, one, together

from spark_cluster.engine import supervision
from spark_cluster.engine.proxy import ModelServer
from spark_cluster.node import own_program, paths
from spark_cluster.node.supervisor import Limits

UNIT_FILE = "/etc/systemd/system/spark-cluster-supervise.service"


def test_supervise_on_the_head(role):
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


def test_supervise_has_the_limits_of_the_program(role):
    """Defaults stand in the role, for its reference page, and in the program."""
    config = json.loads(one(role("supervise", a_spark()), "File", supervision.UNIT.config).content)
    assert Limits(**config["limits"]) == Limits()


def test_the_start_limit_where_it_serves(role):
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


def test_settings_that_name_the_admin_socket_are_roots_alone(role):
    """Those of programs without secrets may be read."""
    server = ModelServer(
        "spark1", "127.0.0.1", 8001, names=("words",), program="spark-vllm-words", on_request=True
    )
    resources = role("model_loader", a_spark(), servers=(server,))
    settings = one(resources, "File", paths.MODEL_LOADER_SETTINGS)
    assert [model["names"] for model in json.loads(settings.content)["models"]] == [["words"]]
    assert settings.mode == 0o600
    assert one(resources, "Directory", paths.MODEL_LOADER).mode == 0o700
    assert one(role("start_limit", a_spark()), "File", paths.START_LIMIT_SETTINGS).mode == 0o644
