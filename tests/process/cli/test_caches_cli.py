"""`caches` and the caches in `status` and `plan`, on real agents over pipes."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from factories import TWO_NODES, make_recipe, put
from fake_programs import missing
from json_schema import document as fits

from spark_cluster.engine import launches
from spark_cluster.node import engine_caches

RECIPE = "gemma4-31b-nvfp4"
IMAGE = "sha256:" + "ab" * 32
ROOT = f"var/cache/spark-cluster/engine/images/{'ab' * 6}"
OLD, NEW = "0" * 10, "torch_aot_compile/" + "1" * 64


@pytest.fixture
def project(project: Path) -> Path:
    """Two nodes that served the inventory's recipe an hour ago, and something else long before."""
    put(project / "inventory.yaml", f"{TWO_NODES}serve: {{recipe: {RECIPE}}}\n")
    wanted = launches.wanted(make_recipe(RECIPE), 2)
    made = replace(wanted, image=IMAGE, keys=(NEW,), last=time.time() - 3600)
    for node in ("spark1", "spark2"):
        folder = project / node / ROOT / "vllm/torch_compile_cache"
        for key in (OLD, NEW):
            put(folder / key / "rank_0_0/model", "x" * 5000)
        os.utime(folder / OLD / "rank_0_0/model", (1e9, 1e9))
        engine_caches.add_launch(project / node, made)
    return project


def test_parts_are_listed(run, project):
    status, out, _ = run("caches", "list", "--json")
    found = fits("caches-list", out)
    assert status == 0
    assert [(part["node"], part["path"].rpartition("/")[2][:3]) for part in found["parts"]] == [
        ("spark1", "000"), ("spark2", "000"), ("spark1", "111"), ("spark2", "111"),
    ]  # fmt: skip
    assert found["parts"][2]["recipes"] == [RECIPE]
    _, out, _ = run("caches", "list")
    assert "by kind: compile" in out


def test_prune_shows_first_and_then_removes(run, project):
    old = project / "spark1" / ROOT / "vllm/torch_compile_cache" / OLD
    _, out, _ = run("caches", "prune")
    assert "--apply removes it" in out
    assert old.exists()
    status, out, _ = run("caches", "prune", "--older-than", "0", "--apply", "--json")
    found = fits("caches-prune", out)
    assert (status, found["applied"], len(found["parts"])) == (0, True, 2)
    assert not old.exists()
    assert (old.parent / NEW).exists(), "it is the inventory's recipe's"
    _, _, err = run("caches", "prune", "--recipe", "gemma4-31b-nvfp5")
    assert "no part of the caches is known to be of gemma4-31b-nvfp5" in err
    assert "`spark-cluster caches list`" in err
    _, out, _ = run("caches", "prune", "--apply", "--older-than", "0")
    assert "nothing to remove" in out


def test_status_says_why_it_is_not_known(run, project):
    _, out, _ = run("status", "--json")
    found = fits("status", out)
    assert found["caches"]["recipe"] == RECIPE
    # No node here has a Docker.
    assert found["caches"]["state"] == "unknown"
    assert found["caches"]["reasons"][0].endswith(" is not on this node")
    records = engine_caches.launches(project / "spark2")
    engine_caches.write_launches(project / "spark2", [replace(records[0], recipe="another")])
    _, out, _ = run("status")
    assert f"next start of {RECIPE}: unknown (spark1: the image " in out
    assert "spark2: no launch of it is on record here" in out


def test_a_copy_between_nodes_without_a_gpu_is_refused(run, piped_nodes):
    for name in ("spark1", "spark2"):
        piped_nodes[name].programs["nvidia-smi"] = missing
    status, _, err = run("caches", "copy", "--from", "spark1")
    assert status == 4
    assert "spark2 has no GPU, and spark1 has none" in err
