"""Rules on two nodes that serve together."""

from __future__ import annotations

import re

from spark_cluster.known_issues.case import Case
from spark_cluster.known_issues.match import Edit
from spark_cluster.known_issues.rules import RuleContext, RuleResult, rule

OWN = ("VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""What each node sets to its own fabric address or interface."""

_NGC = re.compile(r"nvcr\.io/nvidia/vllm:(\d+)\.(\d+)")


@rule("tp-without-executor")
def tp_without_executor(about: RuleContext, case: Case) -> RuleResult:
    if not case.is_command or case.launch.tp < 2:
        return None
    backend = case.launch.text("distributed-executor-backend")
    nodes = case.launch.number("nnodes") or 1
    if backend == "ray" or nodes >= case.launch.tp:
        return None
    shown = f" with {backend}" if backend else ""
    return about.found(f"--tensor-parallel-size {case.launch.tp}{shown} on one GPU")


@rule("image-without-ray")
def image_without_ray(about: RuleContext, case: Case) -> RuleResult:
    launch = case.launch
    backend = launch.executor or launch.text("distributed-executor-backend")
    if not case.several_nodes or backend != "ray" or launch.dockerfile:
        return None
    ngc = _NGC.match(case.image)
    since = ngc is not None and (int(ngc[1]), int(ngc[2])) >= (26, 5)
    official = case.image.partition(":")[0] == "vllm/vllm-openai"
    return about.found(f"image {case.image}, nodes joined by Ray") if since or official else None


@rule("nccl-one-twin")
def one_twin(about: RuleContext, case: Case) -> RuleResult:
    value = case.launch.env.get("NCCL_IB_HCA", "")
    if not case.several_nodes or not value or "$" in value or value.startswith("^"):
        return None
    names = [part.partition(":")[0] for part in value.lstrip("=").split(",") if part]
    if len(names) != 1 or not names[0].startswith(("rocep1", "roceP2")):
        return None
    port = names[0].removeprefix("roceP2p1").removeprefix("rocep1")
    both = f"rocep1{port},roceP2p1{port}"
    return about.found(
        f"NCCL_IB_HCA={value}", edit=Edit("env", "NCCL_IB_HCA", both), fix=f"NCCL_IB_HCA={both}"
    )


@rule("pair-environment")
def pair_environment(about: RuleContext, case: Case) -> RuleResult:
    if not (case.in_docker and case.several_nodes) or case.docker("env-file"):
        return None
    missing = [name for name in OWN if name not in case.launch.env]
    return about.found("no " + ", ".join(missing)) if missing else None
