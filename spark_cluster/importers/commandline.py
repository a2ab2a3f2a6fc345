"""Reads a command line that starts vLLM or SGLang: `docker run`, `vllm serve`, a Python module.

Nothing is run, looked up or expanded: `$VAR` and `~` stay as they are written.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from spark_cluster.config import engines
from spark_cluster.config.launch import Launch, Volume
from spark_cluster.config.model_kind import inferred
from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.config.yamlfile import described, shown
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers import docker, vllm_flags
from spark_cluster.importers.importer import Choice, Given, Left, Source, no_choice
from spark_cluster.importers.programs import SERVERS, Program, begin, find, identify
from spark_cluster.importers.shell import Word
from spark_cluster.models import naming
from spark_cluster.models.tables import table

MAX_CHARACTERS = 100_000
"""No command line comes near this; a log or a binary file does."""

YAML_SUFFIXES = (".yaml", ".yml", ".json")
"""Of files that are no command line, whatever is in them."""

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
        if given.path.suffix.lower() in YAML_SUFFIXES or not given.error:
            return False
        text = given.text
        if len(text.encode()) > MAX_CHARACTERS or _CONTROL.search(text):
            return False
        return bool(_COMMAND.search(text))

    def read(self, given: Given, choice: Choice) -> Source:
        no_choice(choice)
        try:
            return read(given.text, given.path.name)
        except UsageError as error:
            line = re.match(r"line (\d+)", error.where)
            where = f"{shown(given.path)}:{line[1]}" if line else shown(given.path)
            raise InvalidFile(error.message, where=where, hint=error.hint) from None


def parse(text: str) -> Launch:
    """The launch that a command line describes.

    Raises:
        UsageError: it is no launch of vLLM, names no model, has an unclosed quote, or flags that
            are repeated or contradict each other; with the line.
    """
    return read(text).launch


def read(text: str, origin: str = "a pasted command line") -> Source:
    """Return what a command line says: the launch, with notes, and what stands around it.

    Raises:
        UsageError: as `parse`.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"a command line of {len(text):,} characters; expected one launch of vLLM")
    if "\0" in text:
        raise UsageError("this is not text; expected a command line")
    program = find(text)
    if program.kind != "docker":
        return _source(program, docker.Container(Word(program.image, 1)), origin)
    container = docker.read(program.words)
    inner = _inside(container)
    inner.env = {**container.env, **inner.env}
    for name in container.passed:
        if name in program.env:
            inner.env[name] = program.env[name]
        elif name not in inner.env:
            inner.left_out.append(f"-e {name}: its value is in the shell that runs it")
    inner.notes[:0] = program.notes
    inner.left_out[:0] = program.left_out
    return _source(inner, container, origin)


def in_image(launch: Launch, reference: str) -> Launch:
    """Return the launch in a container image, with the version of vLLM that its tag names."""
    image, _, digest = reference.partition("@")
    return replace(launch, image=image, digest=digest, vllm=naming.version_in(image))


def _inside(container: docker.Container) -> Program:
    """The program that the container runs."""
    words, line = container.words, container.image.line
    entrypoint = container.options.get("entrypoint")
    if isinstance(entrypoint, str) and entrypoint:
        words = [Word(entrypoint, line), *words]
        if entrypoint.rpartition("/")[2] == "vllm" and words[1:2] and words[1].text != "serve":
            words.insert(1, Word("serve", line))
    program = identify(words)
    serves = container.image.text.partition(":")[0].partition("@")[0]
    by_itself = serves.removeprefix("docker.io/") in table("images")["serves_by_itself"]
    if program.kind in SERVERS:
        if by_itself and not entrypoint and words[:1] and words[0].text == "vllm":
            program.notes.append(
                f"the image {serves} runs `vllm serve` by itself: the command would be given twice"
            )
        return program
    if words and not entrypoint and (by_itself or words[0].text.startswith("-")):
        # The image's own entry point: `vllm serve`, or the Python module before 0.11.
        return Program("serve", words)
    if not words:
        raise container.image.wrong(
            f"nothing follows the image {container.image.text}: no model to serve",
            "expected `--model MODEL` or `vllm serve MODEL`",
        )
    raise words[0].wrong(
        f"the container does not start vLLM: found '{begin(words)}'",
        "expected `vllm serve MODEL ...` or `--model MODEL ...` after the image",
    )


def _source(program: Program, container: docker.Container, origin: str) -> Source:
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
        origin="command",
        engine=engine,
        kind=inferred(args, base or model),
    )
    left = [Left(text, "it is not part of the launch") for text in program.left_out]
    return Source(launch, origin=origin, left_out=left, notes=[*program.notes, *flags.notes])


def _model(flags: vllm_flags.Flags, program: Program) -> str:
    """The model, from `--model` or as the first word; the flag is taken out.

    Raises:
        UsageError: there is none, or more than one.
    """
    named = flags.args.pop("model", None) or flags.args.pop("model-path", None)
    first = next(iter(program.words), Word("", 1))
    given = [*([Word(str(named), first.line)] if named is not None else []), *flags.positional]
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
