"""Tuning an engine's kernels for a recipe on the head's GPU: what is refused, run and handed on.

What is tuned for a launch is found on the nodes, and handed to the engine that starts.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_cluster.config.engines import words
from spark_cluster.config.schema import Document
from spark_cluster.config.topology import Node
from spark_cluster.engine import readiness, vram
from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.errors import Failed, InvalidFile, Refused, UsageError
from spark_cluster.models.config import from_config
from spark_cluster.models.lookup import find
from spark_cluster.models.naming import json_object
from spark_cluster.models.shape import Geometry
from spark_cluster.node import dockerd
from spark_cluster.node.engine_caches import (
    TUNED,
    TUNED_VARIABLE,
    short,
    sizes_in,
    tuned_folder,
)
from spark_cluster.node.kernel_tuner import CONTAINER
from spark_cluster.node.store.manifest import whole_folder
from spark_cluster.resources import Directory, File, TunedKernels
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import ask_all

SIZES = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 2048, 4096)
"""Batch sizes in tokens: of decoding, and of prefill in chunks. vLLM takes the nearest that there
is. Source: `get_moe_configs` in its fused_moe.py."""

SIZE_S = (860.0, 19_200.0)
"""Seconds for a batch size, from and to: 1,920 configurations at 0.45 s on an H100 (10,368 took 77
minutes, source: vllm-44830), and at 10 s, as some have taken on a Spark."""

TRITON_BACKENDS = ("auto", "triton")
"""Values of --moe-backend with which the kernel that is tuned may run."""

TUNED_DTYPES = {"": (), "fp8": ("--dtype", "fp8_w8a8")}
"""Quantization of weights that may run on that kernel, to the tuner's arguments. Source:
vllm-benchmark-moe."""

TUNERS = "tuners"
"""Folder of tuners that the laptop sent, below that of what is tuned."""


@dataclass(frozen=True)
class Tuning(Document):
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


def must_be_free(play: Play, server: Server) -> None:
    """Refuse where something serves or holds the GPU's memory; the tuner itself may run already.

    Raises:
        Refused: with what it is.
    """
    if readiness.container_state(play, CONTAINER).status == "running":
        play.note("the tuner is already running there; waiting for it")
        return
    for name in (SERVER, RAY):
        if readiness.container_state(play, name).status == "running":
            raise Refused(
                "the engine runs, and the tuner needs the GPU and its memory for itself",
                where=f"{server.nodes[0].name} {name}",
                hint="`spark-cluster down` first; `spark-cluster up` again afterwards",
            )
    name = server.nodes[0].name
    (reading,) = vram.sample({name: play.session(server.nodes[0])})
    if reading.processes:
        held = ", ".join(f"{p.name} (PID {p.pid}, {p.used_mib} MiB)" for p in reading.processes)
        raise Refused(
            f"GPU memory is held by {held}: times beside another program's mean nothing",
            where=name,
            hint="end it first; `spark-cluster vram` shows who holds what",
        )


def arguments(play: Play, server: Server) -> tuple[str, ...]:
    """Return the tuner's arguments, by the model's own config on the head; none in check mode while
    the model is not there.

    Raises:
        Refused: there is nothing to tune, with the reason.
        Failed: the config cannot be read.
    """
    path = f"{server.model_path}/config.json"
    text = play.session(server.nodes[0]).read_file(path)
    if text is None and play.check:
        return ()
    try:
        config = json_object(text or "", path)
        geometry = from_config(config, server.recipe.model.name)
    except InvalidFile as error:
        raise Failed(
            f"the model's config cannot be read: {error.message}",
            where=f"{server.nodes[0].name}:{path}",
            hint="`spark-cluster models list` shows what the nodes have",
        ) from None
    dtype = _tuned_dtype(server, geometry)
    given: dict[str, Any] = {"model": server.model_path, "tp-size": server.tp}
    for flag in ("enable-expert-parallel", "trust-remote-code"):
        if server.launch.args.get(flag):
            given[flag] = True
    return (*words(given), *dtype)


def _tuned_dtype(server: Server, geometry: Geometry) -> tuple[str, ...]:
    """Return the tuner's arguments for the type of the weights.

    Raises:
        Refused: there is nothing to tune in a model of this shape.
    """
    flags = server.launch.args
    backend = str(flags.get("moe-backend", "auto"))
    quantization = str(geometry.quantization or flags.get("quantization") or "")
    reason = ""
    if geometry.experts is None:
        reason = "it has no experts, and the tuner is for a mixture of experts only"
    elif backend not in TRITON_BACKENDS:
        reason = f"--moe-backend {backend} leaves out the Triton kernel"
    elif quantization not in TUNED_DTYPES:
        reason = f"its weights are {quantization}, which run on other kernels than Triton's"
    if reason:
        raise _nothing_to_tune(server, reason)
    return TUNED_DTYPES[quantization]


def must_be_tunable(server: Server) -> None:
    """Refuse an engine or a runtime without a tuner, and a model that is known to need none.

    Raises:
        Refused: with the reason.
    """
    if server.recipe.engine != "vllm" or server.recipe.runtime != "docker":
        what = f"{server.recipe.engine} in {server.recipe.runtime}"
        raise _nothing_to_tune(server, f"the tuner is vLLM's, in its image, and this is {what}")
    if TUNED_VARIABLE in server.recipe.env:
        raise _nothing_to_tune(
            server,
            f"its {TUNED_VARIABLE} names a folder of its own, so that vLLM would not look for what "
            "is tuned",
            hint=f"leave {TUNED_VARIABLE} out of the recipe's env",
        )
    model = server.recipe.model
    if model.source == "hub" and model.name:
        with contextlib.suppress(UsageError, InvalidFile):  # its shape is not known on the laptop
            _tuned_dtype(server, find(model.name, base=model.base))


def _nothing_to_tune(server: Server, why: str, hint: str = "") -> Refused:
    return Refused(f"there is nothing to tune for {server.recipe.name}: {why}", hint=hint)


def resource(
    server: Server,
    arguments: Sequence[str],
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
    folder = whole_folder(server.model_path)
    return TunedKernels(
        server.recipe.model.name,
        server.image,
        server.cache_root,
        tp=server.tp,
        words=tuple(arguments),
        sizes=tuple(sizes),
        volumes=tuple(dict.fromkeys((f"{folder}:{folder}:ro", *server.mounts))),
        env=dict(server.env),
        tuner=tuner,
        renew=renew,
        limit_s=limit_s,
    )


def sent_tuner(play: Play, server: Server, tuner: Path | None) -> str:
    """Send a tuner of the laptop to the head; return its path there, empty without one."""
    if tuner is None:
        return ""
    text = tuner.read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = f"{server.cache_root}/{TUNED}/.{TUNERS}"
    path = f"{folder}/{digest}.py"
    parents = [Directory(f"{server.cache_root}/{TUNED}", mode=0o755)]
    play.apply(server.nodes[0], [*parents, Directory(folder, mode=0o755), File(path, content=text)])
    return path


def hand_on(play: Play, server: Server) -> tuple[str, tuple[int, ...]]:
    """Copy the result from the head to the other nodes that serve; they have the same GPU.

    Returns:
        The name of the file (of several, for other types of weights, all), and the batch sizes.

    Raises:
        Failed: there is none.
        InvalidFile: the head has another thing in its place.
    """
    head, *others = server.nodes
    image = image_on_head(play, server)
    found = fitting(tuned_on(play, server, [head])[head.name], server.tp, image)
    folder = tuned_folder(server.cache_root, image, server.recipe.model.name, server.tp)
    paths = {str(entry["file"]): f"{folder}/{entry['file']}" for entry in found}
    answer = play.session(head).request("gather", files=paths)
    texts = {name: text for name, text in answer["files"].items() if text}
    if not texts:
        raise Failed("the tuner ended well, and left nothing", where=head.name)
    sizes = {size for text in texts.values() for size in sizes_in(json_object(text, head.name))}
    if others:
        above = (f"{server.cache_root}/{TUNED}", folder.rpartition("/")[0], folder)
        made = [File(paths[name], content=text) for name, text in texts.items()]
        play.apply(others, [*(Directory(path, mode=0o755) for path in above), *made])
    return " ".join(sorted(texts)), tuple(sorted(sizes))


# What is tuned on the nodes, and the server that uses it.

TUNED_LABEL = "spark-cluster.tuned"
"""Of the engine's containers: files with tuned parameters that they were started with."""

TunedOn = Mapping[str, Sequence[Mapping[str, Any]]]
"""Node to what is tuned there."""


def tuned_on(play: Play, server: Server, nodes: Sequence[Node]) -> TunedOn:
    """Ask the nodes for what is tuned for a server's model; nothing is asked where it cannot be."""
    recipe, folder = server.recipe, server.cache_root
    if recipe.engine != "vllm" or recipe.venv is not None or TUNED_VARIABLE in recipe.env:
        return {}
    answers = ask_all(play.sessions_of(nodes), "caches", what="state", folder=folder)
    return {
        name: [entry for entry in answer["tuned"] if entry["model"] == recipe.model.name]
        for name, answer in answers.items()
    }


def with_tuned(play: Play, deployment: Deployment, found: Mapping[str, TunedOn]) -> Deployment:
    """Return a deployment whose servers get what is tuned for them.

    Args:
        found: recipe to what is tuned for it.
    """
    made = [
        with_tuned_kernels(play, server, found[server.recipe.name]) for server in deployment.servers
    ]
    return deployment.with_servers(made)


def with_tuned_kernels(play: Play, server: Server, found: TunedOn) -> Server:
    """Return the server with what is tuned for its model, size and image on all its nodes.

    Without it on each of them the server stays as it is: all ranks get the same environment.
    """
    if not all(fitting(found.get(node.name, ()), server.tp) for node in server.nodes):
        return server
    image = image_on_head(play, server)
    tuned = [fitting(found[node.name], server.tp, image) for node in server.nodes]
    files = set.intersection(*({str(entry["file"]) for entry in entries} for entries in tuned))
    if not files:
        play.note(
            "kernels are tuned for this model with another image, and not used: "
            f"`spark-cluster tune {server.recipe.name}` tunes them for this one"
        )
        return server
    folder = tuned_folder(server.cache_root, image, server.recipe.model.name, server.tp)
    return replace(
        server,
        env={**server.env, TUNED_VARIABLE: folder},
        mounts=(*server.mounts, f"{folder}:{folder}:ro"),
        labels={**server.labels, TUNED_LABEL: " ".join(sorted(files))},
    )


def fitting(
    entries: Iterable[Mapping[str, Any]], tp: int, image: str = ""
) -> list[Mapping[str, Any]]:
    """Return what is tuned for a size and an image's id; for any image without one."""
    wanted = {"tp": tp, **({"image": short(image)} if image else {})}
    return [entry for entry in entries if wanted.items() <= entry.items()]


def image_on_head(play: Play, server: Server) -> str:
    """Return the id of the image on the head; `-` where it is not there yet."""
    asked = {"image": dockerd.image_question(server.image)}
    answer = play.session(server.nodes[0]).request("gather", commands=asked)
    found = dockerd.image_answer(answer["commands"]["image"])
    return found.id if found is not None else "-"
