"""What names tell, by tables: base of a build, quantization of weights, version of an image."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any, cast

from spark_cluster.config.recipe_schema import Quantization
from spark_cluster.config.yamlfile import nearest
from spark_cluster.errors import InvalidFile

# JSON: tables of models, images and importers, read once, and objects from files of others.


@cache
def table(name: str, room: str = "models") -> dict[str, Any]:
    """Return a JSON table of the folder `data` of a room, by its name without `.json`."""
    file = resources.files("spark_cluster") / room / "data" / f"{name}.json"
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return data


def has_trait(family: str, trait: str) -> bool:
    """Return whether models of a family, by their model_type, have a trait of `families.json`."""
    return family.startswith(tuple(table("families")["traits"][trait]["families"]))


def json_object(text: bytes | str, where: str) -> dict[str, Any]:
    """Return the object that a text holds.

    Raises:
        InvalidFile: it is not JSON, or not an object.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"is not JSON: {error}", where=where) from error
    if not isinstance(document, dict):
        raise InvalidFile("should be a JSON object", where=where)
    return document


HUB_CACHE = re.compile(r"models--([^/]+)--([^/]+)")

NOT_SAID = "not said"
"""The quantization of a build whose name says that it is quantized, and not how."""

_FOUR_BITS = {"int4", "4bit", "w4a16"}
_EIGHT_BITS = {"int8", "8bit", "w8a8", "w8a16"}

# What `modelopt` and `compressed-tensors` mean depends on the build; these say it in its name.
_BY_NAME = ("modelopt", "modelopt_mixed", "compressed-tensors", "humming", "quark")


def quantization_named(word: object) -> Quantization | None:
    """The quantization that another tool's file calls by a word of its own: `nvfp4`, `bfloat16`."""
    words = {**table("names")["quantization_words"], "bfloat16": "bf16", "awq4": "awq-int4"}
    return cast("Quantization | None", words.get(str(word).lower()))


def version_in(image: str, engine: str = "vllm") -> str | None:
    """The version of an engine in an image, None when its tag does not say it."""
    data = table("images")
    plain = image.removeprefix("docker.io/").partition("@")[0]
    if known := data["tags"].get(plain):
        return cast("str | None", known.get(engine))
    for row in data["patterns"]:
        if found := re.fullmatch(row["pattern"], plain):
            return found.groupdict().get(engine)
    return None


def base_of(model: str, hints: tuple[str, ...] = ()) -> str | None:
    """The model that `model` is a build of; None for a model itself, or when it is not certain.

    Args:
        model: repository on the hub, or a path.
        hints: folder on the node, served name. All that is recognised must say the same.
    """
    if is_path(model):
        cached = HUB_CACHE.search(model)
        repository = f"{cached[1]}/{cached[2]}" if cached else ""
        if repository in _bases():
            return repository
        texts = [(repository or model).rstrip("/").rpartition("/")[2]]
        texts += [hint.rstrip("/").rpartition("/")[2] for hint in hints]
    elif model in _bases():
        return None
    else:
        texts = [model.rpartition("/")[2]]
    found = {base for text in texts if (base := _by_key().get(_key(text)))}
    return found.pop() if len(found) == 1 else None


def quantization_of(
    flag: str, model: str, base: str | None, hints: tuple[str, ...] = ()
) -> Quantization | None:
    """Return the quantization of the weights; None when neither flag nor names say it.

    Args:
        flag: value of --quantization, empty when it is not given.
        model: repository or path.
        base: the model that it is a build of.
        hints: folder on the node, served name.
    """
    named = _named_quantization(model, hints)
    flags = table("names")["quantization_flags"]  # those that say it alone (vLLM 0.32)
    if flag in flags:
        return cast(Quantization, flags[flag])
    if flag == "fp8":
        # On a build in FP8 it only repeats what its config says.
        if named in (None, "bf16"):
            known = base or not is_path(model)
            return "fp8-online" if known else None
        return "fp8" if named == "fp8" else None
    if flag and flag not in _BY_NAME:
        return None
    if named is None and not flag:
        row = _bases().get(base or model)
        return cast(Quantization, row["native"]) if row and _is_plain(model, hints) else None
    return named


def of_build(model: str) -> str | None:
    """Return the quantization of a build by its name alone.

    Returns:
        None where the name mentions none, and NOT_SAID where it does not say which.
    """
    if _is_plain(model, ()):
        return None
    return _named_quantization(model, ()) or NOT_SAID


def is_path(model: str) -> bool:
    """Return whether it is a folder rather than a repository on the hub."""
    return model.startswith(("/", "~", ".", "$")) or model.count("/") > 1


@cache
def _bases() -> dict[str, dict[str, Any]]:
    """Models that others are builds of: the format in which their authors publish them, and other
    names. Those whose shape was read say it there (`native`).
    """
    found = dict(table("names")["bases"])
    for entry in table("shapes")["models"]:
        for name in (entry["name"], *entry["aliases"]) if "native" in entry else ():
            found.setdefault(name, {"native": entry["native"], "also": []})
    return found


@cache
def _by_key() -> dict[str, str]:
    """Each base by its name without what says how it was built; the first of two alike."""
    found: dict[str, str] = {}
    for base, row in _bases().items():
        for name in (base.rpartition("/")[2], *row["also"]):
            found.setdefault(_key(name), base)
    return found


def _key(text: str) -> str:
    """The name without what only says how it was built, and by whom: `gemma426ba4b`."""
    data = table("names")
    words = {*data["build_words"], *data["other_words"]}
    parts = re.split(r"[-_ ]+", text.lower())
    return re.sub(r"[^a-z0-9]", "", "".join(part for part in parts if part not in words))


def nearest_model(name: str, known: Iterable[str]) -> str | None:
    """Return the known model most like a name, of the same family and size; None without one.

    Family and size are the words with a number: `qwen3.6`, `35b`, `a3b`, `v4`.
    """
    numbered = _numbers(name)
    alike = [one for one in known if numbered and _numbers(one) == numbered]
    return nearest(name, alike)


def _numbers(name: str) -> set[str]:
    data = table("names")
    parts = re.split(r"[-_ ]+", name.rpartition("/")[2].lower())
    return {part for part in parts if re.search(r"\d", part) and part not in data["build_words"]}


def _named_quantization(model: str, hints: tuple[str, ...]) -> Quantization | None:
    words = table("names")["quantization_words"]
    parts = _parts(model, hints)
    found = {words[part] for part in parts if part in words}
    if parts & {"hybrid", "mixed"} or (parts & _FOUR_BITS and found == {"fp8"}):
        return None  # layers of several formats
    if parts & _EIGHT_BITS and found <= {"awq-int4", "gptq-int4"}:
        return None  # whose size is not known here
    if not found and parts & _FOUR_BITS and parts & {"autoround", "w4a16"}:
        # AutoRound packs as GPTQ does, compressed-tensors (w4a16) in groups as AWQ.
        return "gptq-int4" if "autoround" in parts else "awq-int4"
    return cast(Quantization, found.pop()) if len(found) == 1 else None


def _parts(model: str, hints: tuple[str, ...]) -> set[str]:
    texts = [model] if not is_path(model) else [model, *hints]
    return {part for text in texts for part in re.split(r"[-_ /.]+", text.lower())}


def _is_plain(model: str, hints: tuple[str, ...]) -> bool:
    """Return whether no name mentions a quantization, not even one that is unknown here."""
    data = table("names")
    words = set(data["build_words"]) - {"it", "instruct", "bf16", "mtp"}
    return not words & _parts(model, hints)
