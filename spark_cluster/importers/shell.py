"""Splits a pasted shell text into commands and words, and finds the launch of an engine in it.

Nothing is run. `$VAR`, `$(...)` and `~` stay as they are written: only the machine that runs the
command knows what they stand for. Variables that the text itself sets are the exception. `shlex`
knows neither the line of a word nor operators, `$(...)`, or a continuation damaged by pasting.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from spark_cluster.errors import UsageError


@dataclass(frozen=True, slots=True)
class Word:
    """A word after the quotes are removed.

    Attributes:
        text: what the program would get.
        line: where it begins in the text, from 1.
        quoted: whether quotes were used in it.
    """

    text: str
    line: int
    quoted: bool = False

    def wrong(self, message: str, hint: str = "") -> UsageError:
        """Return the error that this word is, with its line."""
        return UsageError(message, where=f"line {self.line}", hint=hint)


@dataclass(slots=True)
class ShellCommand:
    """The words between two operators such as `;`, `|` and `&&`.

    Attributes:
        words: of the command, without redirections.
        left_out: what was passed over, as it was written: redirections.
    """

    words: list[Word] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([^$`]*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_BLANK = re.compile(r"[ \t]+|#[^\n]*")
_OPERATOR = re.compile(r"&&|\|\||;;|[\n;&|()]")
_REDIRECTION = re.compile(r"((?:\d*|&)(?:>>|>\||>&|<<<|<<-?|<&|>|<)&?)[ \t]*")
# A backslash, then blanks or a comment up to the end of the line: a shell would not go on here, but
# that is what the writer meant.
_CONTINUATION = re.compile(r"\\(?:\n|([ \t]+)(?:#[^\n]*)?(?:\n|$))")
_COMMENT_LINES = re.compile(r"(?:[ \t]*#[^\n]*\n)+")
_END_OF_WORD = re.compile(rf"[ \t\n;&|()<>]|{_CONTINUATION.pattern}")
_PLAIN = re.compile(r"[^ \t\n;&|()<>\\'\"$`]+")
_IN_QUOTES = {"'": re.compile(r"[^']+"), '"': re.compile(r'\\(["\\$`\n])|[^"\\$]+|\\')}
_CLOSING = {"${": "}", "$(": ")", "`": "`"}


class _Splitter:
    def __init__(self, text: str, line: int) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self.commands = [ShellCommand()]
        self.notes: list[str] = []
        self.known: dict[str, str] = {}

    def run(self) -> None:
        while self.at < len(self.text):
            if self._continued():
                continue
            if blank := _BLANK.match(self.text, self.at):
                self._take(blank.end())
            elif redirection := _REDIRECTION.match(self.text, self.at):
                self._take(redirection.end())
                self.commands[-1].left_out.append(redirection[1] + self._word().text)
            elif operator := _OPERATOR.match(self.text, self.at):
                self._take(operator.end())
                self._next_command()
            else:
                self.commands[-1].words.append(self._word())

    def _take(self, end: int) -> str:
        """Return the text up to `end`, and go on behind it."""
        taken = self.text[self.at : end]
        self.line += taken.count("\n")
        self.at = end
        return taken

    def _next_command(self) -> None:
        """Begin a command; one that only sets variables makes them known to those that follow."""
        texts = [word.text for word in self.commands[-1].words]
        texts = texts[1:] if texts[:1] == ["export"] else texts
        found = [one for one in map(_ASSIGNMENT.fullmatch, texts) if one]
        if len(found) == len(texts):
            self.known |= {one[1]: one[2] for one in found}
        self.commands.append(ShellCommand())

    def _continued(self) -> bool:
        found = _CONTINUATION.match(self.text, self.at)
        if found is None:
            return False
        if found[1]:
            self.notes.append(
                f"line {self.line}: a shell does not go on after a backslash with something "
                "behind it; read as continued"
            )
        self._take(found.end())
        if comment := _COMMENT_LINES.match(self.text, self.at):
            self.notes.append(
                f"line {self.line}: a shell ends the command at this comment; read as continued"
            )
            self._take(comment.end())
        return True

    def _word(self) -> Word:
        start, quoted, parts = self.line, False, list[str]()
        while self.at < len(self.text) and not _END_OF_WORD.match(self.text, self.at):
            char = self.text[self.at]
            if plain := _PLAIN.match(self.text, self.at):
                parts.append(self._take(plain.end()))
            elif char in "'\"":
                quoted = True
                parts.append(self._quoted(char))
            elif char == "\\":
                parts.append(self._take(self.at + 2)[1:])
            else:
                parts.append(self._substitution())
        return Word("".join(parts), start, quoted)

    def _quoted(self, quote: str) -> str:
        opened, parts = Word(quote, self.line), list[str]()
        self.at += 1
        while self.at < len(self.text):
            if self.text[self.at] == quote:
                self.at += 1
                return "".join(parts)
            if found := _IN_QUOTES[quote].match(self.text, self.at):
                taken = self._take(found.end())
                parts.append(found[1].strip("\n") if found.lastindex else taken)
            else:
                parts.append(self._substitution())
        # What is in it may be a secret: it is not repeated.
        raise opened.wrong("a quote is never closed", f"add the missing {quote}")

    def _substitution(self) -> str:
        """`$VAR`, `${...}`, `$(...)` or backquotes: as written, unless the text sets VAR."""
        variable = _VARIABLE.match(self.text, self.at)
        if variable and (variable[1] or variable[2]) in self.known:
            self.at = variable.end()
            return self.known[variable[1] or variable[2]]
        opening = self.text[self.at : self.at + (1 if self.text[self.at] == "`" else 2)]
        if opening not in _CLOSING:
            return self._take(self.at + 1)
        end = self._balanced(opening)
        if end < 0:
            raise Word(opening, self.line).wrong(f"'{opening}' is never closed", "close it")
        return self._take(end + 1)

    def _balanced(self, opening: str) -> int:
        begin, closing = self.at + len(opening), _CLOSING[opening]
        if opening == closing:
            return self.text.find(closing, begin)
        depth = 1
        for at in range(begin, len(self.text)):
            depth += (self.text[at] == opening[-1]) - (self.text[at] == closing)
            if depth == 0:
                return at
        return -1


def split(text: str, line: int = 1) -> tuple[list[ShellCommand], list[str]]:
    """The commands of a shell text that are not empty, and what was read with goodwill.

    A line that begins with an option goes on from the one before, as pasted text loses backslashes.

    Args:
        text: what was pasted.
        line: number of its first line, for messages.

    Raises:
        UsageError: a quote or a `$(` is never closed.
    """
    splitter = _Splitter(text.replace("\r\n", "\n").replace("\r", "\n"), line)
    splitter.run()
    commands: list[ShellCommand] = []
    for command in splitter.commands:
        words = command.words
        if commands and (not words or words[0].text.startswith("-")):
            if words:
                splitter.notes.append(
                    f"line {words[0].line}: begins with an option and no backslash ends "
                    "the line before; read as continued"
                )
            commands[-1].words += words
            commands[-1].left_out += command.left_out
        elif words or command.left_out:
            commands.append(command)
    return commands, splitter.notes


_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SERVER = "vllm.entrypoints.openai.api_server"
_MAIN = ("vllm.entrypoints.cli.main", "serve")
_SGLANG = "sglang.launch_server"

_WRAPPERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("nohup", "time", "exec", "command", "setsid", "numactl", "$", "%"), ()),
    "sudo": ("-u", "-g", "-C", "-p"),
    "env": ("-u", "-C", "-S"),
    "nice": ("-n",),
    "ionice": ("-c", "-n"),
    "taskset": ("-c",),
    "stdbuf": ("-i", "-o", "-e"),
    "timeout": ("-s", "-k"),
    "uvx": ("--from", "--with", "--python", "-p"),
    "uv run": ("--with", "--python", "-p", "--project"),
}
"""Programs that start another one, and those of their options that take a word."""

_TELLING = ("nice", "ionice", "taskset", "timeout", "numactl")
"""Those that change how the server runs, so that it is said when they are passed over."""

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
        given_twice: the image's entry point starts the same program already.
    """

    kind: str
    words: list[Word]
    env: dict[str, str] = field(default_factory=dict)
    image: str = ""
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    given_twice: bool = False


def find(text: str, line: int = 1) -> ProgramCall:
    """The one launch of vLLM in a text.

    Raises:
        UsageError: a quote is not closed, or there is no launch, or more than one.
    """
    commands, notes = split(text, line)
    exported: dict[str, str] = {}
    found: list[ProgramCall] = []
    others: list[list[Word]] = []
    lines: list[str] = []
    for command in commands:
        program = identify(command.words)
        if program.kind == "export":
            exported |= program.env
        elif program.kind == "other":
            others.append(command.words)
        else:
            lines.append(f"line {command.words[0].line}")
            program.left_out += [f"redirection {text}" for text in command.left_out]
            found.append(program)
    if len(found) > 1:
        raise UsageError(
            f"there are {len(found)} launches of vLLM, on {' and '.join(lines)}",
            where=lines[0],
            hint="give them one at a time",
        )
    if not found:
        raise _no_launch(others)
    program = found[0]
    program.env = {**exported, **program.env}
    program.notes = [*notes, *program.notes]
    program.left_out += [f"command `{begin(words)}`" for words in others if words]
    return program


def identify(words: list[Word]) -> ProgramCall:
    """Return what a command starts; `export` when it only sets variables, `other` without vLLM."""
    if words and words[0].text in ("export", "set", "declare"):
        return ProgramCall("export", [], _assignments(words[1:])[1])
    rest, env, passed = _unwrapped(words)
    if not rest:
        return ProgramCall("export" if env else "other", words, env)
    name = rest[0].text.rpartition("/")[2]
    reader = next((reader for names, reader in _READERS if names.fullmatch(name)), None)
    program = reader(rest) if reader else None
    if program is None:
        return ProgramCall("other", words, env)
    program.env = {**env, **program.env}
    program.left_out[:0] = passed
    return program


def _begins(rest: list[Word], *texts: str) -> bool:
    return tuple(word.text for word in rest[: len(texts)]) == texts


def _vllm(rest: list[Word]) -> ProgramCall | None:
    return ProgramCall("serve", rest[2:]) if _begins(rest[1:], "serve") else None


def _sglang(rest: list[Word]) -> ProgramCall | None:
    return ProgramCall("sglang", rest[2:]) if _begins(rest[1:], "serve") else None


def _docker(rest: list[Word]) -> ProgramCall | None:
    if _begins(rest[1:], "container", "run"):
        return ProgramCall("docker", rest[3:])
    if _begins(rest[1:], "run"):
        return ProgramCall("docker", rest[2:])
    for at in range(2, len(rest) if _begins(rest[1:], "exec") else 0):
        inside = identify(rest[at:])
        if inside.kind in SERVERS:
            plain = [word.text for word in rest[2:at] if "=" not in word.text]
            inside.left_out.append(f"docker exec {' '.join(plain)}")
            return inside
    return None


def _python(rest: list[Word]) -> ProgramCall | None:
    at = 1
    while at < len(rest) and rest[at].text.startswith("-") and rest[at].text != "-m":
        at += 1
    for kind, module in (("server", (_SERVER,)), ("sglang", (_SGLANG,)), ("serve", _MAIN)):
        if _begins(rest[at:], "-m", *module):
            return ProgramCall(kind, rest[at + 1 + len(module) :])
    return None


def _shell(rest: list[Word]) -> ProgramCall | None:
    """`bash -c "..."`, `bash -lc '...'`."""
    for word, script in pairwise(rest[1:]):
        if word.text.startswith("-") and not word.text.startswith("--") and "c" in word.text:
            try:
                return find(script.text, script.line)
            except UsageError as error:
                if error.message.startswith("no launch of vLLM"):
                    return None
                raise
    return None


def _launcher(rest: list[Word]) -> ProgramCall | None:
    """`launch-cluster.sh -t IMAGE -e A=1 exec vllm serve ...` of spark-vllm-docker."""
    texts = [word.text for word in rest]
    at = texts.index("exec") if "exec" in texts else len(rest)
    inside = identify(rest[at + 1 :])
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


_READERS = (
    (re.compile(r"docker|podman|nvidia-docker"), _docker),
    (re.compile(r"python(3(\.\d+)?)?"), _python),
    (re.compile(r"bash|sh|dash|zsh"), _shell),
    (re.compile(r"launch-cluster\.sh"), _launcher),
    (re.compile(r"vllm"), _vllm),
    (re.compile(r"sglang"), _sglang),
)
"""Programs by name, and what reads their words; None where they start no vLLM."""


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
        at = 1
        if _begins(words, "uv", "run"):
            name, at = "uv run", 2
        if name not in _WRAPPERS:
            return words, env, passed
        while at < len(words) and words[at].text.startswith("-"):
            at += 2 if words[at].text in _WRAPPERS[name] else 1
        at += name == "timeout"  # the seconds
        if name in _TELLING:
            passed.append(" ".join(word.text for word in words[:at]))
        words = words[at:]


def _assignments(words: list[Word]) -> tuple[list[Word], dict[str, str]]:
    env: dict[str, str] = {}
    for at, word in enumerate(words):
        found = _ASSIGNED.fullmatch(word.text)
        if not found:
            return words[at:], env
        env[found[1]] = found[2]
    return [], env


def _no_launch(others: list[list[Word]]) -> UsageError:
    words = next(filter(None, others), None)
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
    return rest[0].wrong(f"no launch of vLLM: found '{begin(words)}'", hint)


def begin(words: list[Word]) -> str:
    """Return how a command begins, without options (a secret may follow) and assignments."""
    plain: list[str] = []
    for word in (_assignments(words)[0] or words)[:3]:
        if plain and word.text.startswith("-"):
            break
        plain.append(word.text.partition("=")[0])
    text = " ".join(" ".join(plain).split())
    return text if len(text) <= 60 else f"{text[:56]}..."
