"""Reads compose files: each service becomes the `docker run` that would start it.

`${A}`, `${A:-b}`, `.env`, `env_file`, `include` and `extends` are followed inside of the kit's
folder; what leads out of it is refused, with its line. No image is built and nothing is started.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spark_cluster.config.image_build import BUILT
from spark_cluster.config.yamlfile import Key, Problem, Sourced, described, load, parse
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers import commandline
from spark_cluster.importers.expansion import Variables, Word, expand, read_env
from spark_cluster.importers.importer import BUILD_IT, Choice, Given, Left, Source, shortened
from spark_cluster.importers.kitfiles import KitFolder
from spark_cluster.importers.servers import chosen
from spark_cluster.importers.templated import as_word, wrong_types
from spark_cluster.models.naming import table

DEEPEST = 5
"""Files that extend one another."""

MOST_SERVICES = 200

MOST_FILES = 20
"""Files that a compose file names: those that it includes, extends or takes variables from."""

_OVERRIDING = ("command", "entrypoint", "image", "build")
"""Fields of which a service has its own or that of the one that it extends, never both."""


@dataclass
class ComposeFile:
    """A compose file, with the files that it may name.

    Attributes:
        source: its data.
        kit: the folder beyond which nothing is read.
        variables: that its values may name.
        env: its `.env`, or the file that stands for it.
        depth: files that extend or include this one.
        notes: what was read with goodwill.
        included: services of other files, as these have them.
        named: what was read of the files that it names, each once.
    """

    source: Sourced
    kit: KitFolder
    variables: Variables
    env: Path | None = None
    depth: int = 0
    notes: list[str] = field(default_factory=list)
    included: dict[str, dict[str, Any]] = field(default_factory=dict)
    named: dict[Path, Sourced | None] = field(default_factory=dict)

    @property
    def services(self) -> Mapping[str, Any]:
        found = self.source.data.get("services")
        if not isinstance(found, dict) or len(found) > MOST_SERVICES:
            raise self.wrong(("services",), f"found {described(found)}, expected its services")
        return {**self.included, **found}

    def wrong(self, key: Key, message: str, hint: str = "") -> InvalidFile:
        return self.source.invalid([Problem(key, message)], hint=hint)

    def opened(self, key: Key, name: str) -> ComposeFile:
        """Return another compose file of the kit.

        Raises:
            InvalidFile: it lies outside of the kit, is missing, files name each other, or there
                are too many.
        """
        if self.depth >= DEEPEST:
            raise self.wrong(key, f"more than {DEEPEST} files extend one another")
        path = self._inside(key, name)
        source = self.named.get(path)
        if source is None:
            source = self.named[path] = load(path, "compose file", lenient=True)
        return replace(self, source=source, depth=self.depth + 1, notes=[], included={})

    def _inside(self, key: Key, name: str) -> Path:
        path = self.kit.path(name, self.source.path.parent)
        if path is None:
            raise self.wrong(
                key,
                f"{name} is not a file of this folder, and nothing outside of it is read",
                "copy what it has into the kit, or import the folder that holds both",
            )
        if path not in self.named and len(self.named) >= MOST_FILES:
            raise self.wrong(key, f"more than {MOST_FILES} files are named")
        self.named.setdefault(path)
        return path

    def service(self, name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return a service with what it extends, and with the variables that are known."""
        key: Key = ("services", name)
        if name in self.included and name not in self.source.data["services"]:
            return dict(self.included[name])
        own = self._checked(key, self.services.get(name))
        data = {one: self._expanded(value) for one, value in own.items() if one != "extends"}
        data["environment"] = {**self._env_files(key, data), **_mapping(data.get("environment"))}
        base = own.get("extends")
        if not base:
            return data
        base = {"service": base} if isinstance(base, str) else base
        if not isinstance(base.get("service"), str):
            raise self.wrong((*key, "extends"), "expected the name of a service")
        place = f"{base.get('file', '')}:{base['service']}"
        if place in seen:
            raise self.wrong((*key, "extends"), f"{base['service']} extends itself")
        other = self.opened((*key, "extends"), str(base["file"])) if base.get("file") else self
        return _merged(other.service(base["service"], (*seen, place)), data)

    def _checked(self, key: Key, service: Any) -> dict[str, Any]:
        """Return a service, or raise InvalidFile for a field of a type that it does not have."""
        if not isinstance(service, dict):
            raise self.wrong(key, f"found {described(service)}, expected a service")
        for name, message in wrong_types(service, table("compose_fields", "importers")["types"]):
            raise self.wrong((*key, name), message)
        return service

    def _expanded(self, value: Any) -> Any:
        if isinstance(value, str):
            return expand(value, self.variables)
        if isinstance(value, list):
            return [self._expanded(one) for one in value]
        if isinstance(value, dict):
            return {name: self._expanded(one) for name, one in value.items()}
        return value

    def _env_files(self, key: Key, data: Mapping[str, Any]) -> dict[str, str]:
        given = data.get("env_file") or []
        known, room = self.variables, self.variables.room
        values = Variables(dict(known.values), known.defaulted, doubled=True, room=room)
        found: dict[str, str] = {}
        names = [
            str(one.get("path", "") if isinstance(one, dict) else one)
            for one in (given if isinstance(given, list) else [given])
        ]
        for name in dict.fromkeys(names):
            example = self.env is not None and self.env.name != ".env"
            other = self.env if example and Path(name).name == ".env" else None
            if not other and ("$" in name or self.kit.is_missing(name, self.source.path.parent)):
                self.notes.append(f"env_file {name} is not in this folder: its variables are left")
                continue
            text = self.kit.text(other or self._inside((*key, "env_file"), name))
            room.take(len(text))
            found |= read_env(text, values)
        return found


def _mapping(given: Any) -> dict[str, str | None]:
    """Return variables given as a mapping, or as a list of `NAME=value`; None for a bare name."""
    if isinstance(given, list):
        pairs = [str(one).partition("=") for one in given]
        return {name: value if equals else None for name, equals, value in pairs}
    if isinstance(given, dict):
        return {name: None if value is None else as_word(value) for name, value in given.items()}
    return {}


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service laid over the one that it extends (source: compose-specification)."""
    merged = dict(base)
    for name, value in own.items():
        before = merged.get(name)
        if isinstance(before, dict) and isinstance(value, dict) and name not in _OVERRIDING:
            merged[name] = {**before, **value}
        elif isinstance(before, list) and isinstance(value, list) and name not in _OVERRIDING:
            merged[name] = [*before, *value]
        else:
            merged[name] = value
    return merged


class ComposeImporter:
    """The importer of compose files."""

    name = "a compose file"

    def recognises(self, given: Given) -> bool:
        return isinstance(given.data.get("services"), dict)

    def read(self, given: Given, choice: Choice) -> Source:
        """As `Importer.read`; a variant is the name of a service."""
        if isinstance(given.loaded, InvalidFile):
            raise given.loaded
        if choice.features:
            raise UsageError("--feature is for model files of vllm-project/recipes")
        kit = commandline.kit_of(given)
        variables = Variables({**given.variables}, doubled=True, script=kit.script)
        if env := given.env or kit.path(".env", given.path.parent):
            read_env(kit.text(env), variables)
        file = ComposeFile(_without_comments(given.loaded, given.text), kit, variables, env)
        file.included = _included(file)
        return _server(file, choice.variant)


_FOLDED = re.compile(r"(?m)^( *)(?:- |[\w-]+: *)>[-+]?[ \t]*\n((?:\1 +\S.*\n|[ \t]*\n)+)")
_COMMENT = re.compile(r"(?m)^[ \t]*#.*\n")


def _without_comments(source: Sourced, text: str) -> Sourced:
    """Leave out the comments in folded texts, which would hide all flags behind them: folded, a
    command is one line."""
    found = [block for block in _FOLDED.finditer(text) if _COMMENT.search(block[2])]
    if not found:
        return source
    lines = ", ".join(str(text.count("\n", 0, block.start()) + 1) for block in found)
    source.notes.append(
        f"line {lines}: a shell takes everything behind the '#' in this command for a comment, as "
        "'>' makes one line of it; read without its comments"
    )
    plain = _FOLDED.sub(lambda block: _COMMENT.sub("", block[0]), text)
    return replace(source, data=parse(plain, source.path, lenient=True).data)


def _included(file: ComposeFile) -> dict[str, Any]:
    """Return the services of the files that a compose file includes."""
    names: dict[str, int] = {}
    given = file.source.data.get("include") or []
    for number, one in enumerate(given if isinstance(given, list) else [given]):
        paths = one.get("path", []) if isinstance(one, dict) else one
        for path in paths if isinstance(paths, list) else [paths]:
            names.setdefault(str(path), number)
    found: dict[str, Any] = {}
    for name, number in names.items():
        other = file.opened(("include", number), name)
        found |= {service: other.service(service) for service in other.services}
    return found


def _server(file: ComposeFile, variant: str) -> Source:
    """The one server that the services start.

    Raises:
        InvalidFile: none does.
        SeveralServers: several do, and they differ.
        UsageError: there is no such service.
    """
    named = variant != "default"
    if named and variant not in file.services:
        raise UsageError(
            f"there is no service '{variant}'", hint=f"services: {', '.join(file.services)}"
        )
    sources: dict[str, Source] = {}
    refused: dict[str, UsageError] = {}
    for name in [variant] if named else file.services:
        try:
            sources[name] = _read(file, name)
        except UsageError as error:
            refused[name] = error
    if not sources:
        raise _no_server(file, refused)
    chose = chosen(sources, (), file.source.where(("services",)))
    server = sources[chose]
    server.left_out += [
        Left(f"services.{name}", f"it does not start an engine: {shortened(error.message)}")
        for name, error in refused.items()
    ]
    server.left_out += [
        Left(f"services.{name}", "another rank of the same server")
        for name in sources
        if name != chose and not server.offers
    ]
    server.notes[:0] = [*file.source.notes, *file.notes]
    return server


def _no_server(file: ComposeFile, refused: Mapping[str, UsageError]) -> InvalidFile:
    reasons = "; ".join(f"{name}: {shortened(error.message)}" for name, error in refused.items())
    return file.wrong(
        ("services",),
        f"no service starts vLLM or SGLang ({reasons or 'there are none'})",
        "give the command as --command 'vllm serve ...'",
    )


def _read(file: ComposeFile, name: str) -> Source:
    """Return the server that a service starts.

    Raises:
        UsageError: it starts none.
        InvalidFile: a field is wrong, with its line.
    """
    data = file.service(name)
    words, left = _words(file, name, data)
    known = file.variables
    inner = Variables({}, known.defaulted, room=known.room, script=known.script)
    source = commandline.read_docker(words, file.source.path.name, inner)
    source.kind = "compose file"
    source.path = file.source.path
    source.left_out += left
    source.notes += file.variables.note()
    _built(file, name, data, source)
    return source


def _words(file: ComposeFile, name: str, data: Mapping[str, Any]) -> tuple[list[Word], list[Left]]:
    """The arguments of the `docker run` that starts a service, and its fields that have none."""
    fields = table("compose_fields", "importers")
    line = file.source.origin(("services", name)).line
    options: list[str] = []
    left: list[Left] = []
    for key, value in data.items():
        if option := fields["options"].get(key):
            for one in value if isinstance(value, list) else [value]:
                if one is True or _text(one):
                    options.append(f"--{option}" if one is True else f"--{option}={_text(one)}")
        elif key not in fields["read"] and not key.startswith("x-"):
            why = fields["reasons"].get(key, fields["otherwise"])
            left.append(Left(f"services.{name}.{key}", why))
    for limit, value in (data.get("ulimits") or {}).items():
        both = ":".join(map(as_word, value.values())) if isinstance(value, dict) else as_word(value)
        options.append(f"--ulimit={limit}={both}")
    for variable, value in _mapping(data.get("environment")).items():
        options.append(f"--env={variable}" if value is None else f"--env={variable}={value}")
    for volume in data.get("volumes") or []:
        text = _volume(file, volume)
        if text.startswith(":"):
            left.append(Left(f"-v {text}", "the variable in front of it has no value here"))
        else:
            options.append(f"--volume={text}")
    entry = _command(file, ("services", name, "entrypoint"), data.get("entrypoint"))
    command = _command(file, ("services", name, "command"), data.get("command"))
    if not entry and (not command or command[0].startswith("-")):
        entry = _entrypoint(file, name, data)
    if entry:
        options.append(f"--entrypoint={entry[0]}")
        command = [*entry[1:], *command]
    image = str(data.get("image") or f"{name}:built")
    at = file.source.origin(("services", name, "command")).line
    return [
        *(Word(option, line) for option in options),
        Word(image, line),
        *(Word(text, at, quoted=" " in text) for text in command),
    ], left


def _text(value: Any) -> str:
    """A value of an option; long forms of ports and devices by what they publish or give."""
    if isinstance(value, dict):
        return as_word(value.get("published") or value.get("source") or value.get("driver") or "")
    return as_word(value)


def _volume(file: ComposeFile, volume: Any) -> str:
    """A volume in the short form; a named one that is a folder of the node, by that folder."""
    if isinstance(volume, dict):
        mode = ":ro" if volume.get("read_only") else ""
        text = f"{volume.get('source', '')}:{volume.get('target', '')}{mode}".lstrip(":")
    else:
        text = str(volume)
    source, _, rest = text.partition(":")
    named = file.source.data.get("volumes")
    declared = named.get(source) if isinstance(named, dict) else None
    options = declared.get("driver_opts") if isinstance(declared, dict) else None
    device = options.get("device") if isinstance(options, dict) else None
    if isinstance(device, str) and "bind" in str(options):
        return f"{expand(device, file.variables)}:{rest}"
    return text


def _command(file: ComposeFile, key: Key, given: Any) -> list[str]:
    """The words of a command, which compose splits as a shell does and gives to no shell."""
    if isinstance(given, list):
        return [as_word(one) for one in given]
    try:
        return shlex.split(str(given or ""))
    except ValueError as error:
        raise file.wrong(key, f"a quote is never closed ({error})") from None


_ARGUMENT = re.compile(r"[ \t]*ARG[ \t]+(\w+)(?:=(\S*))?[ \t]*", re.IGNORECASE)
_CONTEXT = re.compile(
    r"(?im)^[ \t]*(?:COPY|ADD)[ \t]+(?![ \t]|.*--from=|(?:--\S+[ \t]+)*https?://)(.*)$"
)


_ENTRYPOINT = re.compile(r'(?im)^[ \t]*ENTRYPOINT[ \t]+\[[ \t]*"([^"]+)"[ \t]*\]')


def _entrypoint(file: ComposeFile, name: str, data: Mapping[str, Any]) -> list[str]:
    """The script of the kit that its image runs by itself, as the Dockerfile says; else none."""
    others = [one for one in file.kit.files if one.name.startswith("Dockerfile")]
    text = _dockerfile(file, name, data)[0] or (file.kit.text(others[0]) if others[:1] else "")
    found = _ENTRYPOINT.search(text)
    if not found:
        return []
    lines = (line.split() for line in text.splitlines())
    copied = (w[-2] for w in lines if w[2:] and w[0].upper() == "COPY" and w[-1] == found[1])
    script = next(copied, found[1])
    return [f"/{script}"] if file.kit.script(script) else []


def _dockerfile(file: ComposeFile, name: str, data: Mapping[str, Any]) -> tuple[str, str]:
    """The Dockerfile by which a service's image is built, and its name; empty without one.

    Raises:
        InvalidFile: it is not in the kit.
    """
    build = data.get("build") or {}
    build = {"context": build} if isinstance(build, str) else build
    text = build.get("dockerfile_inline")
    where = "dockerfile_inline"
    if build and not isinstance(text, str):
        folder, wanted = str(build.get("context", ".")), str(build.get("dockerfile", "Dockerfile"))
        path = file.kit.path(f"{folder}/{wanted}", file.source.path.parent)
        if path is None:
            raise file.wrong(
                ("services", name, "build"),
                f"its image is built in {folder} by {wanted}, which is not in this folder, and "
                "nothing outside of it is read",
                "name an image that can be pulled: --image REF",
            )
        text, where = file.kit.text(path), wanted
    return (text if isinstance(text, str) else ""), where


def _built(file: ComposeFile, name: str, data: Mapping[str, Any], source: Source) -> None:
    """Carry over how an image is built, where that needs no file of the kit; else name it."""
    text, where = _dockerfile(file, name, data)
    if text:
        build = data["build"]
        arguments = build.get("args") if isinstance(build, dict) else None
        take_dockerfile(source, text, where, _mapping(arguments))


def take_dockerfile(
    source: Source, text: str, where: str, arguments: Mapping[str, str | None]
) -> None:
    """Make a Dockerfile the build of a source's image, or say why it cannot be.

    Args:
        source: what was read.
        text: the Dockerfile.
        where: its name, for messages.
        arguments: of its ARG lines.
    """
    launch, built = source.launch, f"build of {source.launch.image}"
    if "/" in launch.image and not launch.image.startswith(BUILT):
        source.left_out.append(Left(built, f"the image is pulled; {where} says how it was built"))
    elif copied := _CONTEXT.search(text):
        why = (
            f"{where} copies files of the kit into it ({shortened(copied[1])}), which image.build "
            "cannot; --image REF names an image that can be pulled"
        )
        source.left_out.append(Left(built, why, BUILD_IT))
    else:
        source.launch = replace(launch, dockerfile=_plain(text, arguments))


def _plain(text: str, arguments: Mapping[str, str | None]) -> str:
    """A Dockerfile that begins with FROM: the ARG lines before it are put into it."""
    lines = text.splitlines()
    values: dict[str, str | None] = {}
    start = 0
    for start, line in enumerate(lines):  # noqa: B007  (the first line that is something else)
        found = _ARGUMENT.fullmatch(line)
        if found:
            given = arguments.get(found[1])
            values[found[1]] = found[2] if given is None else given
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    variables = Variables(values)
    made = (_line(line, arguments, variables) for line in lines[start:] if line.strip())
    return "\n".join(made) + "\n"


def _line(line: str, arguments: Mapping[str, str | None], variables: Variables) -> str:
    """A line of a Dockerfile, with what ARG lines before its FROM have set."""
    if re.match(r"(?i)[ \t]*FROM[ \t]", line):
        return expand(line, variables)
    found = _ARGUMENT.fullmatch(line)
    value = arguments.get(found[1]) or variables.values.get(found[1]) if found else None
    return f"ARG {found[1]}={value}" if found and value else line
