"""The interface of importers: each reads one kind of file for `recipes import`, `plan`, `lint`.

An importer makes a `Source` of a file; `files.write` makes an `Imported` of that: a recipe,
and a remark on everything that is not in it.

Other packages add theirs by an entry point of the group `spark_cluster.importers`, whose object is
an `Importer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from spark_cluster.config import engines
from spark_cluster.config.engines import Dialect
from spark_cluster.config.folders import CACHES
from spark_cluster.config.launch import Launch, Volume
from spark_cluster.config.recipe import is_for_models, why_not_writable, why_refused
from spark_cluster.config.recipe_schema import EngineValue, why_no_engine_value
from spark_cluster.config.schema import UNMOUNTABLE, VARIABLE, Hidden, printed
from spark_cluster.config.secret import is_secret, is_secret_setting, looks_secret
from spark_cluster.config.yamlfile import Sourced, load, read_foreign
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.naming import HUB_CACHE, table

# Names of files whose rules are commands, and of all that are read as scripts.
MAKEFILE = re.compile(r"(?:gnu)?makefile|justfile|[\w.-]+\.(?:mk|just)", re.IGNORECASE)
SCRIPT = re.compile(rf".*\.(?:sh|bash)|{MAKEFILE.pattern}", re.IGNORECASE)

MOST_TRIED = 50
"""Files of a kit of each likelihood that are tried, and scripts; those beyond are not seen."""

MOST_TEXT = 2_000_000
"""Characters of all files that are tried; those beyond are not seen."""

LARGEST_TEXT = 1 << 20
"""Characters of a file that is looked at as text."""


BUILD_IT = "build it on one node, from which `up` copies it; `up` stops where no node has it"
"""What becomes of an image that no registry has (engine/image_copies.py)."""


@dataclass(frozen=True, slots=True)
class Left:
    """Something of the source that the recipe does not hold.

    Attributes:
        what: as the source has it; a secret's value is never in it.
        why: and where it goes instead, if anywhere.
        consequence: what does not work without it, or is different; empty when nothing is.
        blocks: it cannot work without it.
    """

    what: str
    why: str
    consequence: Hidden[str] = ""
    blocks: Hidden[bool] = False

    @property
    def entry(self) -> dict[str, str | bool]:
        """The entry of the recipe's not_carried_over."""
        found = {"what": self.what, "why": self.why, "consequence": self.consequence}
        return {**found, **({"blocks": True} if self.blocks else {})}


@dataclass(frozen=True, slots=True)
class Carried:
    """Something of the source that the recipe holds under another name."""

    what: str
    where: str


@dataclass(frozen=True, slots=True)
class Offer:
    """Another configuration of the same file that is for a DGX Spark.

    Attributes:
        option: of `recipes import`, which takes it.
        what: it is.
    """

    option: str
    what: str


@dataclass(slots=True)
class Source:
    """A configuration written for another tool.

    Attributes:
        launch: what it starts.
        kind: what it was written as, `sparkrun recipe`.
        title: what it calls itself; empty when it has no name.
        description: in its own words.
        revision: of the model; empty for the newest.
        sizes: fewest and most nodes, when it says so; no number where it states no limit.
        default_tp: tensor-parallel size that it takes when none is asked for, where that is not
            the launch's own.
        generates: speech, images or video; empty for a model of text.
        supported: versions of vLLM, such as '>=0.25'.
        origin: the file, or what stands for it.
        left_out: what could not even become part of a launch.
        notes: what was read with goodwill.
        mods: scripts that change the container, as the file names them.
        path: the file, next to which mods may lie.
        repository: of a model that the launch has as a folder, where the source names one.
        files: of a kit, by the path that they are mounted over in the image.
        offers: other configurations of it that are for this hardware.
    """

    launch: Launch
    kind: str = "command line"
    title: str = ""
    description: str = ""
    revision: str = ""
    sizes: tuple[int, int | None] | None = None
    default_tp: int | None = None
    generates: str = ""
    supported: str = ""
    origin: str = "a pasted command line"
    left_out: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mods: list[str] = field(default_factory=list)
    path: Path | None = None
    repository: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    offers: list[Offer] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Imported:
    """A recipe made from something else.

    Attributes:
        kind: what it was made from.
        name: of the recipe, which is also the name of its file.
        text: the file: YAML with comments, which our own reader takes.
        kept: flags and variables that are in it as they were.
        carried: what became something of another name.
        left_out: what the recipe does not hold, and why.
        notes: what was read with goodwill or guessed.
        offers: other configurations of the source that are for this hardware.
        to_do: what must be filled in before it can be served.
        files: next to the recipe, by their path relative to it.
    """

    kind: str
    name: str
    text: Hidden[str]
    kept: list[str] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    left_out: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    files: Hidden[dict[str, bytes]] = field(default_factory=dict)

    @printed
    def not_carried_over(self) -> list[dict[str, str | bool]]:
        """The entries of the recipe of that name."""
        return [one.entry for one in self.left_out if one.consequence]


@dataclass(frozen=True, slots=True)
class Choice:
    """The user's choice in a file that offers several configurations.

    Args:
        variant: of the checkpoint; of a kit or a compose file the file or the service.
        features: to switch on, `NAME=MODE` for one of its modes, `no-NAME` to switch off.
    """

    variant: str = "default"
    features: tuple[str, ...] = ()


def no_choice(choice: Choice) -> None:
    """Raise UsageError when a variant or feature was chosen for a file that has none."""
    if choice != Choice():
        raise UsageError(
            "--variant and --feature choose nothing here",
            hint="leave them out; kits, compose files and vllm-project/recipes have variants",
        )


@dataclass(frozen=True)
class Given:
    """A file that someone wants to import; it is read once, when that is wanted.

    Attributes:
        path: the file.
        root: the folder beyond which nothing that it names is read; its own by default.
        variables: that it may use, from files next to it.
        env: what stands for the `.env` of a compose file; the one next to it by default.
        notes: what was read for it with goodwill.
        exported: names of variables that it passes on to what it starts.
    """

    path: Path
    root: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    env: Path | None = None
    notes: list[str] = field(default_factory=list)
    exported: Mapping[str, None] = field(default_factory=dict)

    @cached_property
    def loaded(self) -> Sourced | InvalidFile:
        """Its YAML (or JSON) with the position of every value, or why it is none."""
        if SCRIPT.fullmatch(self.path.name) and self.text:
            return InvalidFile("this is a script", where=str(self.path))
        try:
            return load(self.path, "file", lenient=True)
        except InvalidFile as error:
            return error

    @property
    def error(self) -> InvalidFile | None:
        """Why it is no YAML."""
        return self.loaded if isinstance(self.loaded, InvalidFile) else None

    @property
    def data(self) -> Mapping[str, Any]:
        """Its YAML as plain data; empty when it is none."""
        return {} if isinstance(self.loaded, InvalidFile) else self.loaded.data

    @cached_property
    def text(self) -> str:
        """Its text; empty when it is none or too long to be read as one."""
        try:
            return read_foreign(self.path, LARGEST_TEXT, "text").decode("utf-8-sig")
        except (OSError, UnicodeDecodeError, InvalidFile):
            return ""


class Importer(Protocol):
    """Reads one kind of file."""

    @property
    def name(self) -> str:
        """The kind of file, in the words of messages: `a recipe of sparkrun`."""

    def recognises(self, given: Given) -> bool:
        """Return whether a file is of this kind, by what is in it; it may be anything."""

    def read(self, given: Given, choice: Choice) -> Source:
        """Return what a file says.

        Args:
            choice: variant and features; `Choice()` when the user named none.

        Raises:
            InvalidFile: it is wrong, with the line.
            UsageError: it has no such variant or feature.
        """


@dataclass(frozen=True)
class YamlImporter:
    """An importer of a kind of YAML file.

    Args:
        name: what it reads, in the words of messages.
        claims: whether data are of this kind.
        reader: reads data of this kind.
    """

    name: str
    claims: Callable[[Mapping[str, Any]], bool]
    reader: Callable[[Sourced, Choice], Source]

    def recognises(self, given: Given) -> bool:
        return not given.error and self.claims(given.data)

    def read(self, given: Given, choice: Choice) -> Source:
        if isinstance(given.loaded, InvalidFile):
            raise given.loaded
        return self.reader(given.loaded, choice)


# The mapping of each part of a launch to its place in a recipe, or the reason why it has none.

_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9.]+)*")
_UNEXPANDED = re.compile(r"\$[A-Za-z_({]|\$\d|`|%[A-Z_]+%")
PACKAGE = re.compile(r"/(dist|site)-packages/.+\.\w+$")
_CACHE_FOLDER = re.compile(r"/\.(cache|triton)(/|$)")

_ONLY_THE_SHELL = "only the shell that runs it knows the value"
_NEVER = "a secret is never written into a recipe; the laptop's HF_TOKEN downloads the model"


@dataclass(slots=True)
class Parts:
    """The sections of a recipe that come from a launch.

    Attributes:
        engine_args: flags that stay flags.
        env: variables that stay variables; a secret as a reference to the laptop's.
        mounts: as the recipe writes them.
        patches: as the recipe writes them.
        fields: fields at the top: gpu_memory_utilization, executor, drafter, ...
        carried, left_out, to_do: what there is to say about it.
    """

    engine_args: dict[str, EngineValue] = field(default_factory=dict)
    env: dict[str, str | dict[str, str]] = field(default_factory=dict)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    patches: list[dict[str, Any]] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    carried: list[Carried] = field(default_factory=list)
    left_out: list[Left] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)

    def leave(self, what: str, why: str) -> None:
        self.left_out.append(Left(what, why))

    def carry(self, what: str, where: str) -> None:
        self.carried.append(Carried(what, where))

    def head(self, what: str, name: str, value: object, why: str) -> None:
        """A field at the top; without a value it is left out."""
        if value is None:
            self.leave(what, why)
        else:
            self.fields[name] = value
            self.carry(what, name)

    def ask_leave(self, folder: str) -> None:
        """For a folder of the nodes that is written to."""
        if why := why_not_writable(folder):
            self.to_do.append(
                f"allow {folder} of the nodes to be written to, or leave it out: {why} "
                "(`allow_mounts` under serve in the inventory, or --allow-mount)"
            )


def parts_of(launch: Launch) -> Parts:
    """The parts of a launch, each in its place."""
    parts = Parts()
    args = dict(launch.args)
    _drafter(parts, args, launch)
    for flag, value in args.items():
        _flag(parts, flag, value, launch)
    if launch.executor and "distributed-executor-backend" not in args:
        parts.fields["executor"] = launch.executor
    for name, text in launch.env.items():
        _variable(parts, name, text)
    for volume in launch.volumes:
        _volume(parts, volume, launch)
    for option, given in launch.docker.items():
        for one in given if isinstance(given, list) else [given]:
            _option(parts, option, one)
    return parts


def shown_flag(flag: str, value: object) -> str:
    """A flag as people write it."""
    if value is True:
        return f"--{flag}"
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else value
    return f"--{flag} {text}"


def shortened(text: str, most: int = 100) -> str:
    """Return a text of at most so many characters; one that is cut ends in `...`."""
    return text if len(text) <= most else f"{text[: most - 4]}..."


def folder_on_node(volumes: Sequence[Volume], path: str) -> str:
    """The folder of the node behind a path inside the container; the path itself without one."""
    best = path
    length = -1
    for volume in volumes:
        target = volume.target.rstrip("/")
        if (path == target or path.startswith(f"{target}/")) and len(target) > length:
            best, length = volume.source.rstrip("/") + path[len(target) :], len(target)
    return best


def _flag(parts: Parts, flag: str, value: EngineValue, launch: Launch) -> None:
    dialect = engines.dialect(launch.engine)
    own = dialect.own(flag)
    what = shown_flag(own, value)
    data = table("launch_reasons", "importers")
    ours = dialect.owned.get(own) or data["flags"].get(flag)
    if flag == "api-key":
        parts.leave("--api-key (value not shown)", dialect.owned[flag])
    elif is_secret(flag.replace("-", "_")) or looks_secret(shown_flag(flag, value)):
        parts.leave(f"--{flag} (value not shown)", _NEVER)
    elif isinstance(value, str) and _UNEXPANDED.search(value):
        effect = "the recipe has size 1 until tensor_parallel or --tp says another"
        sized = effect if flag == "tensor-parallel-size" else ""
        parts.left_out.append(Left(what, _ONLY_THE_SHELL, sized))
    elif flag == "gpu-memory-utilization":
        share = float(value) if isinstance(value, int | float) else 0.0
        why = "outside 0.05 to 0.95, which a Spark cannot give; it is computed (auto)"
        found = share if 0.05 <= share <= 0.95 else None
        parts.head(what, "gpu_memory_utilization", found, why)
    elif flag == "distributed-executor-backend":
        why = "the executors of a recipe are ray and mp"
        executor = value if value in ("ray", "mp") else None
        parts.head(what, "executor", executor, why)
    elif place := data["head"].get(flag):
        parts.carry(what, place)
    elif (place := data["above_one"].get(flag)) and isinstance(value, int):
        if value > 1:
            parts.fields[place] = value
        parts.carry(what, place if value > 1 else "always so")
    elif why := ours or _why_no_engine_arg(dialect, own, value):
        parts.leave(what, why)
    else:
        parts.engine_args[own] = value
        relative = isinstance(value, str) and not value.startswith("/") and "{" not in value
        if flag == "chat-template" and relative:
            parts.to_do.append(
                f"--chat-template {value} is a path relative to the image's working folder; give "
                "the whole path if the server does not find it"
            )


def _why_no_engine_arg(dialect: Dialect, flag: str, value: EngineValue) -> str:
    """Return why a recipe cannot have this flag under engine_args; empty when it can."""
    if not _FLAG.fullmatch(flag):
        return f"not a name that a flag of {dialect.title} can have"
    return why_no_engine_value(value)


def _drafter(parts: Parts, args: dict[str, EngineValue], launch: Launch) -> None:
    """`--speculative-config`, its short forms, and what came before it."""
    known = table("launch_reasons", "importers")["speculative"]
    given = {key: args.pop(flag) for flag, key in known.items() if flag in args}
    config = args.pop("speculative-config", None)
    if config is not None and not isinstance(config, dict):
        unknown = _UNEXPANDED.search(str(config))
        why = _ONLY_THE_SHELL if unknown else "its value is not a JSON object"
        parts.leave(shown_flag("speculative-config", config), why)
        return
    whole: dict[str, Any] = {**given, **(config or {})}
    if not whole:
        return
    what = shown_flag("speculative-config", whole)
    tokens = whole.pop("num_speculative_tokens", None)
    model = whole.pop("model", None)
    method = whole.pop("method", None) or _method(str(model or ""))
    if not isinstance(tokens, int) or not 1 <= tokens <= 32:
        parts.leave(what, "the drafter's number of tokens (1 to 32) is not in it")
    elif not method:
        parts.leave(what, "neither method nor model of the drafter is in it")
    elif isinstance(model, str) and _UNEXPANDED.search(model):
        parts.leave(what, _ONLY_THE_SHELL)
        parts.to_do.append(f"write the drafter's repository or folder under drafter: {what}")
    else:
        drafter: dict[str, Any] = {"method": method}
        if isinstance(model, str):
            node = folder_on_node(launch.volumes, model)
            drafter |= {"path": node} if node.startswith("/") else {"name": model}
            if cached := HUB_CACHE.search(node):
                drafter = {"method": method, "name": f"{cached[1]}/{cached[2]}"}
                if "/" in node[cached.end() :].partition("/snapshots/")[2].rstrip("/"):
                    parts.to_do.append(f"write where nodes have it under drafter.path: {model}")
        if "revision" in whole:
            drafter["revision"] = str(whole.pop("revision"))
        drafter["tokens"] = tokens
        options = {key: value for key, value in whole.items() if value is not None}
        drafter |= {"options": options} if options else {}
        parts.head(what, "drafter", drafter, "")


def _method(model: str) -> str:
    """Return how vLLM identifies a drafter by its name (vllm/config/speculative.py)."""
    name = model.lower()
    known = ("eagle3", "eagle", "dflash", "dspark", "assistant", "mtp", "ngram")
    found = next((word for word in known if word in name), "draft_model" if model else "")
    return "mtp" if found == "assistant" else found


def _variable(parts: Parts, name: str, text: str) -> None:
    data, secret = table("launch_reasons", "importers"), f"{name} (value not shown)"
    if name in data["hub_tokens"]:
        parts.leave(secret, "a secret: the laptop's HF_TOKEN downloads the model, and nothing else")
    elif name == "VLLM_API_KEY":
        parts.leave(secret, engines.dialect(engines.DEFAULT).owned["api-key"])
    elif is_secret_setting(name, text) and VARIABLE.fullmatch(name):
        parts.env[name] = {"env": name}
        advice = f"export {name} on the laptop, then `up --allow-env {name}`"
        parts.carry(secret, f"env, as {{env: {name}}}: {advice}")
    elif not VARIABLE.fullmatch(name):
        parts.leave(f"{name}={text}", "this is not the name of a variable")
    elif name in data["per_node"]:
        parts.leave(f"{name}={text}", "it is computed for each node")
    elif name in CACHES or name in data["hub_caches"]:
        parts.leave(f"{name}={text}", "models and caches have folders of their own on each node")
    elif _UNEXPANDED.search(text):
        parts.leave(f"{name}={text}", "only the shell that runs it knows the value")
    else:
        parts.env[name] = text


def _volume(parts: Parts, volume: Volume, launch: Launch) -> None:
    written = f"-v {volume.source}:{volume.target}{':ro' if volume.read_only else ''}"
    model = launch.model.rstrip("/")
    target = volume.target.rstrip("/")
    if model == target:
        _model_folder(parts, volume, written)
        return
    if PACKAGE.search(target):
        _patch(parts, volume, written, launch)
    elif HUB_CACHE.search(volume.source) or _holds_a_cache(target, launch):
        parts.leave(written, "models and caches have folders of their own on each node")
    elif target == "/tmp":  # noqa: S108  (of the container)
        parts.leave(written, "the container has a /tmp of its own")
    elif not volume.source.startswith("/"):
        why = "a recipe needs an absolute path of the node"
        if volume.source.startswith("~"):
            why += "; ~ is the home of the user who runs the command"
        elif _UNEXPANDED.search(volume.source):
            why = "only the shell that runs it knows the folder"
        parts.leave(written, why)
    elif ".." in f"{volume.source}/{target}".split("/") or not target.startswith("/"):
        parts.leave(written, "a recipe needs absolute paths without '..'")
    elif UNMOUNTABLE.search(f"{volume.source}{volume.target}"):
        parts.leave(written, "a recipe has no comma, colon or quote in a path")
    elif why := why_refused(volume.source, read_only=volume.read_only):
        parts.leave(written, f"no container may have it: {why}")
    else:
        # A model is only read there: it is fetched before, to model.path.
        read_only = volume.read_only or model.startswith(f"{target}/")
        mount = {"source": volume.source, "target": volume.target, "read_only": read_only}
        parts.mounts.append(mount)
        if not read_only:
            parts.ask_leave(volume.source)
        parts.carry(written, "mounts" if read_only == volume.read_only else "mounts, read-only")


def _holds_a_cache(target: str, launch: Launch) -> bool:
    """Return whether a folder of the container has a cache, by its name or by a variable."""
    known = (*CACHES, *table("launch_reasons", "importers")["hub_caches"])
    named = [launch.env[name] for name in known if name in launch.env]
    known_by_name = bool(_CACHE_FOLDER.search(target))
    return known_by_name or any(f"{path}/".startswith(f"{target}/") for path in named)


def _model_folder(parts: Parts, volume: Volume, written: str) -> None:
    if not volume.source.startswith("/"):
        parts.leave(written, "the model is downloaded to /srv/models, or where model.path says")
    elif why := not is_for_models(volume.source) and why_refused(volume.source, read_only=False):
        parts.leave(written, f"no model may be put there: {why}")
    elif UNMOUNTABLE.search(volume.source):
        parts.leave(written, "a recipe has no comma, colon or quote in a path")
    else:
        parts.carry(written, "model.path")


def _patch(parts: Parts, volume: Volume, written: str, launch: Launch) -> None:
    folder = folder_on_node(launch.volumes, launch.model).rstrip("/")
    within = volume.source.startswith(f"{folder}/")
    file = volume.source[len(folder) + 1 :] if within else volume.source.rpartition("/")[2]
    patch: dict[str, Any] = {"file": file}
    if not within:
        patch["origin"] = "laptop"
        parts.to_do.append(f"put {file} next to the recipe: {written}")
    patch |= {"target": volume.target, "why": "as the source has it; say what it repairs"}
    parts.patches.append(patch)
    parts.carry(written, "patches")


def _option(parts: Parts, option: str, value: object) -> None:
    data = table("launch_reasons", "importers")
    what = f"--{option}" if value is True else f"--{option} {value}"
    if data["same"].get(option) == value:
        parts.carry(what, "always so")
        return
    parts.leave(what, data["reasons"].get(option, data["otherwise"]))
