"""Each rule on what it must find, and on its neighbour that it must leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from cases import cases, each_row
from factories import make_node

from spark_cluster.config.facts import Facts, Interface
from spark_cluster.config.launch import Launch, Volume
from spark_cluster.issues.entries import ORDER
from spark_cluster.issues.rules import lint
from spark_cluster.models.memory_share import utilization
from spark_cluster.models.shape import Attention, Experts, Geometry

GEMMA = "google/gemma-4-31B-it"
MOE = "google/gemma-4-26B-A4B-it"
SITE = "/usr/local/lib/python3.12/dist-packages/vllm/model_executor"
PATCH = [f"/p/x_patched.py:{SITE}/models/x.py:ro", "/c:/root/.cache/vllm"]
TABLES = cases(__file__, "launches.toml")
USUAL = TABLES["usual"]


def launch(of: str, model: str = "org/m", lacks: Sequence[str] = (), **given: Any) -> Launch:
    """Return a launch that has nothing wrong with it but what is given."""
    fields = {**USUAL[of], **given}
    for part in ("args", "env", "docker"):
        whole = {**USUAL[of].get(part, {}), **given.get(part, {})}
        fields[part] = {name: value for name, value in whole.items() if name not in lacks}
    mounts = (text.split(":") for text in fields.pop("volumes", ()))
    volumes = tuple(Volume(source, target, bool(mode)) for source, target, *mode in mounts)
    return Launch(model, volumes=volumes, **fields)


recipe, command, docker, pair = (partial(launch, of) for of in USUAL)


def shape(heads: Sequence[int] = (), experts: Sequence[int] = (), **more: Any) -> Geometry:
    """Return a small model with these heads of queries and keys, experts, and other fields."""
    usual = {**TABLES["shape"], **more}
    if heads:
        usual["attention"] = (Attention("full", 4, *heads, 16, 16),)
    return Geometry(experts=Experts(*experts) if experts else None, **usual)


def ids(launch: Launch, geometry: Geometry | None = None, facts=()) -> set[str]:
    return {finding.id for finding in lint(launch, geometry, facts)}


@pytest.mark.parametrize("case", TABLES["case"], ids=lambda case: case["finds"])
def test_found_and_not_found(case):
    for side, found in (("sick", True), ("well", False)):
        given = dict(case[side])
        of = given.pop("as", case.get("as", "recipe"))
        geometry = shape(**given.pop("shape")) if "shape" in given else None
        assert (case["finds"] in ids(launch(of, **given), geometry)) is found, side


@pytest.mark.parametrize("launch", [command(), docker(), pair(), recipe()])
def test_nothing_is_wrong(launch):
    assert ids(launch) == set()


def test_a_value_that_a_mounted_file_of_vllm_may_have_added_stops_no_start():
    given = {"image": "vllm/vllm-openai:v0.28.0", "args": {"kv-cache-dtype": "tq3"}}
    patch = "/srv/p/cache.py:/usr/local/lib/python3.12/dist-packages/vllm/config/cache.py:ro"
    for volumes, severity in (((), "error"), ((patch,), "warning")):
        found = lint(recipe(volumes=volumes, **given))
        (severities,) = {f.severity for f in found if f.id == "wrong-flag-value"}
        assert severities == severity


def test_errors_come_first():
    args = {"tool-call-parser": "pythonic", "enforce-eager": True}
    launch = recipe(GEMMA, image="a/b", args=args)
    severities = [ORDER[finding.severity] for finding in lint(launch)]
    assert severities == sorted(severities)
    assert {0, 1, 2} == set(severities)


def test_the_secret_is_not_shown():
    launch = docker(env={"HF_TOKEN": "hf_verysecret"}, args={"api-key": "verysecret"})
    assert "verysecret" not in str(lint(launch))


def test_the_context_of_the_model():
    launch = recipe(args={"max-model-len": 8192})
    (found,) = lint(launch, shape())
    assert (found.id, found.edit.value) == ("context-beyond-model", 4096)
    assert ids(recipe(args={"max-model-len": 4096}), shape()) == set()
    assert ids(launch) == set()


@pytest.mark.parametrize(
    ("vllm", "severity"), [("0.20.0", ["error"]), ("0.23.0", ["info"]), ("0.24.0", [])]
)
def test_native_kernels_for_experts_by_version(vllm, severity):
    launch = recipe(quantization="nvfp4", vllm=vllm)
    assert [f.severity for f in lint(launch, shape(experts=(8, 2, 4, 32)))] == severity


def test_the_share_in_the_light_of_what_the_node_has():
    launch = recipe(args={"gpu-memory-utilization": 0.70})
    assert ids(launch, facts=[make_node("spark1", 118).facts]) == set()
    (tight,) = lint(launch, facts=[make_node("spark1", 90).facts])
    assert (tight.id, tight.severity) == ("share-too-high", "warning")
    assert tight.edit.value == utilization(make_node("spark1", 90).facts.memory)
    (over,) = lint(launch, facts=[make_node("spark1", 60).facts])
    assert over.severity == "error"
    assert "85.2 GiB, spark1 has 60.0 available" in over.found
    (none,) = lint(launch, facts=[make_node("spark1", 5).facts])
    assert none.edit is None
    assert "vram" in none.fix
    assert lint(launch, facts=[Facts()]) == []


def test_a_share_is_an_error_only_where_it_cannot_be():
    """0.9 has served on idle nodes; 0.97 is more than any has."""
    for share, severity in ((0.85, "warning"), (0.9, "warning"), (0.97, "error")):
        (found,) = lint(recipe(args={"gpu-memory-utilization": share}))
        assert found.severity == severity


def test_a_patch_over_an_image_that_moves_is_known_to_fail():
    for image, severity in (("vllm-node-tf5", "error"), ("a/b:0.19", "info")):
        launch = replace(docker(volumes=PATCH), image=image, digest="")
        found = {f.id: f for f in lint(launch)}["patched-file"]
        assert (found.severity, found.found.split(";")[0]) == (severity, "x_patched.py over x.py")


def test_the_share_that_no_one_gave():
    launch = command(lacks=["gpu-memory-utilization"])
    severities = [
        lint(launch, facts=facts)[0].severity
        for facts in ((), [make_node("spark1", 118).facts], [make_node("spark1", 110).facts])
    ]
    assert severities == ["warning", "warning", "error"]


def test_the_peak_of_online_quantization():
    big = shape(layers=60, dense_layers=60, hidden=5376, intermediate=21504, vocab=262144)
    launch = recipe(quantization="fp8-online")
    (fine,) = lint(launch, big, [make_node("spark1", 118).facts])
    assert fine.severity == "info"
    (over,) = lint(launch, big, [make_node("spark1", 30).facts])
    assert over.severity == "error"


def test_a_version_that_no_one_knows():
    """Not an error; some are told as `if`, others not at all."""
    launch = recipe("protoLabsAI/gemma-4-31B-it-FP8", quantization="fp8")
    found = {finding.id: finding for finding in lint(launch)}
    assert found["fp8-31b-scale-keys"].severity == "info"
    assert "(if its vLLM is <0.20" in found["fp8-31b-scale-keys"].title
    assert "gemma4-before-0.19" not in found
    assert ids(recipe(GEMMA, vllm="no version")) == ids(recipe(GEMMA))


def linked(name: str, *interfaces: str) -> Facts:
    return Facts(hostname=name, interfaces=tuple(Interface(i) for i in interfaces))


def test_an_interface_that_a_node_does_not_have():
    """With the nodes at hand; without them nothing is known of their interfaces."""
    nodes = [linked("spark1", "eth0", "enp1s0f1np1"), linked("spark2", "enp1s0f0np0")]

    def found(value: str) -> list[str]:
        launch = recipe(env={"GLOO_SOCKET_IFNAME": value}, tp=2, nodes=2)
        assert "interface-not-found" not in ids(launch)
        told = lint(launch, facts=[*nodes, linked("spark3")])
        return [one.found for one in told if one.id == "interface-not-found"]

    assert found("enp9s9") == ["GLOO_SOCKET_IFNAME=enp9s9, not an interface of spark1, spark2"]
    assert found("enp1s0f1np1")[0].endswith("not an interface of spark2")
    for value in ("enp1s0f1np1,enp1s0f0np0", "=eth0,enp1s0f0np0", "enp", "^lo", "$NAME", ""):
        assert found(value) == [], value


@each_row(__file__, "launches.toml", "which_kernels_an_image_of_ones_own_has_is_not_known")
@pytest.mark.parametrize("backend", ["flashinfer_trtllm", "deep_gemm"])
def test_which_kernels_an_image_of_ones_own_has_is_not_known(image, severity, backend):
    given = recipe(vllm="0.20.0", args={"moe-backend": backend}, **image)
    (found,) = [f for f in lint(given) if f.flag == "--moe-backend"]
    assert found.severity == severity
    assert (f"it depends on how {given.image} was built" in found.cause) is (severity == "warning")
    assert (found.edit is None) is (severity == "warning"), "--fix keeps what its owner built for"
