"""Checks of what the engine's containers wrote into their logs: one rule a check.

A rule's `word` is looked for on the node, so that a log of any length costs little; its `pattern`
decides here. What was written before the last start is a warning: it may explain a restart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spark_cluster.doctor.check import NodeCheck, check
from spark_cluster.doctor.engines import Engine, Line
from spark_cluster.doctor.finding import Severity, Verdict, fail, ok, warn
from spark_cluster.doctor.observations import Observations

UP = "spark-cluster up"
LONGEST = 240


@dataclass(frozen=True)
class LogRule:
    """A text that means trouble.

    Attributes:
        id, title, severity, cause, fix, rows: of the check.
        words: every line that matters has one of them in it.
        pattern: what is trouble, among such lines.
        clears: what shows, in the same log, that it came to nothing.
        silent: what is said when an engine over several nodes has no line with any of the words.
        sample: a line that was really seen.
    """

    id: str
    title: str
    severity: Severity
    words: tuple[str, ...]
    pattern: str
    cause: str
    fix: str
    sample: str
    rows: tuple[int, ...] = ()
    clears: str = ""
    silent: str = ""


RULES = (
    LogRule(
        "serving.nccl-sockets",
        "nothing says that NCCL goes over sockets",
        "slows",
        ("NET/Socket", "NET/IB", "Using network Socket"),
        r"via NET/Socket|Using network Socket|NET/Socket : Using",
        "no /dev/infiniband in the container, or a wrong NCCL_IB_HCA or interface name: "
        "10 to 20 times slower",
        UP + " gives the container the devices and names of this node",
        "spark1:1674:1871 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
        (8,),
        clears=r"via NET/IB",
        silent="NCCL's log names no transport; it does with NCCL_DEBUG=INFO",
    ),
    LogRule(
        "serving.memory-region",
        "RDMA may register memory",
        "blocks",
        ("Couldn't allocate MR",),
        r"Couldn't allocate MR",
        "the container may lock 8 MB only",
        "docker run --ulimit memlock=-1; " + UP + " does",
        "Couldn't allocate MR",
        (10,),
    ),
    LogRule(
        "serving.reg-mr",
        "ibv_reg_mr has memory",
        "blocks",
        ("ibv_reg_mr",),
        r"ibv_reg_mr.*(Cannot allocate memory|ENOMEM|error|failed)",
        "kernel 7.0 without kho=off",
        "apt install nvidia-spark-grub-kho on {node}, then reboot",
        "NET/IB : Call to ibv_reg_mr failed with error Cannot allocate memory",
        (11,),
    ),
    LogRule(
        "serving.ray-oom",
        "Ray ended no worker for want of memory",
        "blocks",
        ("running low on memory", "ray.exceptions.OutOfMemoryError"),
        r"killed due to the node running low on memory|ray\.exceptions\.OutOfMemoryError",
        "Ray's monitor ends workers at 95 % of memory, which GPU and system share here",
        "RAY_memory_monitor_refresh_ms=0 (" + UP + " sets it) and a lower --gpu-memory-utilization",
        "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on "
        "memory. Memory on the node (IP: 10.99.0.2) was 113.76GB / 119.70GB (0.950345)",
        (16,),
    ),
    LogRule(
        "serving.start-gate",
        "vLLM finds as much free memory as it was told to take",
        "blocks",
        ("less than desired GPU memory utilization", "Available KV cache memory: -"),
        r"Free memory on device .* less than desired|Available KV cache memory: -",
        "--gpu-memory-utilization is too high for what page cache and other processes leave",
        "`gpu_memory_utilization: auto` in the recipe, then " + UP + " (it drops caches first)",
        "ValueError: Free memory on device cuda:0 (55.87/119.56 GiB) on startup is less than "
        "desired GPU memory utilization (0.5, 59.78 GiB). Decrease GPU memory utilization or "
        "reduce GPU memory used by other processes.",
        (18,),
    ),
    LogRule(
        "serving.gpu-dead",
        "CUDA finds the GPU",
        "blocks",
        ("No CUDA GPUs are available",),
        r"No CUDA GPUs are available",
        "the GPU is counted and does not work any more",
        "spark-cluster exec -b -l {node} -- systemctl reboot",
        "RuntimeError: No CUDA GPUs are available",
        (23,),
    ),
    LogRule(
        "serving.offline-model",
        "the model is found on the node",
        "blocks",
        ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "cannot find the requested files"),
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|cannot find the requested files",
        "the snapshot or its refs/main is missing on this node, and it may not ask the hub",
        "copy the whole snapshot: " + UP + " does",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached "
        "snapshot folder for the specified revision on the local disk",
        (32,),
    ),
    LogRule(
        "serving.hub-denied",
        "the hub gives the model",
        "blocks",
        ("Client Error", "GatedRepoError"),
        r"40[13] Client Error|GatedRepoError",
        "a gated repository: no token, or its licence was not accepted",
        "accept the licence on the hub, and export HF_TOKEN before " + UP,
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for "
        "url https://huggingface.co/google/gemma-4-31B-it/resolve/main/config.json.",
        (33,),
    ),
    LogRule(
        "serving.ptxas",
        "the compiler knows this GPU",
        "blocks",
        ("sm_121",),
        r"(ptxas|not defined|gpu-name).*sm_121a?|sm_121a?.*(is not defined|not a recognized)",
        "Triton's ptxas is older than sm_121a",
        "a newer image",
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        (34,),
    ),
    LogRule(
        "serving.transformers",
        "vLLM and transformers fit together",
        "blocks",
        ("AmbiguousGlobalPerLayerAttributeError",),
        r"AmbiguousGlobalPerLayerAttributeError",
        "vLLM 0.27 with transformers 5.15 on Gemma 4 (vLLM 51744, 53836)",
        "an image with vLLM 0.28 or newer",
        "transformers.configuration_utils.AmbiguousGlobalPerLayerAttributeError: head_dim",
        (35,),
    ),
    LogRule(
        "serving.worker-died",
        "no worker of the engine died",
        "blocks",
        ("died unexpectedly", "EngineDeadError"),
        r"died unexpectedly|EngineDeadError",
        "a worker died: /health may still say 200 while requests time out",
        "spark-cluster logs shows the earliest error; " + UP + " starts it again",
        "(EngineCore pid=518) ERROR 11-20 14:14:29 [ray_executor_v2.py:522] RayWorkerProc rank=[1] "
        "died unexpectedly, shutting down executor.",
        (36,),
    ),
    LogRule(
        "serving.exec-format",
        "the image's programs run on this processor",
        "blocks",
        ("exec format error",),
        r"exec format error",
        "an image for another processor (amd64) was pulled",
        "docker pull --platform linux/arm64, or pin the digest of the arm64 manifest",
        "exec /usr/bin/sh: exec format error",
        (39,),
    ),
    LogRule(
        "serving.rendezvous",
        "all ranks meet",
        "blocks",
        ("DistStoreError",),
        r"DistStoreError",
        "a rank without its environment or with other engine arguments waits for the others",
        UP + " renders arguments once and the environment for each node",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
        "1/2 clients joined.",
        (17,),
    ),
)

ALSO = ("Application startup complete", "Loading weights took", "Error: ", "Exception: ")
"""Words that other checks look for."""

WORDS = tuple(dict.fromkeys([*(word for rule in RULES for word in rule.words), *ALSO]))
"""What a node looks for in the logs."""


def look(rule: LogRule) -> Callable[[Observations], Verdict]:
    """The function of a rule's check."""
    pattern = re.compile(rule.pattern)
    clears = re.compile(rule.clears) if rule.clears else None

    def found(seen: Observations) -> Verdict:
        engines = seen.engines
        worst: Verdict | None = None
        for engine in engines:
            lines = [line for line in engine.log if pattern.search(line.text)]
            if lines and not (clears and any(clears.search(line.text) for line in engine.log)):
                verdict = _of(engine, lines)
                worst = verdict if worst is None or verdict.status == "fail" else worst
        names = ", ".join(engine.name for engine in engines)
        if rule.silent and worst is None and _silent(rule, engines):
            return ok(rule.silent)
        return worst or ok(f"not in the log of {names}" if names else "no engine container is here")

    return found


def _silent(rule: LogRule, engines: Iterable[Engine]) -> bool:
    """Whether what runs over several nodes says nothing either way."""
    over = [engine for engine in engines if engine.running and engine.tp > 1]
    said = (line.text for engine in over for line in engine.log)
    return bool(over) and not any(word in text for text in said for word in rule.words)


def _of(engine: Engine, lines: list[Line]) -> Verdict:
    now = [line for line in lines if engine.since_start(line)]
    said = f"{engine.name}: {(now or lines)[0].text[:LONGEST]}"
    if now and (engine.running or engine.ours):
        return fail(said)
    return warn(f"{said} (before its last start)" if not now else f"{said} (it is {engine.status})")


def _check(rule: LogRule) -> NodeCheck:
    return check(
        rule.id,
        title=rule.title,
        needs=("tools", "containers", "logs"),
        severity=rule.severity,
        cause=rule.cause,
        fix=rule.fix,
        rows=rule.rows,
    )(look(rule))


CHECKS: tuple[NodeCheck, ...] = tuple(_check(rule) for rule in RULES)
