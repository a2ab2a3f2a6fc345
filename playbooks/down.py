"""Stop serving, and verify that the memory is free again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from spark_cluster.config.topology import Node
from spark_cluster.engine import ray_cluster, vram
from spark_cluster.engine.names import RAY
from spark_cluster.engine.ray import RAY_HOME
from spark_cluster.engine.runtime import absent, our_processes, present_programs
from spark_cluster.engine.vram import Stopped
from spark_cluster.errors import VerificationFailed
from spark_cluster.node import kernel_tuner, measure
from spark_cluster.resources import Container, Directory
from spark_cluster.runner.play import Play

LOAD = Container(measure.CONTAINER, only_labelled=measure.LABEL, stop_timeout_s=2, state="absent")
"""The load generator of a benchmark that was killed."""

TUNER = Container(
    kernel_tuner.CONTAINER, only_labelled=kernel_tuner.LABEL, stop_timeout_s=2, state="absent"
)
"""What `tune` runs; what it has measured is kept."""


def main(
    play: Play,
    *,
    unload: Collection[str] = (),
    keep_others: bool = False,
    end_jobs: bool | None = None,
) -> Stopped | None:
    """Stop load and server with its proxy first, then Ray; None in check mode.

    Args:
        unload: programs whose loaded models are unloaded, too (`ollama`).
        keep_others: the memory of programs that are not ours need not be free.
        end_jobs: end Ray although jobs are running on it; None where the command has no flag for
            it.
    """
    if not end_jobs and play.inventory.head.name not in play.out:  # Ray's jobs end with the head
        ray_cluster.must_have_no_jobs(play, ray_cluster.running_jobs(play), end_jobs=end_jobs)
    sessions = {node.name: play.session(node) for node in play.nodes}
    present = present_programs(play)
    names = sorted({name for programs in present.values() for name in programs} - {RAY})
    before = [] if play.check else vram.sample(sessions)
    others = _others(play, before, unload, (*names, RAY)) if keep_others and not play.check else {}
    vram.record(play.bus, "before", before)
    with play.stage("stop"):
        play.apply(
            play.nodes,
            play.role("model_loader"),  # it would start what is stopped
            [LOAD, TUNER, *absent(*names)],
            play.role("endpoint", endpoint=None),
        )
        play.apply(
            play.nodes,
            [
                *absent(RAY),
                Directory(RAY_HOME, state="absent", keep=False),
            ],
            play.role("start_limit", state="absent"),
            play.role("firewall", state="absent"),
        )
        if "ollama" in unload:
            play.on_each(play.nodes, partial(_unload_ollama, play))
    if play.check:
        return None
    with play.stage("prove"):
        shared = _shared(play.nodes, before)
        now = vram.until_free(sessions, shared, others)
        vram.record(play.bus, "stopped", now)
    _must_be_free(play, shared, now, others)
    return Stopped(before, now)


def _shared(nodes: Sequence[Node], before: list[vram.NodeVram]) -> list[vram.NodeVram]:
    """Return the readings of nodes whose GPU takes the machine's memory, as far as is known: what a
    GPU with memory of its own gives back, MemAvailable never shows."""
    own = {node.name for node in nodes if node.facts.gpu and not node.facts.gpu.shares_memory}
    return [reading for reading in before if reading.name not in own]


def _others(
    play: Play, before: list[vram.NodeVram], unload: Collection[str], programs: Sequence[str]
) -> dict[str, set[int]]:
    """Node to the processes that are none of ours and keep their memory."""
    ours = our_processes(play, [reading.name for reading in before], programs)
    return {
        reading.name: {
            p.pid
            for p in reading.processes
            if p.pid not in ours[reading.name] and not any(n in p.name.lower() for n in unload)
        }
        for reading in before
    }


def _unload_ollama(play: Play, node: Node) -> None:
    """Unload what Ollama has loaded on a node, and say what that was."""
    session = play.session(node)
    models = vram.ollama_models(session, node.name)
    shown = ", ".join(map(str, models))
    if not models:
        play.note("Ollama has no model loaded, or is not running", node=node)
    elif play.check:
        play.note(f"Ollama: would unload {shown}", node=node)
    else:
        vram.unload_ollama(session, node.name, models)
        play.note(f"Ollama: unloaded {shown}", node=node)


def _must_be_free(
    play: Play, before: list[vram.NodeVram], now: list[vram.NodeVram], others: vram.Pids
) -> None:
    """Name what holds memory still.

    Raises:
        VerificationFailed: a process does; each with its id, its program and its node.
    """
    held = vram.held_by(now, others)
    if held:
        raise VerificationFailed(
            f"memory is still held: {vram.described(held)}", hint=vram.advice(held)
        )
    known = {reading.name: reading for reading in before}
    for reading in now:
        missing = vram.missing_mib(known.get(reading.name, reading), reading)
        if missing:
            play.note(
                f"{reading.name}: no process holds GPU memory, but MemAvailable is {missing} MiB "
                f"lower than expected after {vram.FREE_WITHIN_S:g} s: another program of the node "
                "has taken memory meanwhile, or the driver has not returned it",
                warning=True,
            )
