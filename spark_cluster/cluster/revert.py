"""The revert on all nodes of what a run changed on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.runner.events import NodeFailed, Note, Result
from spark_cluster.runner.parallel import in_parallel

if TYPE_CHECKING:
    from spark_cluster.runner.events import Bus
    from spark_cluster.runner.play import Play
    from spark_cluster.runner.session import Session


@dataclass
class NodeRevert:
    """The result of a revert on one node.

    Attributes:
        of: full id of the run; empty when it changed nothing there.
        paths: what was reverted, or in check mode would be.
        left: (what, why) of all that stays as the run left it.
        continued: the run of a revert that was killed, which this one has continued.
        error: why nothing was reverted.
    """

    of: str = ""
    paths: list[Result] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    continued: str = ""
    error: SparkClusterError | None = None


def revert(play: Play, of: str) -> dict[str, NodeRevert]:
    """Revert run `of` on the nodes of a play, in parallel: on each of them all of it or nothing.

    Raises:
        Failed: the run changed nothing on any of them.
    """
    bus, options = play.bus, play.options
    wanted = {"of": of, "run": play.connections.run, "check": play.check, "diff": options.diff}
    done = {node.name: NodeRevert() for node in play.nodes}
    jobs = {n: partial(_on_node, s, bus, wanted, done[n]) for n, s in play.sessions.items()}
    missing: list[dict[str, Any]] = []
    for name, outcome in in_parallel(jobs).items():
        if isinstance(outcome, SparkClusterError):
            done[name].error = outcome
            bus.emit(NodeFailed.of(name, outcome))
        elif "missing" in outcome:
            missing.append(outcome)
            bus.emit(Note(outcome["missing"], "info", name))
    if missing and len(missing) == len(done):
        raise Failed(missing[0]["missing"], hint=missing[0]["hint"])
    return done


def _on_node(
    session: Session, bus: Bus, wanted: dict[str, Any], done: NodeRevert
) -> dict[str, Any]:
    failed: list[Result] = []

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "note":
            bus.emit(Note(event["text"], "warning", session.node))
        if event["event"] != "result":
            return
        known = {k: event[k] for k in ("changes", "diff", "error") if k in event}
        result = Result(session.node, "revert", event["id"], event["verdict"], **known)
        (failed if result.verdict == "failed" else done.paths).append(result)
        bus.emit(result)

    reply = session.request("revert", take, **wanted)
    if "missing" in reply:
        return reply
    done.of = reply["of"]
    done.left = [(item["what"], item["why"]) for item in reply["left"]]
    done.continued = reply.get("continued", "")
    for note in reply.get("notes", ()):
        bus.emit(Note(f"run {done.of}: {note}", "warning", session.node))
    if done.continued and not failed:
        does = "would continue" if wanted["check"] else "continued"
        text = f"{does} run {done.continued}, a revert of the same run that was killed"
        bus.emit(
            Note(
                f"{text}; to revert it: spark-cluster revert {done.continued}",
                "info",
                session.node,
            )
        )
    if failed:
        others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise Failed(
            f"nothing was reverted: {failed[0].error}{others}",
            where=session.node,
            hint="restore these to what the run left, or revert the later run first",
        )
    return reply
