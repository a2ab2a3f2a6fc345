"""A launch of an inference engine, by a recipe or a command line, and the options that change it.

A recipe becomes a `Launch` (`of_recipe`), and so does a command line that someone pasted
(`spark_cluster.importers.commandline`): the input of plans and rules.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from spark_cluster.config.engines import DEFAULT, Dialect, dialect, with_unit
from spark_cluster.config.image_build import RecipeImage
from spark_cluster.config.recipe import Recipe, recipe_problems
from spark_cluster.config.recipe_schema import (
    LARGEST,
    MOST_NODES,
    Drafter,
    EngineValue,
    EnvironmentValue,
    ModelKind,
    Quantization,
    Variable,
    json_object,
    why_no_engine_value,
)
from spark_cluster.config.secret import is_secret_setting
from spark_cluster.config.yamlfile import described, did_you_mean
from spark_cluster.errors import UsageError

MOST_DRAFTED = 1000

DRAFTER_FLAGS = {
    "spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens",
}  # fmt: skip
"""vLLM's short forms of keys of `--speculative-config`, since 0.22.0 (its arg_utils.py)."""


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
        directory: the model is a folder of this machine, which `up` copies to the nodes.
        venv: the environment on the nodes that serves, without a container; empty otherwise.
        tp: tensor-parallel size.
        nodes: how many machines.
        executor: what joins the nodes, where a recipe says it; a command has it in `args`.
        engine: the inference engine.
        kind: of the model, as a recipe says it or as flags and name show it.
        given_twice: a container gets `vllm serve`, which its image's entry point starts already.
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
    directory: bool = False
    venv: str = ""
    tp: int = 1
    nodes: int = 1
    origin: Literal["recipe", "command"] = "recipe"
    ready_timeout_s: float | None = None
    executor: str | None = None
    engine: str = DEFAULT
    kind: ModelKind = "chat"
    given_twice: bool = False

    @property
    def on_cpu(self) -> bool:
        """True for the CPU build of vLLM, as the lab runs it."""
        return any(name.startswith("VLLM_CPU_") for name in self.env)

    @property
    def speculative(self) -> Mapping[str, object]:
        """`--speculative-config` with its short forms, whoever wrote it; empty without one."""
        given = {key: self.args[flag] for flag, key in DRAFTER_FLAGS.items() if flag in self.args}
        return {**given, **json_object(self.args.get("speculative-config"))}

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
            UsageError: it is not a finite number, or one that no flag can mean.
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
    if (given := recipe.drafter) is not None and given.name:
        revisions[given.name] = given.revision
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
        drafter=(given.name or given.path) if given else str(flags.get("spec-model", "")) or None,
        directory=recipe.model.source == "directory",
        venv=recipe.venv.path if recipe.venv is not None else "",
        tp=tp,
        nodes=recipe.nodes_for(tp),
        ready_timeout_s=recipe.ready_timeout_s,
        executor=recipe.executor,
        engine=recipe.engine,
        kind=recipe.kind,
    )


# What the command line gives in place of the recipe's, for one `plan` or `up`.
#
# Engine arguments are the engine's own flags: `--max-model-len 32768` or `-o max-model-len=32768`.
# A value is checked as a recipe's is; what is no engine argument of a recipe is refused with its
# place. Variables of the containers (`-e NAME=VALUE`) and the image (`--image`) stand among them
# under names that no flag has.

ENV = "env."
"""Before the name of a variable of the containers; no flag begins so."""

IMAGE = "image.ref"
"""The image, with or without a digest."""


def _variable(name: str, value: str) -> EnvironmentValue:
    """Raises:
    UsageError: no variable of a recipe, or a secret.
    """
    if is_secret_setting(name, value):
        raise UsageError(
            f"-e {name}: the value looks like a secret, which labels and records would keep",
            hint=f"write `env: {{{name}: {{env: {name}}}}}` into a recipe, which takes it from "
            "this machine's environment",
        )
    try:
        found = TypeAdapter(dict[Variable, EnvironmentValue]).validate_python({name: value})
    except ValidationError as error:
        raise UsageError(f"-e {name}: {_why(error)}") from None
    return found[name]


def _image(value: EngineValue | None) -> RecipeImage:
    """Raises:
    UsageError: the text is no reference of an image.
    """
    ref, _, digest = str(value or "").partition("@")
    try:
        return RecipeImage.model_validate({"ref": ref, "digest": digest or None})
    except ValidationError as error:
        raise UsageError(
            f"--image {value or ''}: {_why(error)}",
            hint="name and tag, as `docker pull` takes it, or NAME@sha256:...",
        ) from None


def _why(error: ValidationError) -> str:
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")


def _container_of_launch(launch: Launch, overrides: Mapping[str, EngineValue | None]) -> Launch:
    """Return a pasted command's launch with these variables and this image.

    Raises:
        UsageError: as `override`.
    """
    env = dict(launch.env)
    for key, value in overrides.items():
        name = key.removeprefix(ENV)
        if key == IMAGE:
            image = _image(value)
            digest = image.digest or ""
            launch = replace(launch, image=image.ref, digest=digest, dockerfile="", vllm=None)
        elif key.startswith(ENV) and value is None:
            env.pop(name, None)
        elif key.startswith(ENV):
            env[name] = str(_variable(name, str(value)))
    return replace(launch, env=env)


SHARE = "gpu-memory-utilization"
DRAFTED = "num-speculative-tokens"
DATA_PARALLEL = "data-parallel-size"
EXPERT_PARALLEL = "enable-expert-parallel"

_ON = ("true", "yes", "on", "1")
_OFF = ("false", "no", "off", "0")
_COUNTS = ("max-num-seqs", "block-size")
"""Numbers that are whole and at least 1; sizes are, too."""


Changes: TypeAlias = tuple[str, ...]
"""KEY=VALUE texts; of two with one key the later one holds."""

Overrides = Mapping[str, EngineValue | None]
"""Flag without dashes, `env.NAME` or `image.ref` to its value; None takes it away."""


def options_text(overrides: Overrides) -> str:
    """Return them as options of a command line, as a shell takes them, which are also the label of
    what runs."""
    found = (_option(flag, value_text(value)) for flag, value in sorted(overrides.items()))
    return shlex.join(word for words in found for word in words)


def changes_of(label: str) -> Changes:
    """Return the KEY=VALUE texts of a label, as `options_text` makes it.

    >>> changes_of("-o seed=1 -e 'A=b c' --image vllm:2")
    ('seed=1', 'env.A=b c', 'image.ref=vllm:2')
    """
    names, words = {"-o": "", "-e": ENV, "--image": f"{IMAGE}="}, _words(label)
    pairs = zip(words[::2], words[1::2], strict=False)
    return tuple(names[option] + value for option, value in pairs if option in names)


def quoted_options(label: str) -> str:
    """Return the options of a label as words of a shell, for a command that users copy.

    Args:
        label: as `options_text` makes it; a container's can say anything.
    """
    return shlex.join(_words(label))


def _words(label: str) -> list[str]:
    try:
        return shlex.split(label)
    except ValueError:
        return [label]


def _option(flag: str, value: str) -> tuple[str, str]:
    if flag == IMAGE:
        return "--image", value
    if flag.startswith(ENV):
        return "-e", f"{flag.removeprefix(ENV)}={value}"
    return "-o", f"{flag}={value}"


def value_text(value: EngineValue | None) -> str:
    """Return a value as an option has it; empty for none."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def read_overrides(
    given: Sequence[str], engine: str, kinds: Mapping[str, str]
) -> dict[str, EngineValue | None]:
    """Return what `KEY=VALUE` texts say.

    Args:
        given: in their order; a later one wins.
        engine: that the flags are of.
        kinds: of its known flags: bare, number, size, text, json, several, append or optional.

    Raises:
        UsageError: a key that is not known or has its own place, or a value that it cannot have.
    """
    spoken, args = dialect(engine), dict[str, EngineValue | None]()
    for option in given:
        key, equals, value = option.partition("=")
        if key == IMAGE or key.startswith(ENV):
            args[key] = value or None
            continue
        flag = spoken.own(key.strip().lstrip("-").replace("_", "-"))
        if not equals:
            raise UsageError(
                f"-o {option}: expected KEY=VALUE", hint="for example -o max-num-seqs=4"
            )
        _must_be_given_here(flag, spoken, kinds)
        named = f"no-{flag}" if kinds.get(flag) == "bare" and value.lower() in _OFF else flag
        args.pop(flag, None)
        args.pop(f"no-{flag}", None)
        if named != flag:
            args[flag] = None
        args[named] = True if named != flag else _value(flag, value, kinds.get(flag, ""), spoken)
    return args


def _must_be_given_here(flag: str, spoken: Dialect, kinds: Mapping[str, str]) -> None:
    if flag in (spoken.own(SHARE), DRAFTED, spoken.own(DATA_PARALLEL)):
        return
    if flag in spoken.owned:
        raise UsageError(f"-o {flag}: not an engine argument here: {spoken.owned[flag]}")
    if flag not in kinds and flag.removeprefix("no-") not in kinds:
        raise UsageError(
            f"-o {flag}: {spoken.title} has no flag of this name",
            hint=did_you_mean(flag, kinds, "flags"),
        )


def _value(flag: str, text: str, kind: str, spoken: Dialect) -> EngineValue | None:
    """The value of a flag; None for an empty text.

    Raises:
        UsageError: the flag cannot have it.
    """
    text = text.strip()
    if not text:
        return None
    if flag == spoken.own(SHARE):
        return _share(text)
    if flag == spoken.own(DATA_PARALLEL):
        return _ranks(text)
    if kind == "bare" and text.lower() not in _ON:
        raise UsageError(f"-o {flag}: found '{text}', expected true or false")
    if why := why_no_engine_value(text):
        raise UsageError(f"-o {flag}: {why}")
    return True if kind == "bare" else _of_kind(flag, text, kind)


def _of_kind(flag: str, text: str, kind: str) -> EngineValue:
    if kind in ("number", "size"):
        return _number(flag, text, kind)
    if kind == "json":
        return _mapping(flag, text)
    return text.split() if kind in ("several", "append") else text


def _share(text: str) -> EngineValue:
    if text == "auto":
        return text
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.05 <= share <= 0.95:
        raise UsageError(f"-o {SHARE}: found '{text}', expected 'auto' or 0.05 to 0.95")
    return share


def _ranks(text: str) -> EngineValue:
    size = int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else 0
    if not 1 <= size <= MOST_NODES:
        expected = f"expected a whole number from 1 to {MOST_NODES}"
        raise UsageError(f"-o {DATA_PARALLEL}: found '{text}', {expected}")
    return size


def _number(flag: str, text: str, kind: str) -> EngineValue:
    if flag == "max-model-len" and text in ("auto", "-1"):
        return text if text == "auto" else -1
    try:
        number = (with_unit(text) if kind == "size" else None) or float(text)
    except ValueError:
        number = float("nan")
    counts = kind == "size" or flag in _COUNTS
    if not abs(number) < LARGEST or (counts and (number < 1 or number != int(number))):
        what = "a whole number from 1" if counts else "a number below 2**64"
        also = ", also such as 32k" if kind == "size" else ""
        raise UsageError(f"-o {flag}: found {described(text)}, expected {what}{also}")
    return int(number) if counts or text.lstrip("-").isdecimal() else number


def _mapping(flag: str, text: str) -> EngineValue:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"-o {flag}: found '{text}', expected a JSON object such as '{{}}'")
    return value


def override(recipe: Recipe, overrides: Overrides) -> Recipe:
    """Return the recipe with these flags; what it has already is no change.

    What was measured and logged of the recipe as it is does not hold for the changed one.

    Raises:
        UsageError: it has no drafter whose tokens could be changed, or a value is a secret or none
            that a recipe can have. The message never repeats a variable's value.
    """
    made, effective = recipe, dict[str, EngineValue | None]()
    for key, value in overrides.items():
        changed = _with(made, key, value)
        if changed != made:
            made, effective[key] = changed, value
    if not effective:
        return recipe
    if "quantization" in effective:
        named = _quantization(recipe.model.quantization, effective["quantization"])
        update = {"quantization": named, "weights_gib": None}
        made = made.model_copy(update={"model": recipe.model.model_copy(update=update)})
    made = made.with_overrides(effective, measured=[])
    if problems := recipe_problems(made):
        place = problems[0].key
        option = {"env": f"-e {place[-1]}", "image": "--image"}.get(str(place[0]))
        raise UsageError(f"{option or f'-o {place[-1]}'}: {problems[0].message}")
    return made


def _with(recipe: Recipe, key: str, value: EngineValue | None) -> Recipe:
    """Return the recipe with one override."""
    dialect, update = recipe.dialect, dict[str, object]()
    if key == IMAGE:
        return _with_image(recipe, _image(value))
    if key.startswith(ENV):
        name = key.removeprefix(ENV)
        env = {other: text for other, text in recipe.env.items() if other != name}
        update["env"] = env if value is None else {**env, name: _variable(name, str(value))}
    elif key == DRAFTED:
        update["drafter"] = _drafter(recipe, value)
    elif key == dialect.own(SHARE):
        update["gpu_memory_utilization"] = None if value == "auto" else value
    elif key == dialect.own(DATA_PARALLEL):
        update["data_parallel"] = value or 1
    else:
        args = {flag: given for flag, given in recipe.engine_args.items() if flag != key}
        update["engine_args"] = args if value is None else {**args, key: value}
    return recipe.model_copy(update=update)


def _with_image(recipe: Recipe, image: RecipeImage) -> Recipe:
    if recipe.image.build is None and image.reference == recipe.image.reference:
        return recipe
    # What the recipe says of vLLM's version is true of its own image.
    vllm = recipe.vllm.model_copy(update={"version": None, "tested": []})
    return recipe.model_copy(update={"image": image, "vllm": vllm})


def _drafter(recipe: Recipe, value: EngineValue | None) -> Drafter | None:
    """Return the drafter with another number of tokens; none for no tokens."""
    if not value:
        return None
    if recipe.drafter is None:
        raise UsageError(
            f"-o {DRAFTED}={value}: recipe {recipe.name} has no drafter",
            hint="write one into a recipe (drafter)",
        )
    if not isinstance(value, int) or value > 32:
        raise UsageError(f"-o {DRAFTED}: found {described(value)}, expected 0 to 32")
    return recipe.drafter.model_copy(update={"tokens": value})


def _quantization(native: Quantization | None, given: EngineValue | None) -> Quantization | None:
    """How the weights lie in memory with another --quantization; None: by the model's config."""
    if given == "fp8" and native == "bf16":
        return "fp8-online"
    if native == "fp8-online" and given is None:
        return "bf16"
    return native if native not in ("fp8-online",) or given == "fp8" else None


def override_launch(launch: Launch, overrides: Overrides) -> Launch:
    """Return a pasted command's launch with these flags, under vLLM's names."""
    launch = _container_of_launch(launch, overrides)
    overrides = {k: v for k, v in overrides.items() if not (k == IMAGE or k.startswith(ENV))}
    args = dialect(launch.engine).common({k: v for k, v in overrides.items() if v is not None})
    away = dialect(launch.engine).common(
        {k: "" for k, v in overrides.items() if v is None or (v == "auto" and "memory" in k)}
    )
    changed = launch.with_flags({k: v for k, v in args.items() if k not in away})
    changed = changed.without_flags(*away)
    if "quantization" in overrides:
        named = _quantization(launch.quantization, overrides["quantization"])
        changed = replace(changed, quantization=named, weights_gib=None)
    if changed.dp != launch.dp:
        changed = replace(changed, nodes=changed.ranks)
    return changed
