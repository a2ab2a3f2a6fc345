"""Reads a pasted command line that starts vLLM or SGLang: `docker run`, `vllm serve`, a module.

Nothing is run, looked up or expanded: `$VAR` and `~` stay as they are written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_cluster.config import engines
from spark_cluster.config.launch import Launch, Volume
from spark_cluster.config.model_kind import inferred
from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.config.yamlfile import described
from spark_cluster.errors import UsageError
from spark_cluster.importers import docker, vllm_flags
from spark_cluster.importers.programs import SERVERS, Program, begin, find, identify
from spark_cluster.importers.shell import Word
from spark_cluster.models import naming
from spark_cluster.models.tables import table

MAX_CHARACTERS = 100_000
"""No command line comes near this; a log or a binary file does."""


_PROGRAMS = {
    "serve": "vllm serve",
    "server": "the API server",
    "sglang": "python -m sglang.launch_server",
}
"""Kind of a program to its name in messages."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A command line that was read.

    Attributes:
        launch: what it starts.
        notes: what was read with goodwill or guessed.
        left_out: what stands around the launch and is not part of it.
    """

    launch: Launch
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def parse(text: str) -> Launch:
    """The launch that a command line describes.

    Raises:
        UsageError: it is no launch of vLLM, names no model, has an unclosed quote, or flags that
            are repeated or contradict each other; with the line.
    """
    return read(text).launch


def read(text: str) -> Reading:
    """Parse it as `parse` does, with notes on it.

    Raises:
        UsageError: as `parse`.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"a command line of {len(text):,} characters; expected one launch of vLLM")
    if "\0" in text:
        raise UsageError("this is not text; expected a command line")
    program = find(text)
    if program.kind != "docker":
        return _reading(program, None, dict(program.env))
    container = docker.read(program.words)
    inner = _inside(container)
    env = {**container.env, **inner.env}
    for name in container.passed:
        if name in program.env:
            env[name] = program.env[name]
        elif name not in env:
            inner.left_out.append(f"-e {name}: its value is in the shell that runs it")
    inner.notes = [*program.notes, *inner.notes]
    inner.left_out = [*program.left_out, *inner.left_out]
    return _reading(inner, container, env)


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
        raise UsageError(
            f"nothing follows the image {container.image.text}: no model to serve",
            where=f"line {line}",
            hint="expected `--model MODEL` or `vllm serve MODEL`",
        )
    raise UsageError(
        f"the container does not start vLLM: found '{begin(words)}'",
        where=f"line {words[0].line}",
        hint="expected `vllm serve MODEL ...` or `--model MODEL ...` after the image",
    )


def _reading(program: Program, container: docker.Container | None, env: dict[str, str]) -> Reading:
    engine = "sglang" if program.kind == "sglang" else engines.DEFAULT
    flags = vllm_flags.read(list(program.words), _PROGRAMS[program.kind], engine)
    model = _model(flags, program)
    args = engines.dialect(engine).common(flags.args)
    volumes = tuple(container.volumes) if container else ()
    reference = container.image.text if container else program.image
    image, _, digest = reference.partition("@")
    hints = _hints(model, args, volumes)
    base = naming.base_of(model, hints)
    quantization = naming.quantization_of(str(args.get("quantization", "")), model, base, hints)
    tp = _size(args, "tensor-parallel-size")
    launch = Launch(
        model=model,
        base=base,
        quantization=quantization,
        image=image,
        digest=digest,
        vllm=naming.version_in(image) if engine == engines.DEFAULT else None,
        args=args,
        env=env,
        volumes=volumes,
        docker=dict(container.options) if container else {},
        drafter=_drafter(args),
        tp=tp,
        nodes=_nodes(args, tp),
        origin="command",
        engine=engine,
        kind=inferred(args, base or model),
    )
    return Reading(launch, [*program.notes, *flags.notes], program.left_out)


def _model(flags: vllm_flags.Flags, program: Program) -> str:
    """The model, from `--model` or as the first word; the flag is taken out.

    Raises:
        UsageError: there is none, or more than one.
    """
    named = flags.args.pop("model", None) or flags.args.pop("model-path", None)
    positional = flags.positional
    line = program.words[0].line if program.words else 1
    if named is None and not positional:
        raise UsageError(
            "no model to serve", where=f"line {line}", hint="add `--model MODEL` or its name"
        )
    extra = positional if named is not None else positional[1:]
    if extra:
        raise UsageError(
            f"found '{extra[0].text}', which belongs to no flag",
            where=f"line {extra[0].line}",
            hint="the model is given already; a flag before it may take no value, or the value "
            "needs quotes",
        )
    model = str(named) if named is not None else positional[0].text
    if not model:
        raise UsageError("the model's name is empty", where=f"line {line}")
    return model


def _hints(
    model: str, args: dict[str, EngineValue], volumes: tuple[Volume, ...]
) -> tuple[str, ...]:
    """Return other hints at which model a folder holds: the folder on the node, the served name."""
    if not naming.is_path(model):
        return ()
    hints = []
    for volume in volumes:
        target = volume.target.rstrip("/")
        if model.rstrip("/") == target:
            hints.append(volume.source)
    served = args.get("served-model-name")
    hints += [str(name) for name in served] if isinstance(served, list) else []
    hints += [served] if isinstance(served, str) else []
    return tuple(hints)


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


def _nodes(args: dict[str, EngineValue], tp: int) -> int:
    """Return the number of machines: a Spark has one GPU, so each rank has a machine of its own."""
    ranks = tp * _size(args, "pipeline-parallel-size") * _size(args, "data-parallel-size")
    return max(ranks, _size(args, "nnodes"))
