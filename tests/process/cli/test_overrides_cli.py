"""Options of `plan` and `up` in place of a recipe's variables and image and of the port."""

from __future__ import annotations

import json

import pytest
from factories import put

from spark_cluster import Cluster
from spark_cluster.errors import UsageError

RECIPE = "gemma4-26b-a4b-nvfp4"
INVENTORY = """\
nodes: {spark1: {address: 10.0.0.1, roles: [head]}}
serve: {recipe: gemma4-26b-a4b-nvfp4, api_key: {env: MY_KEY}, engine_port: 18000}
"""


def test_the_plan_has_what_was_changed(run, project):
    options = ("-e", "NCCL_DEBUG=INFO", "--image", "other/vllm:2", "--max-num-seqs", "2")
    status, out, err = run("plan", RECIPE, "--offline", "--json", *options)
    assert status in (0, 4), err
    assert json.loads(out)["overrides"] == {
        "env.NCCL_DEBUG": "INFO",
        "image.ref": "other/vllm:2",
        "max-num-seqs": 2,
    }
    shown = run("plan", RECIPE, "--offline", *options)[1]
    assert "changed: -e NCCL_DEBUG=INFO --image other/vllm:2 -o max-num-seqs=2" in " ".join(
        shown.split()
    )


def test_the_port_stands_in_place_of_the_inventorys(project):
    put(project / "inventory.yaml", INVENTORY)
    assert Cluster(project=project).inventory.serve.port == 8000
    changed = Cluster(project=project, port=9000).inventory
    assert (changed.serve.port, changed.serve.engine_port) == (9000, 18000)
    with pytest.raises(UsageError):
        changed.with_port(18000)
