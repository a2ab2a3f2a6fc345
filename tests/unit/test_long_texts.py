"""Texts of others are read in a time that grows with their length: of nodes, of recipes, and of
programs that answer anyone. Each of these once took minutes to years at the size that is let in,
or was a number too long to be read as one.
"""

import math
from typing import Any

import pytest

from spark_cluster.bench import sequence
from spark_cluster.config import recipe_schema, secret
from spark_cluster.doctor import hardware
from spark_cluster.engine import link_check, ray
from spark_cluster.importers import vllm_recipes
from spark_cluster.models import checkpoint
from spark_cluster.node import nvidia_smi
from spark_cluster.node.containers import NODES, ContainerState
from spark_cluster.resources import BuiltImage
from spark_cluster.resources.authorized_key import split_line

MANY = 200_000
RAY_NODES = (
    '{"data": {"result": {"result": [{"state": "ALIVE", "resources_total": {"GPU": GPUS}}]}}}'
)

TEXTS: dict[str, tuple[Any, str, Any]] = {
    "blank lines of nvidia-smi": (
        nvidia_smi.processes, "\n" * MANY + "7, a, b, 5", [(7, "a, b", 5)],
    ),
    "blank lines of ib_write_bw": (
        link_check.parse_bandwidth, "\n" * MANY + " 65536 5000 0.00 97.4 0.18\n", 97.4,
    ),
    "digits of a kernel": (hardware._pcie_errors, "0" * MANY, {}),
    "targets of an init": (
        hardware.ORDERLY_END.search, " systemd[1]: Reached target " * 9999, None,
    ),
    "the name of a model": (recipe_schema.kind_of_name, "_" * MANY, None),
    "the name of a tensor": (
        checkpoint._WITH_WEIGHTS.search, "bitsandbytes__a" * (MANY // 15) + "-", None,
    ),
    "an option that never ends": (split_line, '"' + '\\"' * 400, ("", "", "")),
    "a label of an image": (lambda text: ContainerState(labels={NODES: text}).tp, "9" * 5000, 1),
    "a label in other digits": (lambda text: ContainerState(labels={NODES: text}).tp, "²", 1),
    "GPUs that Ray counts": (
        lambda text: ray.parse_nodes(RAY_NODES.replace("GPUS", text))[0].gpus, "9" * 5000, math.inf,
    ),
    "a size in a command": (
        lambda text: ContainerState(command=(text,)).tp, "--tp " + "9" * 5000, 99999,
    ),
    "a version": (
        lambda text: vllm_recipes._supported({"min_vllm_version": text}, {})[0], "9" * 5000, "",
    ),
    "blank lines of a Dockerfile": (
        lambda text: BuiltImage("a:1", text).dockerfile[:1], "\n" * MANY + "FROM scratch\n", "\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TEXTS)
def test_it_is_read_in_a_moment(what):
    read, text, expected = TEXTS[what]
    assert read(text) == expected


@pytest.mark.parametrize("part", ["pat", "_auth-a", "a", "key=", "max_tokens="])
def test_a_log_of_such_words_is_masked_in_a_moment(part):
    """A request may be all that it takes to have them in a log."""
    assert secret.masked(part * (MANY // 4) + " HF_TOKEN=abc").endswith(" HF_TOKEN=***")


def test_a_log_that_resembles_a_missing_one_is_kept(monkeypatch):
    log = "Error" + "No such container" * (MANY // 4) + "\nx"
    monkeypatch.setattr(sequence.runtime, "read_beginning", lambda *_: log)

    class Play:
        secrets: frozenset[str] = frozenset()

        def session(self, _node: object) -> None: ...

    assert sequence._read(Play(), None, "spark-vllm") == log  # type: ignore[arg-type]
