"""The input of rules: a launch, the model's shape, and the nodes' facts, if known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from packaging.version import InvalidVersion, Version

from spark_cluster.config.launch import Launch
from spark_cluster.facts.model import Facts
from spark_cluster.models import naming
from spark_cluster.models.shape import Geometry

_MOE = re.compile(r"-A\d+(?:\.\d+)?B\b", re.IGNORECASE)
_FAMILY = re.compile(r"(?i)gemma-?_?4(?![0-9])")


@dataclass(frozen=True)
class Case:
    """A launch with everything else that is known about it."""

    launch: Launch
    geometry: Geometry | None = None
    facts: Sequence[Facts] = ()

    @property
    def flags(self) -> Mapping[str, object]:
        return self.launch.args

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Everything that may name the model: itself, what it is made of, where it lies."""
        volumes = [v.source for v in self.launch.volumes if v.target == self.launch.model]
        served = self.launch.args.get("served-model-name", "")
        names: list[object] = [self.launch.model, self.launch.base or "", *volumes]
        names += served if isinstance(served, list) else [served]
        if self.geometry is not None:
            names += [self.geometry.name]
        return tuple(str(name) for name in names if name)

    @cached_property
    def family(self) -> str:
        """The model's type as its config says, or as its name lets one think; may be empty."""
        if self.geometry is not None:
            return self.geometry.model_type
        return "gemma4" if any(_FAMILY.search(name) for name in self.names) else ""

    @cached_property
    def is_moe(self) -> bool | None:
        """True for a mixture of experts; None when nothing tells."""
        if self.geometry is not None:
            return self.geometry.is_moe
        if any(_MOE.search(name) for name in self.names):
            return True
        return False if self.family == "gemma4" and self._named("31b") else None

    @cached_property
    def quantization(self) -> str | None:
        """The quantization of the weights; None when nothing tells."""
        launch = self.launch
        if launch.quantization is not None:
            return launch.quantization
        asked = launch.text("quantization")
        named = naming.quantization_of(asked, launch.model, launch.base, self.names)
        found = named or (self.geometry.quantization if self.geometry is not None else None)
        return None if found == naming.NOT_SAID else found

    @cached_property
    def version(self) -> Version | None:
        """vLLM's version, as the recipe gives it, or as the image's tag does."""
        text = self.launch.vllm or naming.version_in(self.launch.image)
        try:
            return Version(text) if text else None
        except InvalidVersion:
            return None

    @cached_property
    def image(self) -> str:
        """The image without the registry that is meant anyway."""
        return self.launch.image.removeprefix("docker.io/")

    @property
    def is_command(self) -> bool:
        """True for a command line run by hand: what it leaves out is not computed."""
        return self.launch.origin == "command"

    @property
    def in_docker(self) -> bool:
        """True for a `docker run` by hand."""
        return self.is_command and bool(self.launch.image)

    @property
    def several_nodes(self) -> bool:
        """More than one machine; a Spark has one GPU, so TP=2 is two of them."""
        return self.launch.nodes > 1 or self.launch.tp > 1

    @property
    def on_gpu(self) -> bool:
        """False for the CPU build of vLLM, as the lab runs it."""
        return not any(name.startswith("VLLM_CPU_") for name in self.launch.env)

    def docker(self, option: str) -> list[str]:
        """The values of an option of `docker run`; a bare one's is empty."""
        value = self.launch.docker.get(option)
        if value is None or value is False:
            return []
        if isinstance(value, list):
            return [str(v) for v in value]
        return ["" if value is True else str(value)]

    def matches(self, patterns: Sequence[str], texts: Sequence[str]) -> bool:
        """Return True when any pattern (`*`, `?`, any case) matches any text."""
        return any(fnmatchcase(t.lower(), p.lower()) for p in patterns for t in texts)

    def _named(self, part: str) -> bool:
        return any(part in name.lower() for name in (self.launch.model, *self.names))
