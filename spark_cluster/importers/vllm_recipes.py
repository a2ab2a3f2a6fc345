"""Model files of vllm-project/recipes, as they are for DGX Sparks.

Such a file holds a base, variants (checkpoints), features that are on or off, and what other
hardware wants; the layers are put over each other as the project's own page does it: base, variant,
hardware, features, and the last one wins.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NoReturn

from packaging.version import Version

from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.config.yamlfile import Key, Problem, Sourced, described, did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.importers import commandline, vllm_flags
from spark_cluster.importers.expansion import Word
from spark_cluster.importers.importer import Choice, Left, Offer, Source, no_choice
from spark_cluster.importers.kitfiles import code_blocks
from spark_cluster.importers.templated import as_word, mistyped
from spark_cluster.models.naming import quantization_named, table
from spark_cluster.node.output import counted

# What a model file of vllm-project/recipes has for a DGX Spark besides what was chosen: variants,
# and the commands of its guide, a text for people with code in it.

SPARK = ("dgx_spark_gb10", "gb10")
"""A DGX Spark in that project's words (taxonomy.yaml), now and in files of early 2026."""

HARDWARE = (*SPARK, "blackwell", "nvidia")
"""What a DGX Spark is, the most exact first."""

_GUIDE = re.compile(r"guide(?:-([1-9]\d?))?")
_NAMED = re.compile(r"\bDGX Spark\b|\bGB10\b", re.IGNORECASE)
_IMAGE = re.compile(
    r"^[ \t]*#.*\b(?:container|image)\b:?[ \t]+(\S{1,200}[:/]\S{1,200})[ \t]*$", re.MULTILINE
)
"""A comment that names the image of the command below it; of a limited length, as a long word could
be split in as many ways as its length squared."""

LONGEST, MOST_BLOCKS = 20_000, 200
"""Characters of a code block that is looked at, and blocks of a text."""


def offers_of(data: Mapping[str, Any], variants: Mapping[str, Any], chosen: str) -> list[Offer]:
    """Return the other variants that name the DGX Spark, and the commands for it in the guide."""
    found = [
        Offer(f"--variant {name}", _about(variant))
        for name, variant in variants.items()
        if name != chosen and isinstance(variant, dict) and any(_names_spark(variant))
    ]
    for number, command in enumerate(spark_commands(data.get("guide")), 1):
        name = "guide" if number == 1 else f"guide-{number}"
        if name != chosen:
            found.append(Offer(f"--variant {name}", f"the guide's command, {command.title}"))
    return found


def _names_spark(variant: Mapping[str, Any]) -> Iterator[bool]:
    for place in ("hardware_overrides", "supported_hardware", "precision_hardware"):
        named = variant.get(place)
        yield isinstance(named, dict | list) and bool(set(SPARK) & set(map(str, named)))
    yield _NAMED.search(str(variant.get("description") or "")) is not None


def _about(variant: Mapping[str, Any]) -> str:
    parts = [str(variant.get(key) or "") for key in ("precision", "model_id", "description")]
    return ", ".join(part for part in parts if part)


def of_guide(data: Mapping[str, Any], choice: Choice, others: list[Offer]) -> Source:
    """Return a command of the guide as a source.

    Raises:
        UsageError: there is no such command, or features were chosen for it.
    """
    no_choice(replace(choice, variant="default"))
    commands = spark_commands(data.get("guide"))
    number = _GUIDE.fullmatch(choice.variant)
    index = int(number[1] or 1) - 1 if number else 0
    if index >= len(commands):
        names = [*(data.get("variants") or {}), *("guide" for _ in commands[:1])]
        raise UsageError(
            f"the guide has {counted(len(commands), 'command')} for a DGX Spark, "
            f"no {choice.variant}",
            hint=did_you_mean(choice.variant, names, "variants"),
        )
    source = commands[index]
    launch, model = source.launch, str(data["model"]["model_id"])
    meta = data.get("meta") or {}
    return replace(
        source,
        launch=replace(launch, base=launch.base or (model if model != launch.model else None)),
        kind="vLLM recipe",
        title=launch.model,
        description=str(meta.get("description") or meta.get("title") or ""),
        origin=f"vllm-project/recipes: {model}, guide: {source.title}",
        generates=generates(data),
        notes=[*source.notes, "it is the guide's command, without variant and features"],
        offers=others,
    )


def spark_commands(guide: object, *, anywhere: bool = False) -> list[Source]:
    """Return each launch of vLLM below a heading that names the DGX Spark, or anywhere, in their
    order; the headings are its title, the last one last.
    """
    found: list[Source] = []
    for title, code in islice(code_blocks(guide), MOST_BLOCKS) if isinstance(guide, str) else ():
        if not (anywhere or _NAMED.search(title)) or len(code) > LONGEST:
            continue
        try:
            source = commandline.read(code)
        except UsageError:  # a download, a client, a command of a shell script
            continue
        image = _IMAGE.search(code)
        if image and not source.launch.image:
            source.launch = commandline.in_image(source.launch, image[1])
        found.append(replace(source, title=title))
    return found


def generates(data: Mapping[str, Any]) -> str:
    """Return what a model file's model generates: speech, images or video; empty for text."""
    omni, meta = data.get("omni"), data.get("meta")
    asked = omni.get("tasks") if isinstance(omni, dict) else None
    named = meta.get("tasks") if isinstance(meta, dict) else None
    known: Mapping[str, str] = table("foreign_fields", "importers")["vllm_generates"]
    return next((known[task] for task in (*_names(asked), *_names(named)) if task in known), "")


def _names(tasks: object) -> list[str]:
    if not isinstance(tasks, list):
        return []
    return [str(t.get("id") if isinstance(t, dict) else t).lower() for t in tasks]


_LARGEST_GB = 119
"""Of a Spark's 128 GB memory what Linux sees, GB of `vram_minimum_gb`."""


@dataclass(slots=True)
class _Layers:
    """Flags and variables, the later ones over the earlier ones."""

    source: Sourced
    args: dict[str, EngineValue] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, key: Key, block: Mapping[str, Any], args: str, env: str) -> None:
        """Lay a block's flags (a list of words) and variables over what is there.

        Args:
            key: of the block; `args` and `env` are the names of its fields.

        Raises:
            InvalidFile: they are none, with the line.
        """
        key = (*key, args) if args in block else key
        words = block.get(args) or []  # `env: []` and `args: {}` say nothing
        variables = block.get(env) or {}
        for found, kind, what in ((words, list, "list of words"), (variables, dict, "mapping")):
            if not isinstance(found, kind):
                self._refuse(key, f"found {described(found)}, expected a {what}")
        parts = [Word(part, 1) for word in words for part in _parts(as_word(word))]
        try:
            read = vllm_flags.read(parts)
        except UsageError as error:
            self._refuse(key, error.message, error.hint)
        if read.positional:
            self._refuse(key, f"'{read.positional[0].text}' belongs to no flag")
        for flag, value in read.args.items():
            self.args.pop(flag[3:] if flag.startswith("no-") else f"no-{flag}", None)
            self.args[flag] = value
        self.notes += read.notes
        self.env |= {str(name): as_word(value) for name, value in variables.items()}

    def _refuse(self, key: Key, message: str, hint: str = "") -> NoReturn:
        raise self.source.invalid([Problem(key, message)], hint=hint) from None


def _parts(text: str) -> list[str]:
    """Some files have a flag and its value in one entry."""
    flag, blank, value = text.partition(" ")
    return [flag, value.strip()] if blank and flag.startswith("-") and "=" not in flag else [text]


def claims(data: Mapping[str, Any]) -> bool:
    """Return whether the data look like a model file of vllm-project/recipes."""
    model = data.get("model")
    return isinstance(model, dict) and "model_id" in model


def read(source: Sourced, choice: Choice) -> Source:
    """Read what a model file says for DGX Sparks.

    Raises:
        InvalidFile: a field is wrong.
        UsageError: there is no such variant, feature or mode.
    """
    data = source.data
    _types(source)
    name = choice.variant
    variants: dict[str, Any] = data.get("variants") or {"default": {}}
    offers = offers_of(data, variants, name)
    if name not in variants and _GUIDE.fullmatch(name):
        return of_guide(data, choice, offers)
    variant = _chosen(variants, name, "variant")
    model, layers = data["model"], _Layers(source)
    served = str(variant.get("model_id") or model["model_id"])
    layers.add(("model",), model, "base_args", "base_env")
    pinned = _hardware(variant, ("variants", name))
    for key, block in [(("variants", name), variant), *_hardware(data, ()), *pinned]:
        layers.add(key, block, "extra_args", "extra_env")
    left = _features(layers, choice, variant)
    supported, no_version = _supported(model, variant)
    image = _image([*(block for _, block in reversed(pinned)), variant, model])
    return Source(
        _launch(layers, served, image, variant),
        kind="vLLM recipe",
        title=served,
        description=_description(data, variant),
        default_tp=_default_tp(variant),
        generates=generates(data),
        supported=supported,
        origin=f"vllm-project/recipes: {model['model_id']}, variant {name}",
        left_out=_dependencies(data) + left + _rest(data, variants, name),
        notes=layers.notes + no_version + _warnings(data, variant, name),
        offers=offers,
    )


def _types(source: Sourced) -> None:
    problems = mistyped(source, table("foreign_fields", "importers")["vllm_types"])
    data = source.data
    if not isinstance(data["model"].get("model_id"), str):
        problems.append(Problem(("model", "model_id"), "expected the repository on the hub"))
    for name in ("variants", "features"):
        inner = data.get(name)
        problems += [
            Problem((name, key), f"found {described(found)}, expected a mapping")
            for key, found in (inner.items() if isinstance(inner, dict) else ())
            if not isinstance(found, dict)
        ]
    if problems:
        raise source.invalid(problems)


def _chosen(options: Mapping[str, Any], name: str, what: str) -> Any:
    if name in options:
        return options[name]
    raise UsageError(
        f"this file has no {what} '{name}'", hint=did_you_mean(name, options, f"{what}s")
    )


def _hardware(block: dict[str, Any], key: Key) -> list[tuple[Key, dict[str, Any]]]:
    """Return what a block says for Sparks: of the brand or generation, then of this machine."""
    overrides = block.get("hardware_overrides")
    if not isinstance(overrides, dict):
        return []
    general = HARDWARE[len(SPARK) :]
    names = [next((n for n in words if n in overrides), "") for words in (general, SPARK)]
    return [
        ((*key, "hardware_overrides", name), overrides[name])
        for name in names
        if isinstance(overrides.get(name), dict)
    ]


def _features(layers: _Layers, choice: Choice, variant: dict[str, Any]) -> list[Left]:
    """The features that are on; what is left out of the others."""
    features: dict[str, Any] = layers.source.data.get("features") or {}
    on, modes = _switches(layers.source.data, features, choice, variant)
    left: list[Left] = []
    reasons = table("foreign_fields", "importers")["vllm_feature"]
    for name, feature in features.items():
        if name not in on:
            left.append(Left(f"features.{name}", f"it is off; --feature {name} switches it on"))
            continue
        key: Key = ("features", name)
        block = feature
        if isinstance(feature.get("modes"), dict):
            mode = modes.get(name) or feature.get("default_mode") or next(iter(feature["modes"]))
            key, block = (*key, "modes", mode), _chosen(feature["modes"], mode, f"mode of {name}")
            left += [
                Left(f"features.{name}.modes.{other}", f"--feature {name}={other} takes it")
                for other in feature["modes"]
                if other != mode
            ]
            allowed = block.get("variants")
            if isinstance(allowed, list) and choice.variant not in allowed:
                raise UsageError(
                    f"mode {mode} of {name} is for the variants {', '.join(map(str, allowed))}, "
                    f"not for {choice.variant}",
                    hint="choose another mode or variant",
                )
        for place in ("companion", "strategies"):
            if place in feature:
                left.append(Left(f"features.{name}.{place}", reasons[place]))
        for inner, override in _hardware(block, key):  # replaces the flags for other hardware
            key, block = inner, {**block, **override}
        layers.add(key, block, "args", "env")
    return left


def _switches(
    data: dict[str, Any], features: dict[str, Any], choice: Choice, variant: dict[str, Any]
) -> tuple[set[str], dict[str, str]]:
    """The features that are on, and the mode of each that has one."""
    on = set(features) - {str(name) for name in data.get("opt_in_features") or []}
    modes: dict[str, str] = {}
    defaults = variant.get("default_modes")
    if isinstance(defaults, dict):
        modes |= {str(name): str(mode) for name, mode in defaults.items()}
        on |= set(modes) & set(features)
    for text in choice.features:
        name, _, mode = text.partition("=")
        off = name not in features and name.startswith("no-")
        name = name[3:] if off else name
        _chosen(features, name, "feature")
        (on.discard if off else on.add)(name)
        if mode:
            modes[name] = mode
    return on, modes


def _launch(layers: _Layers, model: str, image: str, variant: dict[str, Any]) -> Launch:
    """The launch, read from the command line that the layers make."""
    words = ["vllm", "serve", model]
    for flag, value in layers.args.items():
        if flag == "model":
            continue
        many = value if isinstance(value, list) else [value]
        words += [f"--{flag}"] if value is True else [f"--{flag}", *map(as_word, many)]
    launch = commandline.in_image(commandline.parse(shlex.join(words)), image)
    base = layers.source.data["model"]["model_id"]
    return replace(
        launch,
        base=base if base != model else None,
        quantization=launch.quantization or quantization_named(variant.get("precision")),
        env=layers.env,
        tp=_tp(variant),
        nodes=_tp(variant),
    )


def _tp(variant: dict[str, Any]) -> int:
    """A Spark has one GPU; a variant that wants more wants more Sparks."""
    value = variant.get("tp")
    if isinstance(value, dict):
        value = next((value[key] for key in (*HARDWARE, "default") if key in value), None)
    return value if isinstance(value, int) and value >= 1 else 1


def _default_tp(variant: dict[str, Any]) -> int:
    """Return as many Sparks as the variant fits on by what the file says."""
    wanted = variant.get("vram_minimum_gb")
    low = _tp(variant)
    while isinstance(wanted, int | float) and low * _LARGEST_GB < wanted < _LARGEST_GB * 64:
        low *= 2
    return low


def _image(blocks: list[dict[str, Any]]) -> str:
    for block in blocks:
        image = block.get("docker_image")
        if isinstance(image, dict):
            image = next((image[key] for key in HARDWARE if key in image), None)
        if isinstance(image, str) and image:
            return image
    return ""


def _supported(model: dict[str, Any], variant: dict[str, Any]) -> tuple[str, list[str]]:
    """The versions of vLLM as a specifier, and a note where the file names no version."""
    version = as_word(variant.get("min_vllm_version") or model.get("min_vllm_version"))
    try:
        return (f">={Version(version)}" if version else ""), []
    except ValueError:  # also of a number that is too long
        return "", [f"min_vllm_version is '{version}', which is not a version"]


def _description(data: dict[str, Any], variant: dict[str, Any]) -> str:
    meta = data.get("meta") or {}
    parts = [str(meta.get("description") or meta.get("title") or "")]
    parts.append(str(variant.get("description") or ""))
    return "; ".join(part.rstrip(".") for part in parts if part)


def _warnings(data: dict[str, Any], variant: dict[str, Any], name: str) -> list[str]:
    notes = []
    hardware = (data.get("meta") or {}).get("hardware") or {}
    state = next((hardware[name] for name in SPARK if name in hardware), None)
    if state == "unsupported":
        notes.append("the file says that this model does not run on a DGX Spark yet")
    elif state is None:
        notes.append("the file says nothing about DGX Spark")
    supported = variant.get("supported_hardware")
    if isinstance(supported, list) and not set(SPARK) & set(map(str, supported)):
        notes.append(f"the file does not name DGX Spark for the variant {name}")
    return notes


def _dependencies(data: dict[str, Any]) -> list[Left]:
    texts = table("foreign_fields", "importers")["vllm_dependency"]
    rows = data.get("dependencies")
    return [
        Left(
            f"dependencies: {row.get('command') or row.get('note')}",
            texts["why"],
            "" if row.get("optional") is True else texts["missing"],
        )
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    ]


def _rest(data: dict[str, Any], variants: dict[str, Any], chosen: str) -> list[Left]:
    """Return all other fields of the file, each with the reason."""
    reasons = table("foreign_fields", "importers")
    left = [
        Left(f"variants.{name}", f"--variant {name} takes it")
        for name in variants
        if name != chosen
    ]
    left += [
        Left(f"compatible_strategies: {name}", reasons["vllm"]["strategy_overrides"])
        for name in data.get("compatible_strategies") or []
        if name not in ("single_node_tp", "multi_node_tp")
    ]
    for place, block, group in (
        ("", data, "vllm"),
        ("model", data["model"], "vllm_model"),
        (f"variants.{chosen}", variants[chosen], "vllm_variant"),
    ):
        for name, value in block.items():
            why = reasons[group].get(name, "this field is not known here")
            if why and value not in (None, [], {}, ""):
                left.append(Left(f"{place}.{name}".lstrip("."), why))
    others = [str(name) for name in data.get("hardware_overrides") or {} if name not in HARDWARE]
    return left + [Left(f"hardware_overrides.{name}", "for other hardware") for name in others]
