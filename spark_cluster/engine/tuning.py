"""Tuning an engine's kernels for a recipe on the head's GPU: what is refused, run and handed on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.config.flags import words
from spark_cluster.engine import readiness, vram
from spark_cluster.engine.process import RAY, SERVER
from spark_cluster.errors import Failed, InvalidFile, Refused
from spark_cluster.models.config import from_config
from spark_cluster.models.kernel_shape import KernelShape, NothingToTune, kernel_shape
from spark_cluster.node.kernel_tuner import CONTAINER
from spark_cluster.node.store.layout import whole_folder
from spark_cluster.node.tuned_kernels import FOLDER, INDEX, folder_of
from spark_cluster.resources import Directory, File, TunedKernels

if TYPE_CHECKING:
    from spark_cluster.engine.plan import ServePlan
    from spark_cluster.runner.play import Play

SIZES = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 2048, 4096)
"""Batch sizes in tokens: of decoding, and of prefill in chunks. vLLM takes the nearest that there
is. Source: `get_moe_configs` in its fused_moe.py."""

QUICK_S, SLOW_S = 0.45, 10.0
"""Seconds for one configuration: 10,368 in 77 minutes on an H100 (vLLM 44830); on a Spark some
have taken more than ten times that."""

TUNERS = "tuners"
"""Folder of tuners that the laptop sent, below that of what is tuned."""


@dataclass(frozen=True)
class Tuning:
    """The tuning of a recipe's kernels.

    Attributes:
        file: name of the file, as the engine looks for it.
        sizes: batch sizes that are tuned.
        changed: whether any was measured now.
        nodes: that have the result.
        estimate_s: seconds that were expected, from and to.
    """

    recipe: str
    tp: int
    image: str
    gpu: str
    file: str
    sizes: tuple[int, ...]
    changed: bool
    nodes: tuple[str, ...]
    estimate_s: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `tune --json` prints it."""
        return asdict(self)


def must_be_free(play: Play, plan: ServePlan) -> None:
    """Refuse where something serves or holds the GPU's memory; the tuner itself may run already.

    Raises:
        Refused: with what it is.
    """
    if readiness.container_state(play, CONTAINER).status == "running":
        play.note("the tuner runs there already; its end is waited for")
        return
    for name in (SERVER, RAY):
        if readiness.container_state(play, name).status == "running":
            raise Refused(
                "the engine runs, and the tuner needs the GPU and its memory for itself",
                where=f"{plan.nodes[0].name} {name}",
                hint="`spark-cluster down` first; `spark-cluster up` again afterwards",
            )
    name = plan.nodes[0].name
    (reading,) = vram.sample({name: play.session(plan.nodes[0])})
    if reading.processes:
        held = ", ".join(f"{p.name} (PID {p.pid}, {p.used_mib} MiB)" for p in reading.processes)
        raise Refused(
            f"GPU memory is held by {held}: times beside another program's mean nothing",
            where=name,
            hint="end it first; `spark-cluster vram` shows who holds what",
        )


def shape_of(play: Play, plan: ServePlan) -> KernelShape:
    """Return the shape to tune, by the model's own config on the head.

    Raises:
        Refused: there is nothing to tune, with the reason.
        Failed: the config cannot be read.
    """
    path = f"{plan.deployment.model_path}/config.json"
    answer = play.session(plan.nodes[0]).request("gather", files={"config": path})
    try:
        config = json.loads(answer["files"]["config"] or "")
        geometry = from_config(config, plan.recipe.model.name)
    except (ValueError, InvalidFile) as error:
        raise Failed(
            f"the model's config cannot be read: {error}",
            where=f"{plan.nodes[0].name}:{path}",
            hint="`spark-cluster models list` shows what the nodes have",
        ) from None
    try:
        return kernel_shape(geometry, config, plan.launch.args, plan.tp)
    except NothingToTune as reason:
        raise Refused(f"there is nothing to tune for {plan.recipe.name}: {reason}") from None


def must_be_tunable(plan: ServePlan) -> None:
    """Refuse an engine or a runtime without a tuner.

    Raises:
        Refused: with the reason.
    """
    if plan.deployment.engine != "vllm" or plan.deployment.runtime != "docker":
        raise Refused(
            f"there is nothing to tune for {plan.recipe.name}: the tuner is vLLM's, in its image, "
            f"and this is {plan.deployment.engine} in {plan.deployment.runtime}"
        )


def estimate(shape: KernelShape, sizes: Sequence[int]) -> tuple[float, float]:
    """Return how many seconds the tuning of batch sizes takes, from and to."""
    count = shape.configurations * len(sizes)
    return count * QUICK_S, count * SLOW_S


def resource(
    plan: ServePlan,
    shape: KernelShape,
    sizes: Sequence[int],
    *,
    tuner: str,
    limit_s: float,
    renew: bool,
) -> TunedKernels:
    """Return the desired state on the head: the kernels are tuned.

    Args:
        tuner: a file of the node; empty for the image's own.
    """
    made, gpu = plan.deployment, plan.nodes[0].facts.gpu
    given: dict[str, Any] = {"model": made.model_path, "tp-size": plan.tp}
    if shape.dtype:
        given["dtype"] = shape.dtype
    for flag in ("enable-expert-parallel", "trust-remote-code"):
        if plan.launch.args.get(flag):
            given[flag] = True
    name = gpu.name if gpu else ""
    whole = whole_folder(made.model_path)
    return TunedKernels(
        made.image,
        shape.file_name(name),
        made.cache_root,
        model=plan.recipe.model.name,
        tp=plan.tp,
        gpu=name,
        words=tuple(words(given)),
        sizes=tuple(sizes),
        volumes=tuple(dict.fromkeys((f"{whole}:{whole}:ro", *made.mounts))),
        env=dict(made.env),
        tuner=tuner,
        renew=renew,
        limit_s=limit_s,
    )


def sent_tuner(play: Play, plan: ServePlan, tuner: Path | None) -> str:
    """Send a tuner of the laptop to the head; return its path there, empty without one."""
    if tuner is None:
        return ""
    import hashlib

    text = tuner.read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = f"{plan.deployment.cache_root}/{FOLDER}/.{TUNERS}"
    path = f"{folder}/{digest}.py"
    parents = [Directory(f"{plan.deployment.cache_root}/{FOLDER}", mode=0o755)]
    play.apply(plan.nodes[0], [*parents, Directory(folder, mode=0o755), File(path, content=text)])
    return path


def hand_on(play: Play, plan: ServePlan, image: str, files: Sequence[str]) -> None:
    """Copy the result from the head to the other nodes that serve; they have the same GPU."""
    others = plan.nodes[1:]
    if not others:
        return
    root = plan.deployment.cache_root
    folder = folder_of(root, image)
    paths = {name: f"{folder}/{name}" for name in (*files, INDEX)}
    answer = play.session(plan.nodes[0]).request("gather", files=paths)
    made = [File(path, content=answer["files"][name] or "") for name, path in paths.items()]
    above = [Directory(path, mode=0o755) for path in (f"{root}/{FOLDER}", folder)]
    play.apply(others, [*above, *made])
