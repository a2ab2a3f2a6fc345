"""The search for the launch of vLLM among the commands of a pasted text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_cluster.errors import UsageError
from spark_cluster.importers.shell import Command, Word, split

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SERVER = "vllm.entrypoints.openai.api_server"
_MAIN = "vllm.entrypoints.cli.main"
_SGLANG = "sglang.launch_server"

_WRAPPERS: dict[str, tuple[str, ...]] = {
    "sudo": ("-u", "-g", "-C", "-p"),
    "env": ("-u", "-C", "-S"),
    "nohup": (),
    "time": (),
    "exec": (),
    "command": (),
    "setsid": (),
    "nice": ("-n",),
    "ionice": ("-c", "-n"),
    "taskset": ("-c",),
    "stdbuf": ("-i", "-o", "-e"),
    "timeout": ("-s", "-k"),
    "numactl": (),
    "$": (),
    "%": (),
}
"""Programs that start another one, and those of their options that take a word."""

_TELLING = ("nice", "ionice", "taskset", "timeout", "numactl")
"""Those that change how the server runs, so that it is said when they are passed over."""

_OPERANDS = {"timeout": 1}
"""Words of their own before the program that they start."""

SERVERS = ("serve", "server", "sglang")
"""Kinds of programs that serve a model."""

EXPECTED = (
    "expected `docker run ... IMAGE ...`, `vllm serve MODEL ...`, "
    f"`python -m {_SERVER} --model MODEL ...` or `python -m {_SGLANG} --model-path MODEL ...`"
)


@dataclass(slots=True)
class Program:
    """A program with the words that follow it.

    Attributes:
        kind: docker, serve (`vllm serve`), server (the Python module), sglang or other.
        words: what follows it; of another program all of them.
        env: assignments before it, and exports before the command.
        image: of the container, when a script of another tool starts it.
        left_out: what stands around it and is not carried over, in words.
        notes: what was read with goodwill.
    """

    kind: str
    words: list[Word]
    env: dict[str, str] = field(default_factory=dict)
    image: str = ""
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find(text: str, line: int = 1) -> Program:
    """The one launch of vLLM in a text.

    Raises:
        UsageError: a quote is not closed, or there is no launch, or more than one.
    """
    commands, notes = split(text, line)
    exported: dict[str, str] = {}
    found: list[tuple[Program, Command]] = []
    others: list[Command] = []
    for command in commands:
        program = identify(command.words)
        if program.kind == "export":
            exported |= program.env
        elif program.kind == "other":
            others.append(command)
        else:
            found.append((program, command))
    if len(found) > 1:
        lines = " and ".join(f"line {command.words[0].line}" for _, command in found)
        raise UsageError(
            f"there are {len(found)} launches of vLLM, on {lines}",
            where=lines.split(" and ", maxsplit=1)[0],
            hint="give them one at a time",
        )
    if not found:
        raise _no_launch(others)
    program, command = found[0]
    program.env = {**exported, **program.env}
    program.notes = [*notes, *program.notes]
    program.left_out += [f"redirection {text}" for text in command.left_out]
    program.left_out += [f"command `{begin(other.words)}`" for other in others if other.words]
    return program


def identify(words: list[Word]) -> Program:
    """Return what a command starts; `export` when it only sets variables, `other` without vLLM."""
    if words and words[0].text in ("export", "set", "declare"):
        return Program("export", [], _assignments(words[1:])[1])
    rest, env, passed = _unwrapped(words)
    if not rest:
        return Program("export" if env else "other", words, env)
    name = rest[0].text.rpartition("/")[2]
    for names, reader in _READERS:
        if names.fullmatch(name):
            program = reader(rest, env, words)
            program.left_out[:0] = passed
            return program
    return Program("other", words, env)


def _vllm(rest: list[Word], env: dict[str, str], words: list[Word]) -> Program:
    if [word.text for word in rest[1:2]] == ["serve"]:
        return Program("serve", rest[2:], env)
    return Program("other", words, env)


def _sglang(rest: list[Word], env: dict[str, str], words: list[Word]) -> Program:
    if [word.text for word in rest[1:2]] == ["serve"]:
        return Program("sglang", rest[2:], env)
    return Program("other", words, env)


def _docker(rest: list[Word], env: dict[str, str], words: list[Word]) -> Program:
    texts = [word.text for word in rest[1:3]]
    if texts == ["container", "run"]:
        return Program("docker", rest[3:], env)
    if texts[:1] == ["run"]:
        return Program("docker", rest[2:], env)
    if texts[:1] == ["exec"]:
        for at in range(2, len(rest)):
            inside = identify(rest[at:])
            if inside.kind in SERVERS:
                plain = [word.text for word in rest[2:at] if "=" not in word.text]
                inside.left_out.append(f"docker exec {' '.join(plain)}")
                inside.env = {**env, **inside.env}
                return inside
    return Program("other", words, env)


def _python(rest: list[Word], env: dict[str, str], words: list[Word]) -> Program:
    at = 1
    while at < len(rest) and rest[at].text.startswith("-") and rest[at].text != "-m":
        at += 1
    module = [word.text for word in rest[at : at + 3]]
    if module[:2] == ["-m", _SERVER]:
        return Program("server", rest[at + 2 :], env)
    if module[:2] == ["-m", _SGLANG]:
        return Program("sglang", rest[at + 2 :], env)
    if module == ["-m", _MAIN, "serve"]:
        return Program("serve", rest[at + 3 :], env)
    return Program("other", words, env)


def _shell(rest: list[Word], env: dict[str, str], words: list[Word]) -> Program:
    """`bash -c "..."`, `bash -lc '...'`."""
    for at, word in enumerate(rest[1:-1], 1):
        if word.text.startswith("-") and not word.text.startswith("--") and "c" in word.text:
            script = rest[at + 1]
            try:
                inside = find(script.text, script.line)
            except UsageError as error:
                if error.message.startswith("no launch of vLLM"):
                    return Program("other", words, env)
                raise
            inside.env = {**env, **inside.env}
            return inside
    return Program("other", words, env)


def _launcher(rest: list[Word], env: dict[str, str], words: list[Word]) -> Program:
    """`launch-cluster.sh -t IMAGE -e A=1 exec vllm serve ...` of spark-vllm-docker."""
    texts = [word.text for word in rest]
    if "exec" not in texts:
        return Program("other", words, env)
    at = texts.index("exec")
    inside = identify(rest[at + 1 :])
    if inside.kind not in SERVERS:
        return Program("other", words, env)
    options = rest[1:at]
    while options:
        option, *options = options
        if option.text == "-t" and options:
            inside.image = options.pop(0).text
        elif option.text == "-e" and options:
            name, equals, value = options.pop(0).text.partition("=")
            env = {**env, **({name: value} if equals else {})}
        else:
            inside.left_out.append(f"{rest[0].text.rpartition('/')[2]} {option.text}")
    inside.env = {**env, **inside.env}
    return inside


_READERS = (
    (re.compile(r"docker|podman|nvidia-docker"), _docker),
    (re.compile(r"python(3(\.\d+)?)?"), _python),
    (re.compile(r"bash|sh|dash|zsh"), _shell),
    (re.compile(r"launch-cluster\.sh"), _launcher),
    (re.compile(r"vllm"), _vllm),
    (re.compile(r"sglang"), _sglang),
)
"""Programs by name, and what reads their words."""


def _unwrapped(words: list[Word]) -> tuple[list[Word], dict[str, str], list[str]]:
    """Return the command without `sudo`, `nohup`, assignments and the like before the program, and
    those of the skipped words that change how it runs.
    """
    env: dict[str, str] = {}
    passed: list[str] = []
    while True:
        words, more = _assignments(words)
        env |= more
        name = words[0].text.rpartition("/")[2] if words else ""
        texts = [word.text for word in words[:2]]
        if name == "uvx":
            words = _after_options(words[1:], ("--from", "--with", "--python", "-p"))
        elif texts == ["uv", "run"]:
            words = _after_options(words[2:], ("--with", "--python", "-p", "--project"))
        elif name in _WRAPPERS:
            rest = _after_options(words[1:], _WRAPPERS[name])[_OPERANDS.get(name, 0) :]
            if name in _TELLING:
                passed.append(" ".join(word.text for word in words[: len(words) - len(rest)]))
            words = rest
        else:
            return words, env, passed


def _after_options(words: list[Word], valued: tuple[str, ...]) -> list[Word]:
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if words[at].text in valued else 1
    return words[at:]


def _assignments(words: list[Word]) -> tuple[list[Word], dict[str, str]]:
    env: dict[str, str] = {}
    for at, word in enumerate(words):
        found = _ASSIGNMENT.fullmatch(word.text)
        if not found:
            return words[at:], env
        env[found[1]] = found[2]
    return [], env


def _no_launch(others: list[Command]) -> UsageError:
    words = next((command.words for command in others if command.words), None)
    if words is None:
        return UsageError("no launch of vLLM: there is no command", hint=EXPECTED)
    rest = _unwrapped(words)[0] or words
    name = rest[0].text.rpartition("/")[2]
    hint = EXPECTED
    if name == "llama-benchy":
        hint = f"llama-benchy measures a server that runs already; {EXPECTED}"
    elif name in ("run-recipe.sh", "run-recipe.py", "launch-cluster.sh", "sparkrun"):
        hint = (
            f"{name} reads the launch from a recipe: give that file to "
            "`spark-cluster recipes import FILE`"
        )
    elif name == "docker" and len(rest) > 1 and rest[1].text in ("compose", "pull", "build"):
        hint = f"`docker {rest[1].text}` starts no container by itself; {EXPECTED}"
    where = f"line {rest[0].line}"
    return UsageError(f"no launch of vLLM: found '{begin(words)}'", where=where, hint=hint)


def begin(words: list[Word]) -> str:
    """Return how a command begins, without options (a secret may follow) and assignments."""
    plain: list[str] = []
    for word in (_assignments(words)[0] or words)[:3]:
        if plain and word.text.startswith("-"):
            break
        plain.append(word.text.partition("=")[0])
    text = " ".join(" ".join(plain).split())
    return text if len(text) <= 60 else f"{text[:56]}..."
