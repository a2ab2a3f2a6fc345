"""Splits a pasted shell text into commands and words, without running anything.

`$VAR`, `$(...)` and `~` stay as they are written: only the machine that runs the command knows what
they stand for. Variables that the text itself sets are the exception. `shlex` knows neither the
line of a word nor operators, `$(...)`, or a continuation that pasting has damaged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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
class Command:
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
        self.commands = [Command()]
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
        self.commands.append(Command())

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


def split(text: str, line: int = 1) -> tuple[list[Command], list[str]]:
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
    commands: list[Command] = []
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
