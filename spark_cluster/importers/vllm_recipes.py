"""Model files of vllm-project/recipes, as they are for DGX Sparks.

Such a file holds a base, variants (checkpoints), features that are on or off, and what other
hardware wants; the layers are put over each other as the project's own page does it: base, variant,
hardware, features, and the last one wins.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import InvalidVersion, Version

from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.config.suggest import did_you_mean
from spark_cluster.config.yamlfile import Key, Problem, Sourced, described
from spark_cluster.errors import UsageError
from spark_cluster.importers import commandline, model_kind, spark_variants, vllm_flags
from spark_cluster.importers.importer import Choice
from spark_cluster.importers.result import Left
from spark_cluster.importers.shell import Word
from spark_cluster.importers.source import Source
from spark_cluster.importers.spark_variants import HARDWARE, SPARK
from spark_cluster.importers.tables import table
from spark_cluster.importers.template import as_word
from spark_cluster.models.naming import quantization_named, version_in

_LARGEST_GB = 119
"""Of a Spark's 128 GB memory what Linux sees, GB of `vram_minimum_gb`."""

_USED = {
    "vllm": {"model", "variants", "features", "opt_in_features", "compatible_strategies"}
    | {"hardware_overrides", "dependencies"},
    "vllm_model": {"model_id", "base_args", "base_env", "min_vllm_version", "docker_image"},
    "vllm_variant": {"model_id", "extra_args", "extra_env", "hardware_overrides", "tp"}
    | {"min_vllm_version", "docker_image", "default_modes"},
}
"""Fields that go into the recipe, or are listed one by one."""


@dataclass(slots=True)
class _Layers:
    """Flags and variables, the later ones over the earlier ones."""

    source: Sourced
    args: dict[str, EngineValue] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, key: Key, args: object, env: object = None) -> None:
        """Lay flags (a list of words) and variables over what is there.

        Raises:
            InvalidFile: they are none, with the line of `key`.
        """
        args, env = args or None, env or None  # `env: []` and `args: {}` say nothing
        if args is not None and not isinstance(args, list):
            raise self.source.invalid(
                [Problem(key, f"found {described(args)}, expected a list of words")]
            )
        if env is not None and not isinstance(env, dict):
            raise self.source.invalid([Problem(key, f"found {described(env)}, expected a mapping")])
        words = [Word(part, 1) for word in args or [] for part in _parts(as_word(word))]
        try:
            read = vllm_flags.read(words)
        except UsageError as error:
            raise self.source.invalid([Problem(key, error.message)], hint=error.hint) from None
        if read.positional:
            stray = read.positional[0].text
            raise self.source.invalid([Problem(key, f"'{stray}' belongs to no flag")])
        for flag, value in read.args.items():
            opposite = flag[3:] if flag.startswith("no-") else f"no-{flag}"
            self.args.pop(opposite, None)
            self.args[flag] = value
        self.notes += read.notes
        self.env |= {str(name): as_word(value) for name, value in (env or {}).items()}


def _parts(text: str) -> list[str]:
    """Some files have a flag and its value in one entry."""
    flag, blank, value = text.partition(" ")
    return [flag, value.strip()] if blank and flag.startswith("-") and "=" not in flag else [text]


def claims(data: dict[str, Any]) -> bool:
    """Return whether the data look like a model file of vllm-project/recipes."""
    model = data.get("model")
    return isinstance(model, dict) and "model_id" in model


def read(source: Sourced, choice: Choice | None = None) -> Source:
    """Read what a model file says for DGX Sparks.

    Raises:
        InvalidFile: a field is wrong.
        UsageError: there is no such variant, feature or mode.
    """
    choice = choice or Choice()
    data = source.data
    _types(source)
    variants: dict[str, Any] = data.get("variants") or {"default": {}}
    offers = spark_variants.offers(data, variants, choice.variant)
    if choice.variant not in variants and spark_variants.names_guide(choice.variant):
        return spark_variants.of_guide(data, choice, offers)
    variant = _chosen(variants, choice.variant, "variant")
    model = data["model"]
    layers = _Layers(source)
    layers.add(("model", "base_args"), model.get("base_args"), model.get("base_env"))
    _over(layers, ("variants", choice.variant), variant, "extra_args", "extra_env")
    for key, block in _hardware(data, ()):
        _over(layers, key, block, "extra_args", "extra_env")
    pinned = _hardware(variant, ("variants", choice.variant))
    for key, block in pinned:
        _over(layers, key, block, "extra_args", "extra_env")
    left = _features(layers, choice, variant)
    supported, no_version = _supported(model, variant)
    image = _image(model, variant, [block for _, block in pinned])
    return Source(
        _launch(layers, str(variant.get("model_id") or model["model_id"]), image, variant),
        kind="vLLM recipe",
        title=str(variant.get("model_id") or model["model_id"]),
        description=_description(data, variant),
        default_tp=_default_tp(variant),
        generates=model_kind.generates(data),
        supported=supported,
        origin=f"vllm-project/recipes: {model['model_id']}, variant {choice.variant}",
        left_out=_dependencies(data) + left + _rest(data, variants, choice.variant),
        notes=layers.notes + no_version + _warnings(data, variant, choice.variant),
        offers=offers,
    )


def _types(source: Sourced) -> None:
    data = source.data
    problems = []
    if not isinstance(data["model"].get("model_id"), str):
        problems.append(Problem(("model", "model_id"), "expected the repository on the hub"))
    for name in ("variants", "features", "hardware_overrides", "meta"):
        value = data.get(name)
        if value in ([], ""):
            source.notes.append(f"{name}: found {described(value)}, read as an empty mapping")
            value = data[name] = {}
        if value is not None and not isinstance(value, dict):
            problems.append(Problem((name,), f"found {described(value)}, expected a mapping"))
            continue
        if name in ("variants", "features"):
            problems += [
                Problem((name, key), f"found {described(inner)}, expected a mapping")
                for key, inner in (value or {}).items()
                if not isinstance(inner, dict)
            ]
    opt_in = data.get("opt_in_features")
    if opt_in is not None and not isinstance(opt_in, list):
        problems.append(
            Problem(("opt_in_features",), f"found {described(opt_in)}, expected a list")
        )
    if problems:
        raise source.invalid(problems)


def _chosen(options: Mapping[str, Any], name: str, what: str) -> Any:
    if name in options:
        return options[name]
    raise UsageError(
        f"this file has no {what} '{name}'", hint=did_you_mean(name, options, f"{what}s")
    )


def _over(layers: _Layers, key: Key, block: dict[str, Any], args: str, env: str) -> None:
    layers.add((*key, args) if args in block else key, block.get(args), block.get(env))


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
    data = layers.source.data
    features: dict[str, Any] = data.get("features") or {}
    on, modes = _switches(data, features, choice, variant)
    left: list[Left] = []
    reasons = table("foreign_fields")["vllm_feature"]
    for name, feature in features.items():
        if name not in on:
            left.append(Left(f"features.{name}", f"it is off; --feature {name} switches it on"))
            continue
        key: Key = ("features", name)
        if isinstance(feature.get("modes"), dict):
            mode = modes.get(name) or feature.get("default_mode") or next(iter(feature["modes"]))
            block = _chosen(feature["modes"], mode, f"mode of {name}")
            key = (*key, "modes", mode)
            left += [
                Left(f"features.{name}.modes.{other}", f"--feature {name}={other} takes it")
                for other in feature["modes"]
                if other != mode
            ]
            left += _modes_fit(block, choice.variant, name, mode)
        else:
            block = feature
        for place in ("companion", "strategies"):
            if place in feature:
                left.append(Left(f"features.{name}.{place}", reasons[place]))
        _feature(layers, key, block)
    return left


def _modes_fit(block: dict[str, Any], variant: str, name: str, mode: str) -> list[Left]:
    allowed = block.get("variants")
    if isinstance(allowed, list) and variant not in allowed:
        raise UsageError(
            f"mode {mode} of {name} is for the variants {', '.join(map(str, allowed))}, "
            f"not for {variant}",
            hint="choose another mode or variant",
        )
    return []


def _feature(layers: _Layers, key: Key, block: dict[str, Any]) -> None:
    """A feature's flags; those for this hardware replace them."""
    chosen = block
    for inner, override in _hardware(block, key):
        key, chosen = inner, {**chosen, **override}
    _over(layers, key, chosen, "args", "env")


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
    launch = commandline.parse(shlex.join(words))
    reference, _, digest = image.partition("@")
    base = layers.source.data["model"]["model_id"]
    named = quantization_named(variant.get("precision"))
    return Launch(
        model=launch.model,
        base=base if base != model else None,
        quantization=launch.quantization or named,
        image=reference,
        digest=digest,
        vllm=version_in(reference),
        args=launch.args,
        env=layers.env,
        drafter=launch.drafter,
        tp=_tp(variant),
        nodes=_tp(variant),
        origin="command",
        kind=launch.kind,
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


def _image(model: dict[str, Any], variant: dict[str, Any], pinned: list[dict[str, Any]]) -> str:
    for block in [*reversed(pinned), variant, model]:
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
    except InvalidVersion:
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
    tables = table("foreign_fields")
    why, missing = tables["vllm"]["dependencies"], tables["vllm_dependency"]
    rows = data.get("dependencies")
    return [
        Left(
            f"dependencies: {row.get('command') or row.get('note')}",
            why,
            "" if row.get("optional") is True else missing,
        )
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    ]


def _rest(data: dict[str, Any], variants: dict[str, Any], chosen: str) -> list[Left]:
    """Return all other fields of the file, each with the reason."""
    reasons = table("foreign_fields")
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
            if name in _USED[group] or value in (None, [], {}, ""):
                continue
            what = f"{place}.{name}".lstrip(".")
            left.append(Left(what, reasons[group].get(name, "this field is not known here")))
    others = [str(name) for name in data.get("hardware_overrides") or {} if name not in HARDWARE]
    return left + [Left(f"hardware_overrides.{name}", "for other hardware") for name in others]
