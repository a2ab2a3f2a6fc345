"""Rules on two nodes that serve together."""

from __future__ import annotations

import re

from spark_cluster.facts.model import Facts
from spark_cluster.known_issues.case import Case
from spark_cluster.known_issues.match import Edit
from spark_cluster.known_issues.rules import RuleContext, RuleResult, rule

OWN = ("VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""What each node sets to its own fabric address or interface."""

FIND_OR_FAIL = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that name an interface, without which the ranks do not start."""

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


@rule("interface-not-found")
def interface_not_found(about: RuleContext, case: Case) -> RuleResult:
    """Judge where the nodes' interfaces are known; `spark-cluster up` gives each node its own."""
    if not case.several_nodes:
        return None
    serving = case.facts[: max(case.launch.nodes, case.launch.tp)]
    for variable in FIND_OR_FAIL:
        wanted = case.launch.env.get(variable, "")
        lacking = [f for f in serving if f.interfaces and not _has_interface(f, wanted)]
        if lacking:
            names = ", ".join(facts.hostname or "a node" for facts in lacking)
            links = dict.fromkeys(
                hca.interface for facts in lacking for hca in facts.hcas if hca.up
            )
            seen = f"; of the link: {', '.join(links)}" if links else ""
            return about.found(f"{variable}={wanted}, not an interface of {names}{seen}")
    return None


def _has_interface(facts: Facts, wanted: str) -> bool:
    """Return whether a variable finds an interface on a node.

    A list of names; to NCCL a name is a prefix unless `=` stands before them, and `^` takes those
    that are not named, which always leaves some. To say no must be certain, so a prefix does.
    """
    if not wanted or "$" in wanted or wanted.startswith("^"):
        return True
    names = tuple(name for name in wanted.removeprefix("=").split(",") if name)
    return any(interface.name.startswith(names) for interface in facts.interfaces)
