"""A launch of an inference engine, by a recipe or a command line: the input of plans and rules.

A recipe becomes one (`of_recipe`), and so does a command line that someone pasted
(`spark_cluster.importers.commandline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from spark_cluster.config.engines import DEFAULT
from spark_cluster.config.model_kind import ModelKind, json_object
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import LARGEST, EngineValue, Quantization
from spark_cluster.config.yamlfile import described
from spark_cluster.errors import UsageError

MOST_DRAFTED = 1000


@dataclass(frozen=True)
class Volume:
    """A folder or file of the node that the container sees."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Launch:
    """A launch of the engine.

    Attributes:
        model: repository on the hub, or the path as written.
        base: the model that it is a build of, when that is known.
        quantization: how the weights lie in memory; None when nothing says it.
        weights_gib: of the whole model, when someone measured it.
        image: reference of the image as written, without the digest; empty without a container.
        digest: `sha256:...` or empty.
        dockerfile: how the image is built, when it is.
        vllm: version (`0.19.0`) that the image has; None when unknown.
        args: every flag, without dashes, also those that a recipe does not hold itself
            (`gpu-memory-utilization`, `port`, ...). True for a bare flag. Flags of another engine
            than vLLM that mean the same as one of vLLM's are under vLLM's name.
        docker: options of `docker run` without dashes, such as `network` or `ulimit`; a list when
            given several times.
        origin: what the user can edit.
        drafter: repository or path of the drafting model.
        revisions: repository on the hub to the branch, tag or commit that is downloaded, where a
            recipe says it.
        tp: tensor-parallel size.
        nodes: how many machines.
        executor: what joins the nodes, where a recipe says it; a command has it in `args`.
        engine: the inference engine.
        kind: of the model, as a recipe says it or as flags and name show it.
    """

    model: str
    base: str | None = None
    quantization: Quantization | None = None
    weights_gib: float | None = None
    image: str = ""
    digest: str = ""
    dockerfile: str = ""
    vllm: str | None = None
    args: Mapping[str, EngineValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    docker: Mapping[str, str | bool | list[str]] = field(default_factory=dict)
    drafter: str | None = None
    revisions: Mapping[str, str] = field(default_factory=dict)
    tp: int = 1
    nodes: int = 1
    origin: Literal["recipe", "command"] = "recipe"
    ready_timeout_s: float | None = None
    executor: str | None = None
    engine: str = DEFAULT
    kind: ModelKind = "chat"

    @property
    def speculative(self) -> Mapping[str, object]:
        """`--speculative-config`, whoever wrote it; empty without one."""
        return json_object(self.args.get("speculative-config"))

    @property
    def drafted_tokens(self) -> int:
        """Tokens drafted in a step; 0 without a drafter."""
        count = self.speculative.get("num_speculative_tokens")
        if not isinstance(count, int) or count <= 0:
            return 0
        if count > MOST_DRAFTED:
            found = described(count)
            raise UsageError(f"num_speculative_tokens: found {found}, expected 1 to {MOST_DRAFTED}")
        return count

    @property
    def kv_dtype(self) -> str:
        """`--kv-cache-dtype`; `auto` when it is not given."""
        return self.text("kv-cache-dtype") or "auto"

    @property
    def drafts_itself(self) -> bool:
        """True if drafts come from the model's own MTP layers."""
        config = self.speculative
        return "mtp" in str(config.get("method", "")) and not config.get("model")

    @property
    def pp(self) -> int:
        """Pipeline-parallel size: stages of layers."""
        return max(1, int(self.number("pipeline-parallel-size") or 1))

    @property
    def dp(self) -> int:
        """Data-parallel size: replicas in one server."""
        return max(1, int(self.number("data-parallel-size") or 1))

    @property
    def ranks(self) -> int:
        """GPUs of all replicas; a Spark has one."""
        return self.tp * self.pp * self.dp

    def at_size(self, tp: int) -> Launch:
        """The same at another tensor-parallel size."""
        sized = replace(self, tp=tp).with_flags({"tensor-parallel-size": tp})
        return replace(sized, nodes=sized.ranks)

    def with_flags(self, flags: Mapping[str, EngineValue]) -> Launch:
        """The same with these flags, in place of what they were."""
        return replace(self, args={**self.args, **flags})

    def without_flags(self, *flags: str) -> Launch:
        """The same without these flags."""
        return replace(self, args={k: v for k, v in self.args.items() if k not in flags})

    def number(self, flag: str) -> float | None:
        """A flag's value as a number; None when it is not given or is none.

        Raises:
            UsageError: it is no finite number, or one that no flag can mean.
        """
        value = self.args.get(flag)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return finite(value, f"--{flag}")

    def text(self, flag: str) -> str:
        """A flag's value as text; empty when it is not given."""
        value = self.args.get(flag, "")
        return value if isinstance(value, str) else ""


def finite(value: float, what: str) -> float:
    """The number, when it is one that can be reckoned with.

    Raises:
        UsageError: it is infinite, not a number, or beyond 2**64.
    """
    if not abs(value) < LARGEST:
        raise UsageError(f"{what}: found {described(value)}, expected a number below 2**64")
    return float(value)


def of_recipe(recipe: Recipe, tp: int, gpu_memory_utilization: float | None = None) -> Launch:
    """The launch that `up --tp N` makes of a recipe.

    Args:
        gpu_memory_utilization: what was computed for `auto`; the recipe's own figure wins.
    """
    volumes = [Volume(m.source, m.target, m.read_only) for m in recipe.mounts]
    for patch in recipe.patches:
        source = f"{recipe.model.node_path}/{patch.file}" if patch.origin == "model" else patch.file
        volumes.append(Volume(source, patch.target, read_only=True))
    revisions = {recipe.model.name: recipe.model.revision} if recipe.model.source == "hub" else {}
    if recipe.drafter is not None and recipe.drafter.name:
        revisions[recipe.drafter.name] = recipe.drafter.revision
    flags = recipe.flags(tp, gpu_memory_utilization)
    return Launch(
        revisions=revisions,
        model=recipe.model.name,
        base=recipe.model.base,
        quantization=recipe.model.quantization,
        weights_gib=recipe.model.weights_gib,
        image=recipe.image.ref,
        digest=recipe.image.digest or "",
        dockerfile=recipe.image.build.text if recipe.image.build else "",
        vllm=recipe.vllm.version,
        args=recipe.dialect.common(flags),
        env=recipe.plain_env,
        volumes=tuple(volumes),
        drafter=(recipe.drafter.name or recipe.drafter.path) if recipe.drafter else None,
        tp=tp,
        nodes=recipe.nodes_for(tp),
        ready_timeout_s=recipe.ready_timeout_s,
        executor=recipe.executor,
        engine=recipe.engine,
        kind=recipe.kind,
    )
