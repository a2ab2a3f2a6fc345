"""Everything that two nodes are booted from, made once: base tree, image, vLLM, model."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from spark_cluster_lab import vllm_env
from spark_cluster_lab.artefact import Artefact
from spark_cluster_lab.base import base_tree
from spark_cluster_lab.build_progress import BuildProgress
from spark_cluster_lab.image import TAR, image, image_tree
from spark_cluster_lab.layout import Layout
from spark_cluster_lab.machine import Progress, install_missing_tools, this_distribution
from spark_cluster_lab.standin_layer import standin_layer
from spark_cluster_lab.wheels import wheels


@dataclass(frozen=True)
class Prepared:
    """The prepared files to boot nodes from, or those that will exist once prepared."""

    base: Artefact
    standins: Artefact
    image_tree: Artefact
    image: Artefact
    vllm: Artefact
    models: Artefact
    wheels: Artefact

    @classmethod
    def of(cls, layout: Layout) -> Prepared:
        machine = this_distribution()
        tree = image_tree(layout, machine)
        environment = vllm_env.vllm_environment(layout, tree)
        base = base_tree(layout, machine)
        return cls(
            base=base,
            standins=standin_layer(layout),
            image_tree=tree,
            image=image(layout, tree),
            vllm=environment,
            models=vllm_env.model(layout, tree, environment),
            wheels=wheels(layout, base, tree, environment),
        )

    @property
    def all(self) -> tuple[Artefact, ...]:
        serving = (self.image_tree, self.image, self.vllm, self.models)
        return (self.base, self.standins, *serving, self.wheels)

    @property
    def ready(self) -> bool:
        return all(artefact.ready for artefact in self.all)

    @property
    def model(self) -> Path:
        return self.models.path / vllm_env.MODEL

    @property
    def image_tar(self) -> Path:
        return self.image.path / TAR


def prepare(layout: Layout, progress: Progress) -> Prepared:
    """Make what is not there yet; what is newest gets its plain name."""
    install_missing_tools(progress)
    layout.prepared.mkdir(parents=True, exist_ok=True)
    prepared = Prepared.of(layout)
    if not prepared.ready:
        make_missing(prepared, progress)
    for artefact in prepared.all:
        artefact.link()
    return prepared


def make_missing(prepared: Prepared, progress: Progress) -> None:
    """Build in parallel what does not depend on each other, and show how far it is."""
    missing = [artefact for artefact in prepared.all if not artefact.ready]
    started = time.monotonic()
    with BuildProgress(missing, progress).shown():
        _build(prepared, progress)
    progress(f"prepared in {time.monotonic() - started:.1f} s")


def _build(prepared: Prepared, progress: Progress) -> None:

    def for_nodes() -> None:
        prepared.standins.make(progress)
        prepared.base.make(progress)

    def for_serving() -> None:
        prepared.image_tree.make(progress)
        prepared.vllm.make(progress)

    def for_users() -> None:  # one after the other: both work inside the image's tree
        prepared.models.make(progress)
        prepared.wheels.make(progress)

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(for_nodes), pool.submit(for_serving)]
        for work in both:
            work.result()
        both = [pool.submit(prepared.image.make, progress), pool.submit(for_users)]
        for work in both:
            work.result()
