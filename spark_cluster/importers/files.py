"""From a file of another tool to a recipe: which importer reads it, and the text that is written.

Importers of other packages are asked, too; their faults do not touch the others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml.comments import CommentedMap

from spark_cluster.config.engines import DEFAULT
from spark_cluster.config.image_build import BUILT
from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe import Recipe, is_for_models, why_refused
from spark_cluster.config.recipe_schema import MOST_NODES
from spark_cluster.config.recipes import commented, commented_text, yaml_of
from spark_cluster.config.schema import UNMOUNTABLE, parse, problems_of
from spark_cluster.config.yamlfile import Sourced, described, dotted, shown
from spark_cluster.errors import InvalidFile, SparkClusterError
from spark_cluster.importers import kits, templated, vllm_recipes
from spark_cluster.importers.commandline import CommandFile
from spark_cluster.importers.compose import ComposeImporter
from spark_cluster.importers.importer import (
    BUILD_IT,
    Choice,
    Given,
    Imported,
    Importer,
    Left,
    Parts,
    Source,
    YamlImporter,
    folder_on_node,
    parts_of,
    shown_flag,
)
from spark_cluster.importers.mods import carry_over
from spark_cluster.importers.vllm_flags import kinds
from spark_cluster.models.naming import HUB_CACHE, is_path

GROUP = "spark_cluster.importers"
"""Group of the entry points of other packages."""

MISSING = (
    "give the path of a file, @REGISTRY/RECIPE of a registry, or --command 'vllm serve ...'; "
    "spark-cluster recipes search WORDS finds recipes by words"
)

OURS: tuple[Importer, ...] = (
    YamlImporter("a model file of vllm-project/recipes", vllm_recipes.claims, vllm_recipes.read),
    YamlImporter("a recipe of sparkrun", templated.is_sparkrun, templated.read_sparkrun),
    YamlImporter("a recipe of spark-vllm-docker", templated.claims, templated.read),
)
"""Asked first, so that no package changes what they read."""

LAST: tuple[Importer, ...] = (ComposeImporter(), kits.ReadmeFile(), CommandFile())
"""Asked after those of other packages, which may know more of a compose file; a text of any kind
can have a command line in it."""


def read_file(path: Path, choice: Choice | None = None) -> Source:
    """Return what a file says, whichever kind it is.

    Args:
        choice: variant and features, of a model file of vllm-project/recipes or a kit.

    Raises:
        InvalidFile: it is none of the kinds, or wrong, with the line.
        UsageError: it has no such variant or feature, or `choice` is given for another kind.
    """
    if not path.exists():
        raise InvalidFile("no such file", where=str(path), hint=MISSING)
    if path.is_dir():
        return kits.read(path, choice or Choice(), read_given)
    return read_given(kits.alone(path), choice or Choice())


def read_given(given: Given, choice: Choice) -> Source:
    """Return what a file says, as `read_file` does."""
    names, broken = list[str](), list[str]()
    for importer in chain(OURS, _plug_ins(broken), LAST):
        names.append(importer.name)
        if importer.recognises(given):
            break
    else:
        raise _unknown(given, _tried(names, broken))
    try:
        source = importer.read(given, choice)
    except InvalidFile as error:
        if importer not in LAST or error.hint:
            raise
        hint = _tried(names, broken)
        raise InvalidFile(error.message, where=error.where, hint=hint) from None
    if isinstance(given.loaded, Sourced):
        source.notes[:0] = given.loaded.notes
    source.notes[:0] = given.notes
    source.notes += broken
    return source


def _tried(names: list[str], broken: list[str]) -> str:
    """Return, for a hint, what was looked for and which importers failed."""
    return "\n  ".join(["what can be imported: " + ", ".join(names), *broken])


def _plug_ins(broken: list[str]) -> Iterator[Importer]:
    """Yield those of other packages, looked up when none of ours reads the file.

    Args:
        broken: takes a sentence on each that cannot be used.
    """
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            found = _loaded(point)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the others are asked)
            broken.append(_broken(point, error))
        else:
            yield PlugIn(point, found, broken)


def _unknown(given: Given, tried: str) -> InvalidFile:
    source = given.loaded
    if isinstance(source, InvalidFile):
        return InvalidFile(source.message, where=source.where, hint=source.hint or tried)
    fields = ", ".join(str(key) for key in list(source.data)[:6]) or described(source.data)
    message, hint = f"not a file of a known kind; its fields are {fields}", tried
    if isinstance(source.data.get("model"), dict) and isinstance(source.data.get("image"), dict):
        message = "this is a recipe of spark-cluster already"
        hint = "put it into the project's folder recipes/ and use its name"
    return InvalidFile(message, where=source.where(), hint=hint)


@dataclass(frozen=True)
class PlugIn:
    """An importer of another package: what it raises is its own fault, and says so."""

    point: EntryPoint
    importer: Importer
    broken: list[str]

    @property
    def name(self) -> str:
        return self.importer.name

    def recognises(self, given: Given) -> bool:
        try:
            return bool(self.importer.recognises(given))
        except Exception as error:  # noqa: BLE001  (the other importers are asked)
            self.broken.append(_broken(self.point, error))
            return False

    def read(self, given: Given, choice: Choice) -> Source:
        """As `Importer.read`.

        Raises:
            InvalidFile: also when it raises something else, or returns something else.
        """
        try:
            source = self.importer.read(given, choice)
            if not isinstance(source, Source):
                raise TypeError(f"it returned {type(source).__name__}, expected a Source")
        except SparkClusterError:
            raise
        except Exception as error:
            raise InvalidFile(
                _broken(self.point, error),
                where=shown(given.path),
                hint="report it to the authors of that package",
            ) from error
        return source


def _loaded(point: EntryPoint) -> Importer:
    """The object of an entry point.

    Raises:
        TypeError: it is no importer; anything else that importing it raises.
    """
    importer = point.load()
    name = getattr(importer, "name", None)
    if isinstance(importer, type) or not isinstance(name, str):
        raise TypeError(f"found {importer!r}, expected an object with a name (Importer)")
    for method in ("recognises", "read"):
        if not callable(getattr(importer, method, None)):
            raise TypeError(f"it has no {method}() (Importer)")
    made: Importer = importer
    return made


def _broken(point: EntryPoint, error: BaseException) -> str:
    package = f" of the package {point.dist.name} {point.dist.version}" if point.dist else ""
    first = (str(error).splitlines() or ["(no message)"])[0]
    return (
        f"the importer '{point.name}'{package} ({point.value}) cannot be used: "
        f"{type(error).__name__}: {first}"
    )


# The text of a recipe made from someone else's launch.

DEFAULT_IMAGES = {
    "vllm": "ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest",
    "sglang": "lmsysorg/sglang:spark",
}
"""For a command without a container, by engine: the image of the recipe gemma4-31b-nvfp4, which has
Ray; and the one that SGLang's authors publish for the DGX Spark (lmsys.org/blog, October 2025)."""

FILES = (".jinja", ".py", ".json", ".yaml")
"""Endings of files that a flag can name."""


def write(
    source: Source,
    *,
    name: str | None = None,
    model: str | None = None,
    image: str | None = None,
    mods: Sequence[Path] = (),
    taken: Collection[str] = (),
) -> Imported:
    """The recipe, and what became of every part of its source.

    Args:
        source: what someone else wrote.
        name: of the recipe; made from what it serves when not given.
        model: repository on the hub, where the source names a folder only.
        image: container image, where the source names none.
        mods: folders of mods that the source may name.
        taken: names of other recipes, which a name that is made does not repeat.

    Raises:
        InvalidFile: the source says something that no recipe can hold, with the fields.
    """
    parts = parts_of(source.launch)
    parts.left_out[:0] = source.left_out
    made = slug(source.title or source.repository or _named(source.launch))
    if not name and made in taken:
        source.notes.append(f"there is a recipe {made} already: this one is {made}-imported")
        made = f"{made}-imported"
    data = _data(parts, source, name or made, model, image)
    image_named = data["image"]
    files = {**_patches(data, source, parts), **carry_over(data, source, parts, mods)}
    parts.left_out[:0] = _lacking(source, parts, image_named, named=image is not None)
    if lost := [left.entry for left in parts.left_out if left.consequence]:
        data["not_carried_over"] = lost
    _check(data, source)
    return Imported(
        kind=source.kind,
        name=data["name"],
        text=_head(source, parts) + _body(data, parts),
        kept=[*(f"--{flag}" for flag in parts.engine_args), *parts.env],
        carried=parts.carried,
        left_out=parts.left_out,
        notes=source.notes,
        offers=source.offers,
        to_do=parts.to_do,
        files=files,
    )


def _patches(data: dict[str, Any], source: Source, parts: Parts) -> dict[str, bytes]:
    """Return the files of a kit that are mounted over the image's own, and name them in `data`."""
    files: dict[str, bytes] = {}
    for patch in data.get("patches", []):
        content = source.files.get(patch["target"])
        if content is not None and patch.get("origin") == "laptop":
            asked = f"put {patch['file']} next to the recipe"
            parts.to_do[:] = [text for text in parts.to_do if not text.startswith(asked)]
            patch["file"] = f"{data['name']}.patches/{patch['file']}"
            files[patch["file"]] = content
    if files:
        folder = f"{data['name']}.patches"
        parts.to_do.append(f"read the files in {folder}: the container runs them as vLLM's own")
    return files


def _lacking(
    source: Source, parts: Parts, image: Mapping[str, Any], *, named: bool
) -> Iterator[Left]:
    """Yield what the recipe lacks, besides `parts.left_out`: what follows from several parts of its
    source together, as one that was left out for itself has its consequence already.

    Args:
        image: the recipe's section of that name, before mods.
        named: the user named it, and knows where it is.
    """
    if source.generates:
        yield Left(
            f"generation of {source.generates}",
            "`vllm serve` answers in text, and `up` verifies a server by its answer",
            "it is not served here",
            blocks=True,
        )
    words = image.get("build", {}).get("dockerfile", "").split()
    # What must be there before anything is built on it.
    pulled = next((word for word in words[1:] if not word.startswith("--")), image["ref"])
    built = any(left.what.startswith("build of") for left in parts.left_out)
    if "/" not in pulled and not named and not built:
        yield Left(
            f"image {pulled}",
            "it is in no registry: those who use it build it on their nodes",
            BUILD_IT,
        )
    if any(left.what.startswith("mods:") for left in parts.left_out):
        yield from _of_missing_mods(source, parts)


def _of_missing_mods(source: Source, parts: Parts) -> Iterator[Left]:
    """Yield the flags and files that only a mod that was not carried over can have brought."""
    known = kinds(source.launch.engine)
    for flag, value in parts.engine_args.items():
        if flag not in known and flag.removeprefix("no-") not in known:
            why = "no version of the engine has this flag: a mod that was not carried over adds it"
            effect = "the engine refuses the flag and does not start"
        elif isinstance(value, str) and value.endswith(FILES) and "/" not in value:
            why = "the file is not part of the image: a mod that was not carried over brings it"
            effect = "the engine does not find the file and does not start"
        else:
            continue
        yield Left(shown_flag(flag, value), why, effect, blocks=True)


def _data(
    parts: Parts, source: Source, name: str, model: str | None, image: str | None
) -> dict[str, Any]:
    """The recipe's fields in the order in which people read them; what is empty is left out."""
    launch = source.launch
    vllm = {"version": launch.vllm, "supported": source.supported}
    data: dict[str, Any] = {
        "name": name,
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


def slug(text: str) -> str:
    """A name for a recipe: `google/Gemma 4 31B` becomes `gemma-4-31b`."""
    last = text.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^a-z0-9.]+", "-", last.lower()).strip("-.") or "imported"


def _named(launch: Launch) -> str:
    if not is_path(launch.model):
        return launch.model
    folder = folder_on_node(launch.volumes, launch.model)
    cached = HUB_CACHE.search(launch.model) or HUB_CACHE.search(folder)
    return cached[2] if cached else folder


def _model(parts: Parts, source: Source, given: str | None) -> dict[str, Any]:
    launch = source.launch
    model: dict[str, Any] = {"name": given or launch.model}
    if given is None and is_path(launch.model):
        model["name"] = source.repository or _folder_name(parts, launch)
    folder = folder_on_node(launch.volumes, launch.model)
    own = folder.startswith("/") and not folder.startswith("/root/")  # that of a container
    absolute = own and ".." not in folder.split("/") and "$" not in folder
    free = is_for_models(folder) or not why_refused(folder, read_only=False)
    if absolute and free and not UNMOUNTABLE.search(folder) and not HUB_CACHE.search(folder):
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
    folder = folder_on_node(launch.volumes, launch.model)
    for path in (launch.model, folder):
        if cached := HUB_CACHE.search(path):
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
        own = launch.image.partition("@")[0].rpartition("/")[2]
        own = f"local/{slug(own) if '$' in own else own}"
        return {"ref": launch.image if launch.image.startswith(BUILT) else own, "build": build}
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
        problems = problems_of(Recipe, data, error)
        raise InvalidFile(
            "\n  ".join(
                ["no recipe can hold this:", *(f"{dotted(p.key)}: {p.message}" for p in problems)]
            ),
            where=source.origin,
            hint="change it at the source, and import again",
        ) from None


def _head(source: Source, parts: Parts) -> str:
    """The comment that says where it comes from, what is to be done, and what it lacks."""
    lines = commented_text(f"Imported from {source.origin}.", "# ", "#   ")
    for text in parts.to_do:
        lines += commented_text(f"TO DO: {text}", "# ", "#   ")
    harmless = [left for left in parts.left_out if not left.consequence]
    lines += ["# Left out, and not needed:"] if harmless else []
    for left in harmless:
        lines += commented_text(f"{left.what}: {left.why}", "# - ", "#   ")
    return "\n".join(lines) + "\n"


def _body(data: dict[str, Any], parts: Parts) -> str:
    """The YAML, with a remark on what is not as the source has it."""
    document = commented(data)

    def note(section: CommentedMap, key: str, text: str) -> None:
        if key in section:
            section.yaml_add_eol_comment(text, key, column=44)

    document["tensor_parallel"].fa.set_flow_style()
    if document["tensor_parallel"]["max"] == MOST_NODES:
        note(document, "tensor_parallel", "the source has the default, and states no limit")
    if "gpu_memory_utilization" not in parts.fields:
        note(document, "gpu_memory_utilization", "computed from what the node has")
    note(document["model"], "base", "guessed from its names")
    note(document["model"], "quantization", "from the flags and names")
    if "vllm" in document:
        note(document["vllm"], "version", "what this tag of the image has")
    return yaml_of(document)
