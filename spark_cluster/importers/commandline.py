"""Reads a command line that starts vLLM or SGLang: `docker run`, `vllm serve`, a Python module.

Nothing is run or looked up: `$VAR` and `~` stay as they are written, unless the text sets them.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_cluster.config import engines
from spark_cluster.config.launch import Launch, Volume
from spark_cluster.config.recipe_schema import EngineValue, inferred_kind
from spark_cluster.config.yamlfile import described, shown
from spark_cluster.config.yamlfile import parse as parse_yaml
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers import calls, importer, vllm_flags
from spark_cluster.importers.docker_run import DockerRun, docker_run
from spark_cluster.importers.expansion import ValueRoom, Variables, Word, read_env
from spark_cluster.importers.importer import MAKEFILE, SCRIPT, Choice, Given, Left, Source
from spark_cluster.importers.kitfiles import KitFolder
from spark_cluster.importers.servers import same_server
from spark_cluster.models import naming
from spark_cluster.models.naming import table

MAX_CHARACTERS = 100_000
"""No command line comes near this; a log or a binary file does."""

YAML_SUFFIXES = (".yaml", ".yml", ".json")
"""Of files that are no command line, whatever is in them."""

_COMMAND = re.compile(r"(?m)(^|[\s/\"'])(docker|podman|vllm|python3?)\s")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
# Of a unit of systemd: what it starts, with continued lines, and variables for it.
_UNIT = re.compile(r"(?m)^ExecStart=[-:@+!]* ?(\S(?:.*\\\n)*.*)")
_VARIABLES = re.compile(r"(?m)^Environment=(.*)")

_WITHIN = ("mtp", "dspark")
"""Drafters whose weights are part of the model's own, and endings of their former names, such as
`deepseek_mtp` (vllm/config/speculative.py)."""

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
        text = given.text
        if is_script(given):
            return bool(text)
        if given.path.suffix.lower() in YAML_SUFFIXES or not given.error:
            return False
        if len(text.encode()) > MAX_CHARACTERS or _CONTROL.search(text):
            return False
        return bool(_COMMAND.search(text))

    def read(self, given: Given, choice: Choice) -> Source:
        importer.no_choice(choice)
        passed, script = {**given.exported}, kit_of(given).script
        variables = Variables({**given.variables}, script=script, exported=passed)
        try:
            text, unit = given.text, None if is_script(given) else _UNIT.search(given.text)
            if MAKEFILE.fullmatch(given.path.name):
                text = _of_makefile(text)
            if unit:
                start = " ".join(("env", *_VARIABLES.findall(text), unit[1]))
                text = "\n" * text.count("\n", 0, unit.start()) + start
            source = read(text, given.path.name, variables, script=is_script(given))
            source.path = given.path
            source.kind = "start script" if is_script(given) else source.kind
            return source
        except UsageError as error:
            line = re.match(r"line (\d+)", error.where)
            where = f"{shown(given.path)}:{line[1]}" if line else shown(given.path)
            raise InvalidFile(error.message, where=where, hint=error.hint) from None


_SET = re.compile(r"(?:export[ \t]+)?(\w+)[ \t]*(?:\?|::?|(\+))?=[ \t]*([^#\n]*).*")
_SET_ON_LINES = re.compile(r"(?m)^(?:export[ \t]+)?\w+[ \t]*[?:+]{0,2}=(?:.*\\\n)+.*")
_IN_MAKE = re.compile(r"\$\{(\w+)\}")
_OF_MAKE = re.compile(r"\$\((\w+)\)|\{\{ ?(\w+) ?\}\}")


_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""")


def _of_makefile(text: str) -> str:
    """Return the commands of a Makefile or justfile as a script, on the same lines."""
    lines, text, quoted = [""], _OF_MAKE.sub(r"${\1\2}", text), dict[str, str]()
    text = _SET_ON_LINES.sub(lambda m: m[0].replace("\\\n", " ") + "\n" * m[0].count("\n"), text)
    room = ValueRoom()

    def filled(found: re.Match[str]) -> str:
        value = quoted.get(found[1], found[0])
        room.take(len(value))
        return value

    for written in text.split("\n"):
        line = _IN_MAKE.sub(filled, written) if quoted else written
        if lines[-1].endswith("\\"):
            lines.append(line.replace("$$", "$"))
        elif found := _SET.fullmatch(line):
            lines.append(_assigned(found, quoted))
        else:
            rule = line[:1] not in ("\t", " ")
            lines.append("" if rule else line.lstrip("\t @-+").replace("$$", "$"))
    return "\n".join(lines[1:])


def _assigned(found: re.Match[str], quoted: dict[str, str]) -> str:
    """Return an assignment as the shell has it; what has quotes, which are read where its name
    stands, is put into `quoted`."""
    name, value = found[1], found[3].strip(" \t\\")
    if pair := _QUOTED.fullmatch(value):
        value = pair[1] or (pair[2] or "").replace('\\"', '"')
    if found[2]:
        value = f"{quoted.get(name, f'${{{name}:-}}')} {value}"
    if not (pair and pair[1]) and ("'" in value or '"' in value):
        quoted[name] = value
        return ""
    quoted.pop(name, None)
    value = value.replace('"', '\\"')
    return f'{name}="{value}"'


def kit_of(given: Given) -> KitFolder:
    """Return the kit that a file belongs to: that of its folder by default."""
    return KitFolder((given.root or given.path.parent).absolute())


def is_script(given: Given) -> bool:
    """Return whether a file is a script rather than a text with a command."""
    return bool(SCRIPT.fullmatch(given.path.name)) or given.text.startswith("#!")


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
    if _CONTROL.search(text):
        raise UsageError("this is not text; expected a command line")
    variables = Variables() if variables is None else variables
    found = calls.find_all(text, variables=variables, script=script)
    if script and not found.programs:
        raise UsageError("no command in it starts vLLM, SGLang or a container", hint=calls.EXPECTED)
    source = _one(found, origin, variables)
    source.notes[:0] = found.notes
    source.left_out += _around(found, script=script)
    source.notes += variables.note()
    name_model(source, variables)
    return source


_NAMES_A_MODEL = re.compile(
    r"(?!.*(?:GIT|DRAFT|ASSISTANT|EMBED|IMAGE))(?:\w+_)?(?:MODEL|REPO)(?:_ID|_REPO|_NAME)?"
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def name_model(source: Source, variables: Variables) -> None:
    """Give a model that is a folder its repository, where one variable names one."""
    launch = source.launch
    folder = importer.folder_on_node(launch.volumes, launch.model).lower()
    named = {
        value
        for name, value in variables.values.items()
        if value and _NAMES_A_MODEL.fullmatch(name) and _REPOSITORY.fullmatch(value)
        if f"/{value.rpartition('/')[2].lower()}-" not in folder  # it is another build
    }
    if naming.is_path(launch.model) and len(named) == 1:
        source.repository = named.pop()
        source.notes.append(f"the model is {source.repository}, as a variable of a script says")
        flag = str(launch.args.get("quantization", ""))
        base = naming.base_of(source.repository) or launch.base
        source.launch = replace(
            launch,
            base=base,
            quantization=naming.quantization_of(flag, source.repository, base)
            or launch.quantization,
        )


def _one(found: calls.Launches, origin: str, variables: Variables) -> Source:
    """The one server that the launches of a text start.

    Raises:
        UsageError: there is none, or several that differ in more than the node.
    """
    sources, containers, errors = list[Source](), list[DockerRun](), list[UsageError]()
    certain = any(program.certain and program.kind != "docker" for program in found.programs)
    for program in found.programs:
        try:
            if program.kind == "docker":
                container = docker_run(program.words)
                containers.append(container)
                sources.append(_contained(program, container, origin, variables))
            elif program.certain or not certain:
                image = Word(program.image, program.line)
                sources.append(_source(program, DockerRun(image), origin, variables))
        except UsageError as error:
            errors.append(error)
    if not sources:
        raise errors[-1] if errors else calls.no_launch(found.others)
    server = same_server(sources)
    if server is None:
        raise calls.several([program.line for program in found.programs][: len(sources)])
    staying = [one for one in containers if _stays(one)]
    if staying and not server.launch.image:
        put_into(server, staying[0])
    return server


def read_docker(words: list[Word], origin: str, variables: Variables) -> Source:
    """Return what the arguments of a `docker run` say.

    Raises:
        UsageError: it starts no engine, or an argument is wrong.
    """
    program = calls.ProgramCall("docker", words)
    return _contained(program, docker_run(words), origin, variables)


def _contained(
    program: calls.ProgramCall, container: DockerRun, origin: str, variables: Variables
) -> Source:
    """The server that a container starts."""
    _take_env_files(container, variables)
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
    inner.left_out += container.unread
    return _source(inner, container, origin, variables)


def _take_env_files(container: DockerRun, variables: Variables) -> None:
    """Take the variables of the files of the kit that `--env-file` names."""
    given = container.options.get("env-file")
    names = given if isinstance(given, list) else [given] if isinstance(given, str) else []
    for name in names:
        if text := variables.script(name):
            found = read_env(text, Variables({}, room=variables.room))
            container.env = {**found, **container.env}
            container.options.pop("env-file", None)


def containers_of(given: Given) -> list[DockerRun]:
    """Return the containers that a script starts and that are there for later commands."""
    containers = []
    with contextlib.suppress(UsageError):
        variables = Variables({**given.variables}, script=kit_of(given).script)
        found = calls.find_all(given.text, variables=variables, script=True)
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


def _around(found: calls.Launches, *, script: bool) -> list[Left]:
    """The commands that are no launch; those of a long script by their names."""
    why = "it is not part of the launch"
    texts = [calls.begin(words) for words in found.others if words]
    texts = [*calls.commands_of(found)] if script else texts
    read = [words[1].text for words in found.others if len(words) > 1 and words[0].text in _READS]
    elsewhere = [
        Left(f"settings of {name}", "only the shell knows which file it is", _UNKNOWN)
        for name in read
        if "$" in name.partition("/")[0] and "/" not in name
    ]
    if not script or len(texts) <= _LISTED:
        return [*(Left(f"command `{text}`", why) for text in texts), *elsewhere]
    names = dict.fromkeys(text.split()[0].rpartition("/")[2] for text in texts)
    known = [name for name in names if re.fullmatch(r"\w[\w.-]*", name)]
    more = f" and {len(known) - 12} others" if len(known) > 12 else ""
    listed = Left(f"commands of the script: {', '.join(known[:12])}{more}", why)
    return [*([listed] if known else []), *elsewhere]


def in_image(launch: Launch, reference: str) -> Launch:
    """Return the launch in a container image, with the version of vLLM that its tag names."""
    image, _, digest = reference.partition("@")
    return replace(launch, image=image, digest=digest, vllm=naming.version_in(image))


def _inside(container: DockerRun, variables: Variables) -> calls.ProgramCall:
    """The program that the container runs."""
    words, line = container.words, container.image.line
    entrypoint = container.options.get("entrypoint")
    if isinstance(entrypoint, str) and entrypoint:
        words = [Word(entrypoint, line), *words]
        if entrypoint.rpartition("/")[2] == "vllm" and words[1:2] and words[1].text != "serve":
            words.insert(1, Word("serve", line))
    inner = Variables(
        {**variables.values, **container.env},
        variables.defaulted,
        room=variables.room,
        depth=variables.depth,
        script=lambda path: variables.script(importer.folder_on_node(container.volumes, path)),
        contained=True,
    )
    program = calls.identify(words, inner)
    serves = container.image.text.partition(":")[0].partition("@")[0]
    by_itself = serves.removeprefix("docker.io/") in table("images")["serves_by_itself"]
    if program.kind == "other" and words[:1] and words[0].text == "serve":
        return calls.ProgramCall("serve", words[1:])  # after the entry point `vllm`
    if program.kind in calls.SERVERS:
        if by_itself and not entrypoint and words[:1] and words[0].text == "vllm":
            program.given_twice = True
            program.notes.append(
                f"the image {serves} runs `vllm serve` by itself: the command would be given twice"
            )
        return program
    return _by_entrypoint(container, words, by_itself=by_itself)


def _by_entrypoint(
    container: DockerRun, words: list[Word], *, by_itself: bool
) -> calls.ProgramCall:
    """The program that an entry point starts of which only the words are known.

    Raises:
        UsageError: they do not look like those of a server.
    """
    entrypoint = container.options.get("entrypoint")
    given = words[1:] if entrypoint else words
    flags = any(word.text.startswith("--") for word in given)
    if flags and _REPOSITORY.fullmatch(given[0].text):
        program = calls.ProgramCall("serve", given)
        if entrypoint:
            text = f"{words[0].text}: not known here; its words are read as those of `vllm serve`"
            program.notes.append(text)
        return program
    names_one = any(word.text.partition("=")[0] in ("--model", "--model-path") for word in words)
    if words and not entrypoint and (by_itself or (names_one and words[0].text.startswith("-"))):
        # The image's own entry point: `vllm serve`, or the Python module before 0.11.
        return calls.ProgramCall("serve", words)
    if not words:
        raise container.image.wrong(
            f"nothing follows the image {container.image.text}: no model to serve",
            "expected `--model MODEL` or `vllm serve MODEL`",
        )
    raise words[0].wrong(
        f"the container does not start vLLM: found '{calls.begin(words)}'",
        "expected `vllm serve MODEL ...` or `--model MODEL ...` after the image",
    )


def _source(
    program: calls.ProgramCall, container: DockerRun, origin: str, variables: Variables
) -> Source:
    engine = "sglang" if program.kind == "sglang" else engines.DEFAULT
    flags = _flags(program, engine, variables)
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
        drafter=_drafter(args, model),
        tp=tp,
        nodes=max(ranks, _size(args, "nnodes")),
        # vLLM joins nodes by itself then (vllm/config/parallel.py).
        executor="mp" if _size(args, "nnodes") > 1 and engine == engines.DEFAULT else None,
        origin="command",
        given_twice=program.given_twice,
        engine=engine,
        kind=inferred_kind(args, base or model),
    )
    why = "it is not part of the launch"
    left = [Left(text, why) for text in program.left_out]
    for text in dict.fromkeys(program.changes):
        effect = _CHANGED if _CHANGING.match(text) else ""
        left.append(Left(f"command `{text}`", why, effect))
    return Source(launch, origin=origin, left_out=left, notes=[*program.notes, *flags.notes])


def _flags(program: calls.ProgramCall, engine: str, variables: Variables) -> vllm_flags.Flags:
    """The flags of a command, and those of a file of the kit that `--config FILE` names, of which
    those of the command count (vllm/utils/argparse_utils.py)."""
    texts = [word.text for word in program.words]
    at = texts.index("--config") if "--config" in texts[:-1] else -1
    text = variables.script(texts[at + 1]) if at >= 0 else ""
    if text:
        path = Path(texts[at + 1])
        variables.room.take(8 * len(text))  # YAML takes longer to read than a shell text
        data, line = parse_yaml(text, path, lenient=True).data, program.words[at].line
        given = [Word(one, line) for one in vllm_flags.of_file(data)]
        program.words[at : at + 2] = []
        program.words[:0] = given
        program.appended = True
        program.notes.append(f"its flags are those of {path.name}, too")
    title, last = _PROGRAMS[program.kind], program.appended
    return vllm_flags.read(program.words, title, engine, last_counts=last)


def _model(flags: vllm_flags.Flags, program: calls.ProgramCall) -> str:
    """The model, from `--model` or as the first word; the flag is taken out.

    Raises:
        UsageError: there is none, or more than one.
    """
    named = flags.args.pop("model", None) or flags.args.pop("model-path", None)
    first = next(iter(program.words), Word("", 1))
    given = [*([Word(str(named), first.line)] if named is not None else []), *flags.positional]
    for word in [one for one in given[1:] if vllm_flags.LATER.match(one.text)]:
        given.remove(word)
        program.left_out.append(f"{word.text}: only the shell knows which flags it has")
    if not given:
        raise first.wrong(
            "no model to serve", "add `--model MODEL`, or import what runs this script"
        )
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


def _drafter(args: dict[str, EngineValue], model: str) -> str | None:
    config: Any = args.get("speculative-config")
    if isinstance(config, dict) and isinstance(config.get("model"), str):
        if config["model"] == model and str(config.get("method")).endswith(_WITHIN):
            del config["model"]  # as vLLM takes it where no model is given
            return None
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
