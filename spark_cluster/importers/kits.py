"""Reads a kit: a folder with a compose file or start scripts, `.env` and a patched image.

Which file says what is served is decided by its place and name; files for rank 0 and rank 1 of one
server are one launch. Only files of the folder are read, and none of them is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from spark_cluster.config.recipe import is_for_models
from spark_cluster.config.yamlfile import did_you_mean, shown
from spark_cluster.errors import InvalidFile, SparkClusterError, UsageError
from spark_cluster.importers import commandline, importer
from spark_cluster.importers.calls import LAUNCH, call_of
from spark_cluster.importers.compose import take_dockerfile
from spark_cluster.importers.docker_run import DockerRun
from spark_cluster.importers.expansion import Variables, expand, read_env
from spark_cluster.importers.importer import SCRIPT, Choice, Given, Left, Source
from spark_cluster.importers.kitfiles import DEEPEST, EXAMPLE, PRESET, KitFolder
from spark_cluster.importers.servers import SeveralServers, chosen, leads_to, likely_of, several
from spark_cluster.importers.shell import split
from spark_cluster.importers.vllm_recipes import spark_commands
from spark_cluster.models.naming import HUB_CACHE, is_path
from spark_cluster.node.output import counted

Read = Callable[[Given, Choice], Source]
"""What reads one file of a kit."""

MOST_SOURCED = 20
"""Files that a script reads variables from; those beyond are not seen."""

MOST_SAID = 8
"""Files of variables that a note names."""

# Endings of texts with commands in blocks of code.
DOCUMENTS = (".md", ".markdown")

# Likelihoods of the kit's README, and of documents in its folders; those beside it are between.
_TEXTS, _DEEP = 6, 8

_COMPOSE = re.compile(r"(?:docker-)?compose(?!.*(?:override|sidecar))[\w.-]*\.ya?ml")
_STARTS = re.compile(r"(?:start|run|serve|launch|up)\b[\w.-]*")
_BEGINS = re.compile(r"(?m)^[ \t]*(?:docker run|vllm serve|python3? -m)\b")
_DOTENV = re.compile(r"(?<![\w}])\.env\b")
_SOURCED = re.compile(
    r"(?m)(?:(?:^|[;&{'\"]|\s)(?:source|\.)[ \t]+[\"']?|^(?:EnvironmentFile=|-?include[ \t]+)-?)"
    r"([\w./${}:-]+)"
)
_BUILT_AS = re.compile(r"docker build\b[^\n|;&]{0,300}?(?:-t|--tag)[ =]+[\"']?([\w./:-]+)")
_FOLDER = re.compile(r"^\$(?:\w+|\{\w+\})/")


def read(folder: Path, choice: Choice, read_one: Read, origin: str = "") -> Source:
    """Return what a kit serves.

    Args:
        folder: of the kit.
        choice: its variant is a file of the kit, which may be one of variables, or a service of its
            compose file.
        read_one: reads a file of any kind.
        origin: where the folder comes from, if it is not a folder of this machine.

    Raises:
        InvalidFile: no file of it starts an engine, or several start different servers.
        UsageError: there is no such file or service.
    """
    kit = KitFolder(folder.absolute())
    tiers = _tiers(kit)
    named = kit.path(choice.variant) if choice.variant != "default" else None
    if named is not None and PRESET.fullmatch(named.name):
        kit, choice = replace(kit, preset=named), replace(choice, variant="default")
    elif named is not None:
        place = kit.root / named.relative_to(kit.root.resolve())
        tiers, choice = [[place]], replace(choice, variant="default")
    failed: dict[str, SparkClusterError] = {}
    found: dict[str, Source] = {}
    for likely, paths in enumerate(tiers):
        if likely == _DEEP and failed:  # what a document below says of other things is not meant
            break
        found = _servers(kit, paths, choice, read_one, failed if likely < _TEXTS else {})
        if found:
            break
    if not found:
        raise _nothing(kit, failed, choice)
    if likely > _TEXTS and named is None:
        raise several("only documents have a command", found, shown(kit.root))
    source = found[chosen(found, likely_of(kit, found), shown(kit.root))]
    _finish(kit, source, tiers)
    where = (source.path or kit.root).relative_to(kit.root)
    source.origin = f"{origin or f'the kit {kit.root.resolve().name}'}: {where}"
    return source


def _servers(
    kit: KitFolder,
    paths: Iterable[Path],
    choice: Choice,
    read_one: Read,
    failed: dict[str, SparkClusterError],
) -> dict[str, Source]:
    """The servers that files of the same likelihood start, by file; why others start none is put
    into `failed`."""
    found: dict[str, Source] = {}
    for path in paths:
        name = str(path.relative_to(kit.root))
        try:
            found[name] = read_one(_given(kit, path), choice)
        except SeveralServers:
            raise
        except SparkClusterError as error:
            failed[name] = error
    return found


class ReadmeFile:
    """The importer of a README: of the commands in its blocks of code that for the most nodes."""

    name = "a README with a command that starts vLLM"

    def recognises(self, given: Given) -> bool:
        return _is_document(given.path, given.text)

    def read(self, given: Given, choice: Choice) -> Source:
        importer.no_choice(choice)
        found = spark_commands(given.text, anywhere=True)
        if not found:
            raise InvalidFile(
                "no block of code in it starts vLLM, SGLang or a container",
                where=shown(given.path),
                hint="give the command as --command 'vllm serve ...'",
            )
        source, name = max(found, key=lambda one: one.launch.nodes), given.path.name
        others = f"; it has {counted(len(found) - 1, 'other command')}" if found[1:] else ""
        source.notes.append(f"this is a command of {name}: {source.title}{others}")
        source.path, source.origin, source.title = given.path, name, ""
        return source


def _is_document(path: Path, text: str) -> bool:
    """Return whether a file has its commands in blocks of code, rather than as plain text."""
    plain = "```" not in text and "~~~" not in text and _BEGINS.search(text)
    return path.suffix.lower() in DOCUMENTS and bool(text) and not plain


def _tiers(kit: KitFolder) -> list[list[Path]]:
    """The files that may say what is served, the likelier ones first."""
    tiers: list[list[Path]] = [[] for _ in range(_DEEP + 1)]
    left = [importer.MOST_TEXT, importer.MOST_TEXT]  # documents have room of their own
    for path in kit.files:
        below, text = path.parent != kit.root, kit.text(path)
        if _COMPOSE.fullmatch(path.name):
            likely = 3 if below else 0
        elif (path.suffix == ".service" or SCRIPT.fullmatch(path.name)) and LAUNCH.search(text):
            likely = 4 if below else 1 if _STARTS.fullmatch(path.stem) else 2
        elif path.suffix in commandline.YAML_SUFFIXES[:2]:
            likely = 5
        elif _is_document(path, text):
            likely = _DEEP if below else _TEXTS + (path.stem.lower() != "readme")
        else:
            continue
        if len(tiers[likely]) < importer.MOST_TRIED and len(text) <= left[likely >= _TEXTS]:
            tiers[likely].append(path)
            left[likely >= _TEXTS] -= len(text)
    return tiers


def alone(path: Path) -> Given:
    """Return a file that is imported alone: a script or compose file with the variables of files
    of its folder."""
    reads = SCRIPT.fullmatch(path.name) or _COMPOSE.fullmatch(path.name)
    return _given(KitFolder(path.absolute().parent), path.absolute()) if reads else Given(path)


def _given(kit: KitFolder, path: Path) -> Given:
    """A file of a kit, with the variables of the files that it reads."""
    compose, text = path.suffix in commandline.YAML_SUFFIXES, kit.text(path)
    names = {} if compose else _sourced(text)
    if compose or _DOTENV.search(text):
        names.setdefault(".env", False)
    files = _files_of_variables(kit, path, names)
    notes = _presets_said(kit, files) if names else []
    if compose:
        return Given(path, kit.root, env=next(reversed(files), None), notes=notes)
    variables = Variables({"PWD": "."})
    instead = [file for file, why in files.items() if why and kit.preset is None]
    for file in instead:
        _collect(kit.text(file), variables)
    called, caller = _called(kit, path, DEEPEST)
    if called:
        variables.values |= called
        notes.append(f"{path.name} is read as {caller} calls it: {', '.join(called)}")
    for file in [one for one in files if one not in instead]:
        _collect(kit.text(file), variables)
    values = {name: value for name, value in variables.values.items() if value is not None}
    exported = {**variables.exported, **dict.fromkeys(called)}
    return Given(path, kit.root, values, notes=notes, exported=exported)


def _called(kit: KitFolder, path: Path, most: int) -> tuple[dict[str, str], str]:
    """Return the variables with which a document of the kit calls a script first, or the script to
    which its README leads; and the name of the caller."""
    texts = [("its guide", code) for code in kit.commands if path.name in code]
    naming = [at for at, text in kit.scripts.items() if path.name in text and kit.root / at != path]
    led = leads_to(kit, kit.readme, naming)
    texts += [(led, kit.scripts[led])] if led and most else []
    for name, text in texts:
        with suppress(UsageError):  # no shell text
            kit.room.take(len(text))
            given = _called(kit, kit.root / led, most - 1)[0] if name == led else {}
            found = call_of(text, path.name, Variables({"PWD": ".", **given}, room=kit.room))
            if found is not None:
                return {**given, **found}, name
    return {}, ""


def _sourced(text: str) -> dict[str, bool]:
    """The files that a script reads, and whether its user can name others: `. presets/$1.env`."""
    words = [_FOLDER.sub("", word) for word in dict.fromkeys(_SOURCED.findall(text))]
    found, own = dict[str, bool](), Variables({"PWD": "."})
    with suppress(UsageError):  # too long, or no shell text
        if any("$" in word for word in words):
            split(text, 1, own)
        for word in words[:MOST_SOURCED]:
            name = expand(word, own)
            is_named = name.endswith(".env") or name.startswith("$")
            if name.isprintable():
                found.setdefault(name, "$" in word and is_named)
    return found


def _files_of_variables(kit: KitFolder, path: Path, names: Mapping[str, bool]) -> dict[Path, str]:
    """The files of these names, and why it is that one where it could be another."""
    files: dict[Path, str] = {}
    example = kit.example(path) if names else None
    for name, by_user in names.items():
        file, why = kit.path(name, path.parent) or kit.named(name), ""
        if by_user or (file is None and name.endswith(".env")):
            if kit.preset is not None:
                continue
            why = (
                f"{path.name} reads a file that its user names"
                if by_user
                else f"there is no {name}"
            )
            file = file or example
        if file is not None and file != path.resolve():
            files.setdefault(file, f"{why}: " if why else "")
    if kit.preset is not None:
        files[kit.preset] = "as --variant says: "
    return files


def _presets_said(kit: KitFolder, files: Mapping[Path, str]) -> list[str]:
    """Notes on the variables that were taken, and on how to take others of the kit."""
    own = any(file.name == ".env" for file in files)
    others = [
        name
        for one, name in kit.presets.items()
        if one not in files and not (own and EXAMPLE.fullmatch(one.name))
    ]
    how = f"; --variant takes those of another file: {', '.join(others[:MOST_SAID])}"
    how = how if others and kit.preset is None else ""
    notes = [
        f"{why}its variables are those of {kit.presets.get(file) or file.name}{how}"
        for file, why in files.items()
        if why or (how and file.name == ".env")
    ]
    return notes or ([f"no file of variables was read{how}"] if how and not files else [])


def _collect(text: str, variables: Variables) -> None:
    """Take the variables that a file sets for a script."""
    try:
        split(text, 1, variables)
    except UsageError:  # it is no shell text
        read_env(text, variables)


def _finish(kit: KitFolder, source: Source, tiers: list[list[Path]]) -> None:
    """Add the kit's container, its Dockerfile and the files that it puts over the image's."""
    path = source.path or kit.root
    if not source.launch.image:
        _take_container(kit, source, tiers)
    launch = source.launch
    built = [one for one in kit.files if one.name.startswith("Dockerfile")]
    said = any(left.what.startswith("build of") for left in source.left_out)
    local = launch.image and "/" not in launch.image and not launch.dockerfile
    tags = _BUILT_AS.findall("\n".join([kit.readme, *kit.scripts.values()]))
    if local and not said and len(built) == 1 and (launch.image in tags or not tags):
        take_dockerfile(source, kit.text(built[0]), built[0].name, {})
    _name_by_scripts(kit, source)
    _carry_files(kit, source, path.parent)
    _leave_model_folder(source)
    others = [str(one.relative_to(kit.root)) for tier in tiers[:2] for one in tier if one != path]
    if others and not source.offers:
        source.notes.append(f"other files of this kit start something, too: {', '.join(others)}")


def _carry_files(kit: KitFolder, source: Source, folder: Path) -> None:
    """Take the kit's files that are mounted over the image's; name its other ones."""
    volumes = []
    for volume in source.launch.volumes:
        within = not volume.source.startswith(("/", "~", "$"))
        file = kit.path(volume.source, folder) or kit.path(volume.source) if within else None
        if file is not None and importer.PACKAGE.search(volume.target):
            source.files[volume.target] = kit.content(file)
        elif file is not None or (within and kit.has_folder(volume.source, folder)):
            written = f"-v {volume.source}:{volume.target}"
            source.left_out.append(Left(written, _OF_THE_KIT, "these files are missing there"))
            continue
        volumes.append(volume)
    source.launch = replace(source.launch, volumes=tuple(volumes))


def _leave_model_folder(source: Source) -> None:
    """Leave out the folder in which the kit's author has the model; the name of it may tell it."""
    launch = source.launch
    folder = importer.folder_on_node(launch.volumes, launch.model)
    name = folder.rstrip("/").rpartition("/")[2]
    cached = HUB_CACHE.search(launch.model) or HUB_CACHE.search(folder)
    if not is_path(launch.model) or is_for_models(folder) or "$" in name or cached:
        return
    above = [one for one in launch.volumes if f"{launch.model}/".startswith(f"{one.target}/")]
    why = "a folder of the kit's author; the model is downloaded to /srv/models, or to model.path"
    source.left_out += [Left(f"-v {one.source}:{one.target}", why) for one in above]
    source.launch = replace(
        launch,
        model=f"./{name}",
        volumes=tuple(one for one in launch.volumes if one not in above),
    )


_OF_THE_KIT = "files of the kit: copy them to a folder of the nodes, and write that under mounts"


def _name_by_scripts(kit: KitFolder, source: Source) -> None:
    """Give a model that is a folder the repository that a script of the kit names."""
    if not is_path(source.launch.model):
        return
    for name, text in kit.scripts.items():
        if source.repository:
            return
        variables = Variables({**_given(kit, kit.root / name).variables})
        _collect(text, variables)
        commandline.name_model(source, variables)


def _take_container(kit: KitFolder, source: Source, tiers: list[list[Path]]) -> None:
    """Put the server into the container that another script of the kit starts."""
    found: dict[str, DockerRun] = {}
    for path in chain.from_iterable(tiers):
        if SCRIPT.fullmatch(path.name):
            for container in commandline.containers_of(_given(kit, path)):
                found.setdefault(container.image.text, container)
    if len(found) == 1:
        commandline.put_into(source, next(iter(found.values())))


def _nothing(kit: KitFolder, failed: dict[str, SparkClusterError], choice: Choice) -> InvalidFile:
    if choice.variant != "default":
        hint = did_you_mean(choice.variant, failed, "files")
        return InvalidFile(f"no file or service {choice.variant}", where=shown(kit.root), hint=hint)
    if not failed:
        return InvalidFile(
            "no file of this folder starts vLLM or SGLang: there is no compose file, and no "
            "script, unit, Makefile or README with `vllm serve`, `docker run` or `sglang`",
            where=shown(kit.root),
            hint="give the command as --command 'vllm serve ...'",
        )
    reasons = [f"{name}: {error.message}" for name, error in [*failed.items()][:5]]
    more = [f"and {len(failed) - 5} more"] if len(failed) > 5 else []
    return InvalidFile(
        "\n  ".join(["no file of this folder starts a server that can be read:", *reasons, *more]),
        where=shown(kit.root),
        hint="give the command as --command 'vllm serve ...', or one file of it",
    )
