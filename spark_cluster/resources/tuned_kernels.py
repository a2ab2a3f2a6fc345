"""Tuned parameters of an engine's kernels, made by the engine's own tuner in its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_cluster.node import durable, engine_caches, kernel_tuner, own_program, units
from spark_cluster.node.beneath import Folder
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import Resource, State, absolute, checks
from spark_cluster.resources.image import need_image

SPARE_S = 900.0
"""Seconds after the limit of the tuner in which it keeps what it has and ends."""

_PASSED = ("words", "renew", "volumes", "env", "limit_s")
"""Fields that the tuner's program gets as they are."""


@dataclass(frozen=True)
class TunedKernels(Resource):
    """Parameters of vLLM's Triton kernel for experts, tuned on this GPU, beside the caches.

    vLLM's tuner (benchmark_moe.py) runs for one batch size after another, in a container of the
    image without a network, in a unit of its own that goes on when the laptop is gone. What was
    measured is kept after each; a later run goes on with those that lack.

    Args:
        model: name of the model, by which `up` finds the result.
        image: reference of the image, which is there.
        root: folder of the caches.
        tp: tensor-parallel size that it is for.
        words: arguments of the tuner: model, size and type.
        sizes: batch sizes.
        volumes: of the container, `SOURCE:TARGET[:ro]`.
        env: environment of the container.
        tuner: a file of the node with the tuner; empty for the image's own.
        renew: measure again what is there.
        limit_s: seconds; then the size that is measured is given up, and those before are kept.

    Raises:
        ResourceError: the image cannot tune, or the tuner fails, with its reason.

    Example:
        TunedKernels("Qwen/Qwen3-30B-A3B", "vllm/vllm-openai:v0.20.1", "/srv/caches", tp=1,
                     words=("--model", "/srv/models/m", "--tp-size", "1"), sizes=(1, 2, 4))
    """

    reverts = "the files stay; `caches prune --kind tuned` removes them"

    valid = checks(root=absolute, tuner=absolute)

    model: str
    image: str
    root: str
    tp: int = field(kw_only=True)
    words: tuple[str, ...] = field(kw_only=True)
    sizes: tuple[int, ...] = field(kw_only=True)
    volumes: tuple[str, ...] = field(default=(), kw_only=True)
    env: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    tuner: str = field(default="", kw_only=True)
    renew: bool = field(default=False, kw_only=True)
    limit_s: float = field(default=24 * 3600.0, kw_only=True)

    def validate(self) -> None:
        fits = self.sizes and all(size >= 1 for size in self.sizes)
        self.must(fits, "sizes are numbers of tokens from 1")

    def desired(self) -> State:
        return {"sizes": sorted(set(self.sizes))}

    def observe(self, host: Host) -> State:
        return {"sizes": []} if self.renew else self.state_after(host)

    def converge(self, host: Host, actual: State) -> None:
        request = {
            **{name: getattr(self, name) for name in _PASSED},
            "image": self._image(host),
            "root": str(host.path(self.root)),
            "folder": str(self._folder(host)),
            "lock": str(host.path(durable.TUNING_LOCK)),
            "sizes": sorted(set(self.sizes)),
            "tuner": str(host.path(self.tuner)) if self.tuner else "",
        }
        done = units.run(host, self.id, kernel_tuner.argv(request), timeout=self.limit_s + SPARE_S)
        found = own_program.answer_of(done.stdout, done.stderr, "the tuner")
        if found["left"]:
            raise ResourceError(
                f"the limit of {self.limit_s / 3600:g} h is over: batch sizes "
                f"{_listed(found['sizes']) or 'none'} are tuned, {_listed(found['left'])} are not",
                "run it again to go on with those, with a higher limit if one size takes longer",
            )

    def state_after(self, host: Host) -> State:
        present = engine_caches.tuned_sizes(Folder(host.path(self.root)), self._folder(host))
        return {"sizes": sorted(present & set(self.sizes))}

    def _folder(self, host: Host) -> Path:
        folder = engine_caches.tuned_folder(self.root, self._image(host), self.model, self.tp)
        return host.path(folder)

    def _image(self, host: Host) -> str:
        return need_image(host, self.image, f"tuning for {self.model}").id


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes))
