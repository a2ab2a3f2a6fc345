"""Reads a command line that starts vLLM or SGLang: `docker run`, `vllm serve`, a Python module.

Nothing is run, looked up or expanded: `$VAR` and `~` stay as they are written.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from spark_cluster.config import engines
from spark_cluster.config.launch import Launch, Volume
from spark_cluster.config.recipe_schema import EngineValue, inferred_kind
from spark_cluster.config.yamlfile import described, nearest, shown
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers import vllm_flags
from spark_cluster.importers.calls import (
    SERVERS,
    Found,
    ProgramCall,
    begin,
    commands_of,
    find_all,
    identify,
    no_launch,
    several,
)
from spark_cluster.importers.expansion import Variables, Word
from spark_cluster.importers.importer import Choice, Given, Left, Source, no_choice
from spark_cluster.importers.servers import same_server
from spark_cluster.models import naming
from spark_cluster.models.naming import table

Option = str | bool | list[str]

_COLON = re.compile(r":(?![^{]*\})")
"""A colon that is not inside `${...}`."""


@dataclass(slots=True)
class DockerRun:
    """The arguments of a `docker run`.

    Attributes:
        image: as written.
        words: after the image.
        options: all others than these, without dashes.
        env: variables with a value.
        passed: variables that are taken from the shell (`-e HF_TOKEN`).
        volumes: from `-v` and from `--mount type=bind`.
    """

    image: Word
    words: list[Word] = field(default_factory=list)
    options: dict[str, Option] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    volumes: list[Volume] = field(default_factory=list)


def docker_run(words: list[Word]) -> DockerRun:
    """Parse what follows `docker run`.

    Raises:
        UsageError: an option that Docker does not have, that lacks its value or is given twice, or
            no image; with the line.
    """
    reader = _OptionReader(words)
    while reader.words and reader.words[0].text.startswith("-"):
        word = reader.words.popleft()
        if word.text == "--":
            break
        (reader.long if word.text.startswith("--") else reader.short)(word)
    if not reader.words:
        last = words[-1] if words else Word("", 1)
        raise last.wrong("docker run: no image", "add the image's name")
    container = DockerRun(reader.words.popleft(), list(reader.words), reader.options)
    restart = reader.options.get("restart", "no")
    if reader.options.get("rm") and restart != "no":
        raise reader.first["rm"].wrong(
            f"--rm contradicts --restart {restart}; Docker refuses both together",
            "keep one of the two",
        )
    for option, take in (("env", _variable), ("volume", _volume), ("mount", _mount)):
        for word, value in reader.taken[option]:
            take(container, word, value)
    return container


class _OptionReader:
    """Takes words from the front of `words`.

    Attributes:
        taken: option to its words and values, of those that are no plain options.
        first: option to the word that gave it first.
    """

    def __init__(self, words: list[Word]) -> None:
        self.words = deque(words)
        self.table = table("docker_options", "importers")
        self.options: dict[str, Option] = {}
        self.taken: dict[str, list[tuple[Word, Word]]] = {"env": [], "volume": [], "mount": []}
        self.first: dict[str, Word] = {}

    def long(self, word: Word) -> None:
        """`--rm`, `--gpus all`, `--gpus=all`."""
        name, equals, value = word.text[2:].partition("=")
        name = self.table["aliases"].get(name, name)
        if name in self.table["bare"]:
            self._set(name, value.lower() not in ("false", "0") if equals else True, word)
        elif name in self.table["valued"] or name in self.table["several"]:
            self._take(name, Word(value, word.line) if equals else None, word)
        else:
            known = [one for kind in ("bare", "valued", "several") for one in self.table[kind]]
            near = nearest(name, known)
            raise word.wrong(
                f"docker run has no option '--{name}'",
                f"did you mean '--{near}'?" if near else "flags of vLLM follow the image",
            )

    def short(self, word: Word) -> None:
        """`-d`, `-it`, `-p 80:80`, `-p80:80`."""
        for at, letter in enumerate(word.text[1:], 2):
            name = self.table["short"].get(f"-{letter}")
            if name is None:
                raise word.wrong(
                    f"docker run has no option '-{letter}'; found '{word.text}'",
                    "long options begin with two dashes; flags of vLLM follow the image",
                )
            if name not in self.table["bare"]:
                rest = word.text[at:].removeprefix("=")
                self._take(name, Word(rest, word.line) if rest else None, word)
                return
            self._set(name, True, word)

    def _take(self, name: str, value: Word | None, word: Word) -> None:
        if value is None:
            if not self.words:
                raise word.wrong(f"{word.text} has no value")
            value = self.words.popleft()
        if name in self.taken:
            self.taken[name].append((word, value))
        elif name in self.table["several"]:
            _add(self.options, name, value.text)
        else:
            self._set(name, value.text, word)

    def _set(self, name: str, value: str | bool, word: Word) -> None:
        first = self.first.setdefault(name, word)
        if self.options.setdefault(name, value) != value:
            raise word.wrong(
                f"--{name} is given twice, as '{self.options[name]}' on line {first.line} "
                f"and as '{value}'",
                "keep the one you mean",
            )


def _variable(container: DockerRun, option: Word, word: Word) -> None:
    name, equals, value = word.text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
        # It may be a secret: it is not repeated.
        raise word.wrong(f"{option.text.partition('=')[0]} is not followed by NAME=value")
    if container.env.get(name, value) != value:
        raise word.wrong(f"the variable {name} is given twice with different values")
    if equals:
        container.env[name] = value
    elif name not in container.passed:
        container.passed.append(name)


def _volume(container: DockerRun, _: Word, word: Word) -> None:
    source, *rest = _COLON.split(word.text)
    if not rest:
        _add(container.options, "volume", word.text)
    elif not source or not rest[0] or len(rest) > 2:
        raise word.wrong(f"found the volume '{word.text}', expected SOURCE:TARGET[:OPTIONS]")
    else:
        read_only = "ro" in rest[1].split(",") if len(rest) > 1 else False
        container.volumes.append(Volume(source, rest[0], read_only))


def _mount(container: DockerRun, _: Word, word: Word) -> None:
    fields = dict(part.partition("=")[::2] for part in word.text.split(","))
    source = fields.get("source") or fields.get("src") or ""
    target = fields.get("target") or fields.get("destination") or fields.get("dst") or ""
    if fields.get("type", "volume") == "tmpfs" or not source:
        _add(container.options, "mount", word.text)
        return
    if not target:
        raise word.wrong(f"--mount {word.text} has no target")
    given = [fields[key].lower() for key in ("readonly", "ro") if key in fields]
    read_only = any(value not in ("false", "0") for value in given)
    container.volumes.append(Volume(source, target, read_only))


def _add(options: dict[str, Option], name: str, value: str) -> None:
    before = options.get(name)
    if before is None:
        options[name] = value
    else:
        options[name] = [*(before if isinstance(before, list) else [str(before)]), value]


MAX_CHARACTERS = 100_000
"""No command line comes near this; a log or a binary file does."""

YAML_SUFFIXES = (".yaml", ".yml", ".json")
"""Of files that are no command line, whatever is in them."""

SCRIPT_SUFFIXES = (".sh", ".bash")

_COMMAND = re.compile(r"(?m)(^|[\s/\"'])(docker|podman|vllm|python3?)\s")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")

_PROGRAMS = {
    "serve": "vllm serve",
    "server": "the API server",
    "sglang": "python -m sglang.launch_server",
}
"""Kind of a program to its name in messages."""


class CommandFile:
    """The importer of files with a command line."""

    name = "a command line that starts vLLM"

    def recognises(self, given: Given) -> bool:
        if given.path.suffix.lower() in YAML_SUFFIXES or not (given.error or is_script(given)):
            return False
        text = given.text
        if not text or len(text.encode()) > MAX_CHARACTERS or _CONTROL.search(text):
            return False
        return is_script(given) or bool(_COMMAND.search(text))

    def read(self, given: Given, choice: Choice) -> Source:
        no_choice(choice)
        variables = Variables({**given.variables})
        try:
            source = read(given.text, given.path.name, variables, script=is_script(given))
            source.path = given.path
            source.kind = "start script" if is_script(given) else source.kind
            return source
        except UsageError as error:
            line = re.match(r"line (\d+)", error.where)
            where = f"{shown(given.path)}:{line[1]}" if line else shown(given.path)
            raise InvalidFile(error.message, where=where, hint=error.hint) from None


def is_script(given: Given) -> bool:
    """Return whether a file is a script rather than a text with a command."""
    return given.path.suffix in SCRIPT_SUFFIXES or given.text.startswith("#!")


def parse(text: str) -> Launch:
    """The launch that a command line describes.

    Raises:
        UsageError: it is no launch of vLLM, names no model, has an unclosed quote, or flags that
            are repeated or contradict each other; with the line.
    """
    return read(text).launch


def read(
    text: str,
    origin: str = "a pasted command line",
    variables: Variables | None = None,
    *,
    script: bool = False,
) -> Source:
    """Return what a command line says: the launch, with notes, and what stands around it.

    Launches of one server on several nodes are one launch.

    Args:
        text: what was pasted, or a script.
        origin: the file, or what stands for it.
        variables: that are known before.
        script: the text is a script, which sets variables for itself and does other things, too.

    Raises:
        UsageError: as `parse`.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"a command line of {len(text):,} characters; expected one launch of vLLM")
    if "\0" in text:
        raise UsageError("this is not text; expected a command line")
    variables = Variables() if variables is None else variables
    found = find_all(text, variables=variables, script=script)
    source = _one(found, origin, variables)
    source.notes[:0] = found.notes
    source.left_out += _around(found, script=script)
    if variables.defaulted:
        names = ", ".join(name for name in variables.defaulted if not name.isdigit())
        source.notes.append(f"read with the default that stands with them: {names}")
    if repository := _repository(source.launch.model, variables):
        source.repository = repository
        launch = source.launch
        source.launch = replace(
            launch,
            base=launch.base or naming.base_of(repository, ()),
            quantization=launch.quantization
            or naming.quantization_of(
                str(launch.args.get("quantization", "")), repository, None, ()
            ),
        )
    return source


_NAMES_A_MODEL = re.compile(r"(?:\w+_)?(?:MODEL|REPO)(?:_ID|_REPO|_NAME)?")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def _repository(model: str, variables: Variables) -> str:
    """The repository of a folder with a model, where one variable names one."""
    named = {
        value
        for name, value in variables.values.items()
        if value and _NAMES_A_MODEL.fullmatch(name) and _REPOSITORY.fullmatch(value)
    }
    return named.pop() if naming.is_path(model) and len(named) == 1 else ""


def _one(found: Found, origin: str, variables: Variables) -> Source:
    """The one server that the launches of a text start.

    Raises:
        UsageError: there is none, or several that differ in more than the node.
    """
    sources, containers, errors = list[Source](), list[DockerRun](), list[UsageError]()
    certain = any(program.certain and program.kind != "docker" for program in found.programs)
    for program in found.programs:
        if program.kind != "docker" and (program.certain or not certain):
            image = Word(program.image, program.line)
            sources.append(_source(program, DockerRun(image), origin))
        elif program.kind == "docker":
            try:
                container = docker_run(program.words)
                containers.append(container)
                sources.append(_contained(program, container, origin, variables))
            except UsageError as error:
                errors.append(error)
    if not sources:
        raise errors[0] if errors else no_launch(found.others)
    server = same_server(sources)
    if server is None:
        raise several([program.line for program in found.programs][: len(sources)])
    staying = [one for one in containers if _stays(one)]
    if staying and not server.launch.image:
        put_into(server, staying[0])
    return server


def read_docker(words: list[Word], origin: str, variables: Variables) -> Source:
    """Return what the arguments of a `docker run` say.

    Raises:
        UsageError: it starts no engine, or an argument is wrong.
    """
    program = ProgramCall("docker", words)
    return _contained(program, docker_run(words), origin, variables)


def _contained(
    program: ProgramCall, container: DockerRun, origin: str, variables: Variables
) -> Source:
    """The server that a container starts."""
    inner = _inside(container, variables)
    inner.env = {**container.env, **inner.env}
    for name in container.passed:
        value = program.env.get(name, variables.values.get(name))
        if value is not None:
            inner.env[name] = value
        elif name not in inner.env:
            inner.left_out.append(f"-e {name}: its value is in the shell that runs it")
    inner.notes[:0] = program.notes
    inner.left_out[:0] = program.left_out
    return _source(inner, container, origin)


def containers_of(given: Given) -> list[DockerRun]:
    """Return the containers that a script starts and that are there for later commands."""
    containers = []
    with contextlib.suppress(UsageError):
        found = find_all(given.text, variables=Variables({**given.variables}), script=True)
        containers = [docker_run(one.words) for one in found.programs if one.kind == "docker"]
    return [one for one in containers if _stays(one)]


def put_into(source: Source, container: DockerRun) -> None:
    """Put a server into the container in which it is started later."""
    launch = in_image(source.launch, container.image.text)
    source.launch = replace(
        launch,
        env={**container.env, **launch.env},
        volumes=tuple(container.volumes),
        docker=container.options,
        vllm=launch.vllm if launch.engine == engines.DEFAULT else None,
    )
    source.notes.append(f"it runs in the container of {container.image.text}")


def _stays(container: DockerRun) -> bool:
    """Return whether a container is there for later commands: it has a name and goes on."""
    return "name" in container.options or bool(container.options.get("detach"))


_CHANGING = re.compile(
    r"(?:\S*/)?(?:pip3?|uv|sed|cp|mv|ln|patch|git|apt(?:-get)?|python3?|bash|sh|source|\.|cat|tee)\b"
)
"""Commands before the server, in its container, by which what it runs may be changed."""

_CHANGED = "what it changes is missing: the server may not start, or answer wrongly"
_LISTED = 6
_READS = ("source", ".")
_UNKNOWN = "flags and variables of that file are missing; give the command with --command"


def _around(found: Found, *, script: bool) -> list[Left]:
    """The commands that are no launch; those of a long script by their names."""
    why = "it is not part of the launch"
    texts = [begin(words) for words in found.others if words]
    texts = [*commands_of(found)] if script else texts
    read = [words[1].text for words in found.others if len(words) > 1 and words[0].text in _READS]
    elsewhere = [
        Left(f"settings of {name}", "only the shell knows which file it is", _UNKNOWN)
        for name in read
        if "$" in name.partition("/")[0] and "/" not in name
    ]
    if not script or len(texts) <= _LISTED:
        return [*(Left(f"command `{text}`", why) for text in texts), *elsewhere]
    names = dict.fromkeys(text.split()[0].rpartition("/")[2] for text in texts)
    told = [name for name in names if re.fullmatch(r"\w[\w.-]*", name)]
    more = f" and {len(told) - 12} others" if len(told) > 12 else ""
    listed = Left(f"commands of the script: {', '.join(told[:12])}{more}", why)
    return [*([listed] if told else []), *elsewhere]


def in_image(launch: Launch, reference: str) -> Launch:
    """Return the launch in a container image, with the version of vLLM that its tag names."""
    image, _, digest = reference.partition("@")
    return replace(launch, image=image, digest=digest, vllm=naming.version_in(image))


def _inside(container: DockerRun, variables: Variables) -> ProgramCall:
    """The program that the container runs."""
    words, line = container.words, container.image.line
    entrypoint = container.options.get("entrypoint")
    if isinstance(entrypoint, str) and entrypoint:
        words = [Word(entrypoint, line), *words]
        if entrypoint.rpartition("/")[2] == "vllm" and words[1:2] and words[1].text != "serve":
            words.insert(1, Word("serve", line))
    inner = Variables({**variables.values, **container.env}, variables.defaulted)
    program = identify(words, inner)
    serves = container.image.text.partition(":")[0].partition("@")[0]
    by_itself = serves.removeprefix("docker.io/") in table("images")["serves_by_itself"]
    if program.kind == "other" and words[:1] and words[0].text == "serve":
        return ProgramCall("serve", words[1:])  # after the entry point `vllm`
    if program.kind in SERVERS:
        if by_itself and not entrypoint and words[:1] and words[0].text == "vllm":
            program.notes.append(
                f"the image {serves} runs `vllm serve` by itself: the command would be given twice"
            )
        return program
    if words and not entrypoint and (by_itself or words[0].text.startswith("-")):
        # The image's own entry point: `vllm serve`, or the Python module before 0.11.
        return ProgramCall("serve", words)
    if not words:
        raise container.image.wrong(
            f"nothing follows the image {container.image.text}: no model to serve",
            "expected `--model MODEL` or `vllm serve MODEL`",
        )
    raise words[0].wrong(
        f"the container does not start vLLM: found '{begin(words)}'",
        "expected `vllm serve MODEL ...` or `--model MODEL ...` after the image",
    )


def _source(program: ProgramCall, container: DockerRun, origin: str) -> Source:
    engine = "sglang" if program.kind == "sglang" else engines.DEFAULT
    flags = vllm_flags.read(program.words, _PROGRAMS[program.kind], engine)
    model = _model(flags, program)
    args = engines.dialect(engine).common(flags.args)
    image, _, digest = container.image.text.partition("@")
    hints = _hints(model, args, container.volumes)
    base = naming.base_of(model, hints)
    tp = _size(args, "tensor-parallel-size")
    # A Spark has one GPU, so each rank has a machine of its own.
    ranks = tp * _size(args, "pipeline-parallel-size") * _size(args, "data-parallel-size")
    launch = Launch(
        model=model,
        base=base,
        quantization=naming.quantization_of(str(args.get("quantization", "")), model, base, hints),
        image=image,
        digest=digest,
        vllm=naming.version_in(image) if engine == engines.DEFAULT else None,
        args=args,
        env=program.env,
        volumes=tuple(container.volumes),
        docker=container.options,
        drafter=_drafter(args),
        tp=tp,
        nodes=max(ranks, _size(args, "nnodes")),
        # vLLM joins nodes by itself then (vllm/config/parallel.py).
        executor="mp" if _size(args, "nnodes") > 1 and engine == engines.DEFAULT else None,
        origin="command",
        engine=engine,
        kind=inferred_kind(args, base or model),
    )
    why = "it is not part of the launch"
    left = [Left(text, why) for text in program.left_out]
    for text in dict.fromkeys(program.changes):
        effect = _CHANGED if _CHANGING.match(text) else ""
        left.append(Left(f"command `{text}`", why, effect))
    return Source(launch, origin=origin, left_out=left, notes=[*program.notes, *flags.notes])


def _model(flags: vllm_flags.Flags, program: ProgramCall) -> str:
    """The model, from `--model` or as the first word; the flag is taken out.

    Raises:
        UsageError: there is none, or more than one.
    """
    named = flags.args.pop("model", None) or flags.args.pop("model-path", None)
    first = next(iter(program.words), Word("", 1))
    given = [*([Word(str(named), first.line)] if named is not None else []), *flags.positional]
    for word in [one for one in given[1:] if one.text.startswith("$")]:
        given.remove(word)
        program.left_out.append(f"{word.text}: only the shell knows which flags it has")
    if not given:
        raise first.wrong("no model to serve", "add `--model MODEL` or its name")
    if given[1:]:
        raise given[1].wrong(
            f"found '{given[1].text}', which belongs to no flag",
            "the model is given already; a flag before it may take no value, or the value needs "
            "quotes",
        )
    if not given[0].text:
        raise first.wrong("the model's name is empty")
    return given[0].text


def _hints(model: str, args: dict[str, EngineValue], volumes: list[Volume]) -> tuple[str, ...]:
    """Return other hints at which model a folder holds: the folder on the node, the served name."""
    if not naming.is_path(model):
        return ()
    folder = model.rstrip("/")
    hints = [volume.source for volume in volumes if volume.target.rstrip("/") == folder]
    served = args.get("served-model-name")
    names = served if isinstance(served, list) else [served] if isinstance(served, str) else []
    return (*hints, *map(str, names))


def _drafter(args: dict[str, EngineValue]) -> str | None:
    config: Any = args.get("speculative-config")
    if isinstance(config, dict) and isinstance(config.get("model"), str):
        return str(config["model"])
    for flag in ("spec-model", "speculative-model", "speculative-draft-model-path"):
        if flag in args:
            return str(args[flag])
    return None


def _size(args: dict[str, EngineValue], flag: str) -> int:
    value = args.get(flag, 1)
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise UsageError(f"--{flag} {described(value)}: expected 1 or more")
        return value
    if isinstance(value, str) and "$" in value:
        return 1
    raise UsageError(f"--{flag} {described(value)}: expected a whole number")
