"""The text of a recipe made from someone else's launch."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from spark_cluster.config import recipe_yaml
from spark_cluster.config.engines import DEFAULT
from spark_cluster.config.fields import UNMOUNTABLE
from spark_cluster.config.launch import Launch
from spark_cluster.config.node_paths import is_for_models, why_refused
from spark_cluster.config.parallelism import MOST_NODES
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import BUILT
from spark_cluster.config.schema import parse, problems_of
from spark_cluster.config.yamlfile import dotted
from spark_cluster.errors import InvalidFile
from spark_cluster.importers.importer import Imported, Source
from spark_cluster.importers.lacking import lacking
from spark_cluster.importers.mod_steps import carry_over
from spark_cluster.importers.places import Parts, folder_on_node, sort
from spark_cluster.models.naming import is_path

if TYPE_CHECKING:
    from ruamel.yaml.comments import CommentedMap

DEFAULT_IMAGES = {
    "vllm": "ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest",
    "sglang": "lmsysorg/sglang:spark",
}
"""For a command without a container, by engine: the image of the recipe gemma4-31b-nvfp4, which has
Ray; and the one that SGLang's authors publish for the DGX Spark (lmsys.org/blog, October 2025)."""

_HUB_FOLDER = re.compile(r"models--([^/]+)--([^/]+)")


def write(
    source: Source,
    *,
    name: str | None = None,
    model: str | None = None,
    image: str | None = None,
    mods: Sequence[Path] = (),
) -> Imported:
    """The recipe, and what became of every part of its source.

    Args:
        source: what someone else wrote.
        name: of the recipe; made from what it serves when not given.
        model: repository on the hub, where the source names a folder only.
        image: container image, where the source names none.
        mods: folders of mods that the source may name.

    Raises:
        InvalidFile: the source says something that no recipe can hold, with the fields.
    """
    parts = sort(source.launch)
    parts.left_out[:0] = source.left_out
    data = _data(parts, source, name, model, image)
    image_named = data["image"]
    files = carry_over(data, source, parts, mods)
    parts.left_out[:0] = lacking(source, parts, image_named, named=image is not None)
    data["not_carried_over"] = [left.entry for left in parts.left_out if left.consequence]
    if not data["not_carried_over"]:
        del data["not_carried_over"]
    _check(data, source)
    return Imported(
        kind=source.kind,
        name=data["name"],
        text=_yaml(data, source, parts),
        kept=[*(f"--{flag}" for flag in parts.engine_args), *parts.env],
        carried=parts.carried,
        left_out=parts.left_out,
        notes=source.notes,
        offers=source.offers,
        to_do=parts.to_do,
        files=files,
    )


def _data(
    parts: Parts, source: Source, name: str | None, model: str | None, image: str | None
) -> dict[str, Any]:
    """The recipe's fields in the order in which people read them; what is empty is left out."""
    launch = source.launch
    vllm = {"version": launch.vllm, "supported": source.supported}
    data: dict[str, Any] = {
        "name": name or slug(source.title or _named(launch)),
        "description": " ".join(source.description.split())[:300],
        "model": _model(parts, source, model),
        "kind": launch.kind if launch.kind != "chat" else None,
        "image": _image(parts, launch, image),
        "tensor_parallel": _sizes(source),
        "pipeline_parallel": parts.fields.get("pipeline_parallel"),
        "data_parallel": parts.fields.get("data_parallel"),
        "engine": launch.engine if launch.engine != DEFAULT else None,
        "executor": parts.fields.get("executor"),
        "engine_args": parts.engine_args,
        "env": parts.env,
        "mounts": parts.mounts,
        "patches": parts.patches,
        "drafter": parts.fields.get("drafter"),
        "gpu_memory_utilization": parts.fields.get("gpu_memory_utilization", "auto"),
        "vllm": {key: value for key, value in vllm.items() if value},
        "sources": [source.origin],
    }
    return {key: value for key, value in data.items() if value}


def _sizes(source: Source) -> dict[str, int]:
    """The tensor-parallel sizes: limits of the source are limits, its own size is the default."""
    launch = source.launch
    low, high = source.sizes or (1, None)
    others = launch.pp * launch.dp
    low = max(1, low // others)
    high = MOST_NODES if high is None else max(low, high // others)
    sizes = {"min": low, "max": high}
    if low < high:
        sizes["default"] = min(max(low, source.default_tp or launch.tp), high)
    return sizes


def _last(image: str) -> str:
    """Return name and tag of an image without its registry and repository's folders."""
    return image.partition("@")[0].rpartition("/")[2]


def slug(text: str) -> str:
    """A name for a recipe: `google/Gemma 4 31B` becomes `gemma-4-31b`."""
    last = text.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^a-z0-9.]+", "-", last.lower()).strip("-.") or "imported"


def _named(launch: Launch) -> str:
    if not is_path(launch.model):
        return launch.model
    if cached := _HUB_FOLDER.search(launch.model):
        return cached[2]
    return folder_on_node(launch, launch.model)


def _model(parts: Parts, source: Source, given: str | None) -> dict[str, Any]:
    launch = source.launch
    model: dict[str, Any] = {"name": given or launch.model}
    if given is None and is_path(launch.model):
        model["name"] = _folder_name(parts, launch)
    folder = folder_on_node(launch, launch.model)
    absolute = folder.startswith("/") and ".." not in folder.split("/") and "$" not in folder
    free = is_for_models(folder) or not why_refused(folder, read_only=False)
    if absolute and free and not UNMOUNTABLE.search(folder) and not _HUB_FOLDER.search(folder):
        model["path"] = folder
        if not is_for_models(folder):
            parts.ask_leave(folder)
    revision = source.revision or str(launch.args.get("revision", ""))
    if revision and not revision.startswith("$"):
        model["revision"] = revision
    model["served_name"] = _served(parts, launch, model["name"])
    if launch.base:
        model["base"] = launch.base
    if launch.quantization:
        model["quantization"] = launch.quantization
    return model


def _folder_name(parts: Parts, launch: Launch) -> str:
    """The repository of a folder in the hub's cache; else the folder's own name, to correct."""
    folder = folder_on_node(launch, launch.model)
    for path in (launch.model, folder):
        if cached := _HUB_FOLDER.search(path):
            return f"{cached[1]}/{cached[2]}"
    if "$" in folder:
        parts.to_do.append(
            f"only the shell knows what {folder} is: write the repository into model.name (or "
            "import again with --model ORG/NAME)"
        )
        return "model"
    parts.to_do.append(
        f"write the repository that {folder} was downloaded from into model.name (or import again "
        "with --model ORG/NAME)"
    )
    return folder.rstrip("/").rpartition("/")[2] or "model"


def _served(parts: Parts, launch: Launch, name: str) -> str:
    given = launch.args.get("served-model-name")
    names = [str(one) for one in given] if isinstance(given, list) else [str(given or "")]
    for other in names[1:]:
        parts.leave(f"--served-model-name {other}", "a model is served under one name: the first")
    return names[0] if names[0] and "$" not in names[0] else name


def _image(parts: Parts, launch: Launch, given: str | None) -> dict[str, Any]:
    if launch.dockerfile:
        build = {"dockerfile": launch.dockerfile, "why": "as the source has it"}
        ref = launch.image if launch.image.startswith(BUILT) else f"local/{_last(launch.image)}"
        return {"ref": ref, "build": build}
    reference = given or launch.image
    if not reference or "$" in reference:
        default = DEFAULT_IMAGES.get(launch.engine, DEFAULT_IMAGES[DEFAULT])
        parts.to_do.append(
            f"no container image is named; image.ref is {default} until you write another "
            "(or import again with --image REF)"
        )
        return {"ref": default}
    ref, _, digest = reference.partition("@")
    if "/" not in ref and not given:
        parts.to_do.append(
            f"{ref} is in no registry but Docker's own: if it was built on a node, write how into "
            "image.build, or name one that can be pulled (or import again with --image REF)"
        )
    digest = digest or ("" if given else launch.digest)
    return {"ref": ref, **({"digest": digest} if digest else {})}


def _check(data: dict[str, Any], source: Source) -> None:
    try:
        parse(Recipe, data)
    except ValidationError as error:
        lines = [
            f"{dotted(problem.key)}: {problem.message}"
            for problem in problems_of(Recipe, data, error)
        ]
        raise InvalidFile(
            "no recipe can hold this:\n  " + "\n  ".join(lines),
            where=source.origin,
            hint="change it at the source, and import again",
        ) from None


def _yaml(data: dict[str, Any], source: Source, parts: Parts) -> str:
    document = recipe_yaml.commented(data)
    _comment(document, parts)
    return _head(source, parts) + recipe_yaml.text_of(document)


def _head(source: Source, parts: Parts) -> str:
    """The comment that says where it comes from, what is to be done, and what it lacks."""
    lines = [f"# Imported from {source.origin}."]
    for text in parts.to_do:
        lines += _wrapped(f"TO DO: {text}", "# ", "#   ")
    harmless = [left for left in parts.left_out if not left.consequence]
    if harmless:
        lines.append("# Left out, and not needed:")
    for left in harmless:
        lines += _wrapped(f"{left.what}: {left.why}", "# - ", "#   ")
    return "\n".join(lines) + "\n"


def _wrapped(text: str, first: str, more: str) -> list[str]:
    plain = " ".join(text.split())
    return textwrap.wrap(
        plain,
        width=98,
        initial_indent=first,
        subsequent_indent=more,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _comment(document: CommentedMap, parts: Parts) -> None:
    def note(section: CommentedMap, key: str, text: str) -> None:
        section.yaml_add_eol_comment(text, key, column=44)

    if document["tensor_parallel"]["max"] == MOST_NODES:
        note(document, "tensor_parallel", "the source has the default, and states no limit")
    document["tensor_parallel"].fa.set_flow_style()
    if "gpu_memory_utilization" not in parts.fields:
        note(document, "gpu_memory_utilization", "computed from what the node has")
    model = document["model"]
    if "base" in model:
        note(model, "base", "guessed from its names")
    if "quantization" in model:
        note(model, "quantization", "from the flags and names")
    if "version" in document.get("vllm", {}):
        note(document["vllm"], "version", "what this tag of the image has")
