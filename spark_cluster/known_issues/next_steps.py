"""Where to look next, when logs do not tell the cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_cluster.known_issues.seen import Seen, Verdict

SEARCH = "search the issues of the engine (vLLM, SGLang, Ray) and of the image for the quoted line"
KERNEL = (
    "the kernel's log of each node says whether a process was killed for lack of memory: "
    "journalctl -k | grep -i -e oom -e 'killed process' -e NVRM"
)
OTHERS = (
    "give the logs of all ranks and of Ray at once: "
    "spark-cluster explain rank0.log rank1.log /tmp/ray/session_latest/logs"
)
CUT = "if the log is cut, give the whole one: docker logs --timestamps NAME, or spark-cluster logs"
DEBUG = "with NCCL_DEBUG=INFO in the environment of every rank NCCL says which call failed"
WAITING = (
    "it may still be loading or waiting: `ray status` shows whether all nodes have joined, "
    "`docker ps -a` whether the container ended and with which status"
)


def steps_for(
    verdict: Verdict, problems: Iterable[Seen], missing: Iterable[str], logs: int
) -> list[str]:
    """Return what to do next; nothing where the cause is certain, or there is no error.

    Args:
        problems: what was seen.
        missing: what a healthy start would have logged besides.
        logs: how many were read.
    """
    if verdict in ("cause", "warnings", "no-error"):
        return []
    lacking = any("ranks" in text for text in missing)
    steps = [OTHERS] if lacking or (verdict == "effects" and logs == 1) else []
    steps += _by_verdict(verdict)
    if any("NCCL" in seen.finding.found for seen in problems if not seen.overcome):
        steps.append(DEBUG)
    return steps


def _by_verdict(verdict: Verdict) -> Sequence[str]:
    if verdict == "effects":
        return (KERNEL, CUT)
    return (WAITING, KERNEL) if verdict == "unfinished" else (SEARCH,)
