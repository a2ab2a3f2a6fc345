"""Finds the launch of an engine among the commands of a shell text: what starts it, with what.

A script may start the same server on several nodes, and start other containers besides; which of
the launches is meant is decided by who reads them (`commandline.read`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

from spark_cluster.errors import UsageError
from spark_cluster.importers.expansion import Variables, Word, closing
from spark_cluster.importers.importer import shortened
from spark_cluster.importers.shell import ASSIGNMENT, split
from spark_cluster.models.naming import table

LAUNCH = re.compile(
    r"\b(?:vllm['\"\s]+serve|sglang\S*|api_server|(?i:docker|podman)[\w\"'}\[\]@]{0,20}\s+run)\b"
)
_SERVER = "vllm.entrypoints.openai.api_server"
_MAIN = ("vllm.entrypoints.cli.main", "serve")
_SGLANG = "sglang.launch_server"

_FUNCTION = re.compile(
    r"(?m)^[ \t]*(?:([A-Za-z_][\w-]*)[ \t]*\([ \t]*\)|"
    r"function[ \t]+([\w-]+)[ \t]{0,9}(?:\([ \t]*\))?)[ \t]{0,9}\n?[ \t]{0,9}\{"
)
_GIVEN = re.compile(r"\$\{?[@*1-9]")
_OF_ENGINES = re.compile(r"(?:VLLM|SGLANG|NCCL|TORCH|PYTORCH|CUDA|TRITON|FLASHINFER|RAY|HF)_")
# Characters of a function that is looked into wherever it is called, and room that a call takes.
_SHORT = 500

_EXEC_WORDS = 60
"""Words of a `docker exec` among which its program is looked for."""

SERVERS = ("serve", "server", "sglang")
"""Kinds of programs that serve a model."""

EXPECTED = (
    "expected `docker run ... IMAGE ...`, `vllm serve MODEL ...`, "
    f"`python -m {_SERVER} --model MODEL ...` or `python -m {_SGLANG} --model-path MODEL ...`"
)


@dataclass(slots=True)
class ProgramCall:
    """A program with the words that follow it.

    Attributes:
        kind: docker, serve (`vllm serve`), server (the Python module), sglang or other.
        words: what follows it; of another program all of them.
        env: assignments before it, and exports before the command.
        image: of the container, when a script of another tool starts it.
        left_out: what stands around it and is not carried over, in words.
        notes: what was read with goodwill.
        changes: commands that run in the same place before it, as they begin.
        line: where it stands.
        certain: no condition that only the machine knows stands before it.
        given_twice: the image's entry point starts the same program already.
        appended: a script adds its arguments to its own flags, and the last of a flag counts.
        function: of the script that is called for it.
    """

    kind: str
    words: list[Word]
    env: dict[str, str] = field(default_factory=dict)
    image: str = ""
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    line: int = 1
    certain: bool = True
    given_twice: bool = False
    appended: bool = False
    function: str = ""


@dataclass(slots=True)
class Launches:
    """The launches of a text, and what stands around them.

    Attributes:
        programs: each launch; of a container also one that starts something else.
        notes: what was read with goodwill.
        others: commands that are not a launch.
    """

    programs: list[ProgramCall] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: list[list[Word]] = field(default_factory=list)


def find_all(
    text: str, line: int = 1, variables: Variables | None = None, *, script: bool = False
) -> Launches:
    """Return all launches in a text that the text itself does not rule out.

    Args:
        line: number of its first line.
        variables: that are known before; those that the text sets are added.
        script: only what is exported is a variable of the server; in a pasted text all are.

    Raises:
        UsageError: a quote is not closed.
    """
    variables = Variables() if variables is None else variables
    variables.functions = {**variables.functions, **_functions(text, line)}
    commands, notes = split(text, line, variables)
    found = Launches(notes=notes)
    named = filter(_OF_ENGINES.match, variables.exported)
    exported = {name: value for name in named if (value := variables.values.get(name))}
    for command in [one for one in commands if one.runs is not False]:
        program = identify(command.words, variables)
        if program.kind == "export" or (program.kind == "assigned" and not script):
            exported |= program.env
        elif program.kind in ("other", "assigned"):
            inner = [one for document in command.documents for one in _written(document, variables)]
            found.programs += inner
            found.others += [] if inner or program.kind == "assigned" else [command.words]
        else:
            program.left_out += [f"redirection {text}" for text in command.left_out]
            program.certain = command.runs is True
            found.programs.append(program)
    if not found.programs:  # a script may print the words of an array, to run them elsewhere
        listed = [identify(words, variables) for words in variables.arrays.values() if words]
        containers = [one for one in listed if one.kind == "docker"]
        found.programs = containers or [one for one in listed if one.kind in SERVERS]
    _leave_bodies(found.programs, variables)
    for program in found.programs:
        program.env = {**exported, **program.env}
    return found


def _functions(text: str, line: int) -> dict[str, Word]:
    """Return the bodies of the functions of a script that pass on what they are given: those that
    may start an engine, and short ones such as `run() { echo "$@"; "$@"; }`."""
    found, at = dict[str, Word](), 0
    while head := _FUNCTION.search(text, at):
        end = closing(text, head.end() - 1)
        if end < 0:
            break
        body, at = text[head.end() : end], end
        if _GIVEN.search(body) and (len(body) < _SHORT or LAUNCH.search(body)):
            found[head[1] or head[2]] = Word(body, line + text.count("\n", 0, head.end()))
    return found


def _leave_bodies(programs: list[ProgramCall], variables: Variables) -> None:
    """Leave out what functions start by themselves that are called: the call has the words."""
    bodies = variables.functions.items()
    spans = {name: range(one.line, one.line + one.text.count("\n") + 1) for name, one in bodies}
    # Where a function is written its name stands like a call of it.
    programs[:] = [one for one in programs if one.line not in spans.get(one.function, ())]
    called = [spans[one.function] for one in programs if one.function in spans]
    programs[:] = [one for one in programs if not any(one.line in span for span in called)]


def _of_function(rest: list[Word], variables: Variables) -> ProgramCall | None:
    """What a function of the script starts with the words that it is given."""
    body = variables.functions.get(rest[0].text)
    if body is None:
        return None
    others = {name: one for name, one in variables.functions.items() if name != rest[0].text}
    with suppress(UsageError):  # it starts nothing, or several: its body is read as it stands
        room = variables.inside(len(body.text) + _SHORT)
        inner = replace(_given(rest[1:], room), functions=others)
        found = find(body.text, body.line, inner)
        found.function, found.appended = rest[0].text, bool(rest[1:])
        return found
    return None


def _given(words: list[Word], variables: Variables) -> Variables:
    """Return the variables of a script or function that is called with these words."""
    named = {name: one for name, one in variables.values.items() if not name.isdecimal()}
    numbered = {f"{number}": word.text for number, word in enumerate(words, 1)}
    return replace(
        variables,
        doubled=False,
        values={**named, **numbered},
        arrays={**variables.arrays, "@": words, "*": words},
    )


def _written(document: Word, variables: Variables) -> Iterator[ProgramCall]:
    """Yield the launch in a here-document: a script that is written and run later."""
    if LAUNCH.search(document.text):
        inner = variables.inside(len(document.text))
        found = find_all(document.text, document.line, inner, script=True)
        for program in found.programs:
            yield _within(program, found)


def _within(program: ProgramCall, found: Launches) -> ProgramCall:
    """Return the program of an inner script, with the commands that go before it there."""
    program.notes = [*found.notes, *program.notes]
    program.changes += list(commands_of(found))
    return program


def commands_of(found: Launches) -> dict[str, None]:
    """Return how the other commands of a script begin, each once."""
    others = (words for words in found.others if words and words[-1].text not in ("]]", "))"))
    silent = table("shell_programs", "importers")["silent"]
    named = ((words, words[0].text) for words in others)
    words = [words for words, name in named if name not in silent and not name.startswith("-")]
    return dict.fromkeys(filter(None, map(begin, words)))


def find(text: str, line: int = 1, variables: Variables | None = None) -> ProgramCall:
    """Return the one launch of vLLM in the text of an inner shell.

    Raises:
        UsageError: a quote is not closed, or there is no launch, or more than one.
    """
    found = find_all(text, line, variables, script=True)
    certain = [program for program in found.programs if program.certain]
    programs = certain or found.programs
    if len(programs) > 1:
        raise several([program.line for program in programs])
    if not programs:
        raise no_launch(found.others)
    return _within(programs[0], found)


def call_of(text: str, name: str, variables: Variables) -> dict[str, str] | None:
    """Return the variables with which a text calls a script of this name first; None where it does
    not call it.

    Raises:
        UsageError: it is no shell text.
    """
    exported: dict[str, str] = {}
    for command in split(text, 1, variables)[0]:
        rest, env, _ = _unwrapped(command.words)
        if rest and rest[0].text == "export":
            exported |= _assignments(rest[1:])[1]
        program = rest[1:] if rest and _SHELLS.fullmatch(rest[0].text) else rest
        if command.runs and program and program[0].text.rpartition("/")[2] == name:
            left, given = "".join(command.left_out), {**exported, **env}
            return {one: got for one, got in given.items() if not re.search("[$`<]", got or left)}
    return None


def several(lines: list[int]) -> UsageError:
    """Return the error that a text has several launches, on these lines."""
    where = [f"line {line}" for line in lines]
    return UsageError(
        f"there are {len(where)} launches of vLLM, on {' and '.join(where)}",
        where=where[0],
        hint="give the one that is meant as --command 'vllm serve ...'",
    )


def identify(words: list[Word], variables: Variables | None = None) -> ProgramCall:
    """Return what a command starts; `export` and `assigned` when it only sets
    variables, `other` without vLLM.

    Args:
        variables: that an inner shell sees.
    """
    variables = Variables() if variables is None else variables
    if words and words[0].text in ("export", "set", "declare"):
        return ProgramCall("export", [], _assignments(words[1:])[1])
    rest, env, passed = _unwrapped(words)
    if not rest:
        return ProgramCall("assigned" if env else "other", words, env)
    name = rest[0].text.rpartition("/")[2]
    reader = next((reader for names, reader in _READERS if names.fullmatch(name)), None)
    program = reader(rest, variables) if reader else None
    program = program or _of_function(rest, variables) or _of_the_kit(rest, variables)
    if program is None:
        return ProgramCall("other", words, env)
    program.env = {**env, **program.env}
    program.left_out[:0] = passed
    program.line = words[0].line
    return program


def _begins(rest: list[Word], *texts: str) -> bool:
    return tuple(word.text for word in rest[: len(texts)]) == texts


def _serve(rest: list[Word], _: Variables) -> ProgramCall | None:
    kind = "sglang" if rest[0].text.rpartition("/")[2] == "sglang" else "serve"
    return ProgramCall(kind, rest[2:]) if _begins(rest[1:], "serve") else None


def _docker(rest: list[Word], variables: Variables) -> ProgramCall | None:
    if _begins(rest[1:], "container", "run"):
        return ProgramCall("docker", rest[3:])
    if _begins(rest[1:], "run"):
        return ProgramCall("docker", rest[2:])
    runs = _begins(rest[1:], "exec") or _begins(rest[1:], "compose")
    for at in range(2, min(len(rest), _EXEC_WORDS) if runs else 0):
        inside = identify(rest[at:], replace(variables.inside(len(rest)), contained=True))
        if inside.kind in SERVERS:
            plain = [word.text for word in rest[2:at] if "=" not in word.text and word.text != "-e"]
            inside.left_out.append(f"docker exec {' '.join(plain)}")
            inside.env = {**_assignments_of(rest[2:at]), **inside.env}
            return inside
    return None


def _assignments_of(words: list[Word]) -> dict[str, str]:
    """Return the variables that follow `-e` or `--env`."""
    return {
        name: value
        for option, word in pairwise(words)
        if option.text in ("-e", "--env")
        for name, equals, value in [word.text.partition("=")]
        if equals
    }


def _python(rest: list[Word], variables: Variables) -> ProgramCall | None:
    at = 1
    while at < len(rest) and rest[at].text.startswith("-") and rest[at].text != "-m":
        at += 1
    for kind, module in (("server", (_SERVER,)), ("sglang", (_SGLANG,)), ("serve", _MAIN)):
        if _begins(rest[at:], "-m", *module):
            return ProgramCall(kind, rest[at + 1 + len(module) :])
    return _serve(rest[at:], variables) if at < len(rest) and "vllm" in rest[at].text else None


def _shell(rest: list[Word], variables: Variables) -> ProgramCall | None:
    """`bash -c "..."`, `bash -lc '...'`."""
    for at, (word, script) in enumerate(pairwise(rest[1:]), 4):  # behind the script is its $0
        if word.text.startswith("-") and not word.text.startswith("--") and "c" in word.text:
            inner = variables.inside(len(script.text))
            inner = _given(rest[at:], inner) if rest[at:] else replace(inner, doubled=False)
            with suppress(NoLaunch):
                return find(script.text, script.line, inner)
            return None
    return None


def _eval(rest: list[Word], variables: Variables) -> ProgramCall | None:
    """`eval "$CMD"`: a shell text by its words."""
    text = Word(" ".join(word.text for word in rest[1:]), rest[0].line)
    return _shell([rest[0], Word("-c", text.line), text], variables)


def _of_the_kit(rest: list[Word], variables: Variables) -> ProgramCall | None:
    """A script of the kit in the container: `bash /opt/serve.sh ...`, or by its path."""
    at = 1 if _SHELLS.fullmatch(rest[0].text) else 0
    path = rest[at].text if at < len(rest) else ""
    text = variables.script(path) if "/" in path and variables.contained else ""
    if not text:
        return None
    given = rest[at + 1 :]
    inner = replace(_given(given, variables.inside(len(text))), functions={})
    try:
        found = find(text, 1, inner)
        found.appended = bool(given)
        return found
    except NoLaunch:
        return None
    except UsageError as error:
        if not error.where:
            raise
        raise UsageError(f"{path}, {error.where}: {error.message}", hint=error.hint) from None


def _launcher(rest: list[Word], variables: Variables) -> ProgramCall | None:
    """`launch-cluster.sh -t IMAGE -e A=1 exec vllm serve ...` of spark-vllm-docker."""
    texts = [word.text for word in rest]
    at = texts.index("exec") if "exec" in texts else len(rest)
    inside = identify(rest[at + 1 :], variables.inside(len(rest)))
    if inside.kind not in SERVERS:
        return None
    options, env = deque(texts[1:at]), dict[str, str]()
    while options:
        option = options.popleft()
        if option == "-t" and options:
            inside.image = options.popleft()
        elif option == "-e" and options:
            name, equals, value = options.popleft().partition("=")
            env |= {name: value} if equals else {}
        else:
            inside.left_out.append(f"{texts[0].rpartition('/')[2]} {option}")
    inside.env = {**env, **inside.env}
    return inside


_SHELLS = re.compile(r"(?:\S*/)?(?:bash|sh|dash|zsh)")
_READERS = (
    (re.compile(r"docker|podman|nvidia-docker"), _docker),
    (re.compile(r"python(3(\.\d+)?)?"), _python),
    (_SHELLS, _shell),
    (re.compile("eval"), _eval),
    (re.compile(r"launch-cluster\.sh"), _launcher),
    (re.compile(r"[\w.-]*vllm[\w.-]*|sglang"), _serve),
)
"""Programs by name, and what reads their words; None where they start no vLLM."""


def _unwrapped(words: list[Word]) -> tuple[list[Word], dict[str, str], list[str]]:
    """Return the command without `sudo`, `nohup`, assignments and the like before the program, and
    those of the skipped words that change how it runs.
    """
    env: dict[str, str] = {}
    passed: list[str] = []
    known = table("shell_programs", "importers")
    while True:
        words, more = _assignments(words)
        env |= more
        name = words[0].text.rpartition("/")[2] if words else ""
        at = 1
        if _begins(words, "uv", "run"):
            name, at = "uv run", 2
        if name not in known["wrappers"]:
            return words, env, passed
        while at < len(words) and words[at].text.startswith("-"):
            at += 2 if words[at].text in known["wrappers"][name] else 1
        at += name == "timeout"  # the seconds
        if name in known["telling"]:
            passed.append(" ".join(word.text for word in words[:at]))
        words = words[at:]


def _assignments(words: list[Word]) -> tuple[list[Word], dict[str, str]]:
    env: dict[str, str] = {}
    for at, word in enumerate(words):
        found = ASSIGNMENT.fullmatch(word.text)
        if not found:
            return words[at:], env
        env[found[1]] = found[2]
    return [], env


class NoLaunch(UsageError):
    """A text has commands, none of which starts an engine."""


def no_launch(others: list[list[Word]]) -> NoLaunch:
    """Return the error that there is no launch among the commands."""
    words = next(filter(None, others), None)
    if words is None:
        return NoLaunch("no launch of vLLM: there is no command", hint=EXPECTED)
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
    found = f"no launch of vLLM: found '{begin(words)}'"
    return NoLaunch(found, where=f"line {rest[0].line}", hint=hint)


def begin(words: list[Word]) -> str:
    """Return how a command begins, without options (a secret may follow) and assignments."""
    plain: list[str] = []
    for word in (_assignments(words)[0] or words)[:3]:
        if plain and word.text.startswith("-"):
            break
        plain.append(word.text.partition("=")[0].partition(" ")[0])
    text = " ".join(" ".join(plain).split())
    return shortened(text, 60)
