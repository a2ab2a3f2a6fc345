"""Splits a pasted shell text into commands and words, without running anything.

`$VAR`, `$(...)` and `~` stay as they are written: only the machine that runs the command knows what
they stand for. Variables that the text itself sets are the exception.
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
_OPERATOR = re.compile(r"&&|\|\||;;|[;&|()]")
_REDIRECTION = re.compile(r"(\d*|&)(>>|>\||>&|<<<|<<-?|<&|>|<)(&?)")
# A backslash, then blanks or a comment up to the end of the line: a shell would not go on here, but
# that is what the writer meant.
_LOOSE_CONTINUATION = re.compile(r"\\[ \t]+(#[^\n]*)?(\n|$)")
_COMMENT_LINE = re.compile(r"(?:[ \t]*#[^\n]*\n)+")


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
            char = self.text[self.at]
            if char == "\n":
                self._newline()
            elif char in " \t":
                self.at += 1
            elif char == "\\" and self._continuation():
                continue
            elif char == "#":
                self._to_end_of_line()
            elif redirection := _REDIRECTION.match(self.text, self.at):
                self._redirect(redirection)
            elif operator := _OPERATOR.match(self.text, self.at):
                self.at = operator.end()
                self._next_command()
            else:
                self.commands[-1].words.append(self._word())

    def _newline(self) -> None:
        self.at += 1
        self.line += 1
        self._next_command()

    def _next_command(self) -> None:
        """Begin a command; one that only sets variables makes them known to those that follow."""
        texts = [word.text for word in self.commands[-1].words]
        texts = texts[1:] if texts[:1] == ["export"] else texts
        found = [_ASSIGNMENT.fullmatch(text) for text in texts]
        for one in found if all(found) else []:
            if one is not None:
                self.known[one[1]] = one[2]
        self.commands.append(Command())

    def _to_end_of_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _continuation(self) -> bool:
        if self.text.startswith("\\\n", self.at):
            self.at += 2
            self.line += 1
        elif loose := _LOOSE_CONTINUATION.match(self.text, self.at):
            self.notes.append(
                f"line {self.line}: a shell does not go on after a backslash with something "
                "behind it; read as continued"
            )
            self.at = loose.end()
            self.line += 1
        else:
            return False
        if comment := _COMMENT_LINE.match(self.text, self.at):
            self.notes.append(
                f"line {self.line}: a shell ends the command at this comment; read as continued"
            )
            self.line += comment[0].count("\n")
            self.at = comment.end()
        return True

    def _redirect(self, found: re.Match[str]) -> None:
        self.at = found.end()
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        target = self._word().text if self.at < len(self.text) else ""
        self.commands[-1].left_out.append(f"{found[0]}{target}")

    def _word(self) -> Word:
        start, quoted = self.line, False
        parts: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n" or _OPERATOR.match(self.text, self.at) or char in "<>":
                break
            if char in "'\"":
                quoted = True
                parts.append(self._quoted(char))
            elif char == "\\":
                if self.text.startswith("\\\n", self.at):
                    break
                if _LOOSE_CONTINUATION.match(self.text, self.at):
                    break
                parts.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char in "$`":
                parts.append(self._substitution())
            else:
                parts.append(char)
                self.at += 1
        return Word("".join(parts), start, quoted)

    def _quoted(self, quote: str) -> str:
        opened = self.line
        self.at += 1
        parts: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == quote:
                self.at += 1
                return "".join(parts)
            if char == "\n":
                self.line += 1
            if char == "\\" and quote == '"' and self.text[self.at + 1 : self.at + 2] in '"\\$`\n':
                escaped = self.text[self.at + 1 : self.at + 2]
                self.line += escaped == "\n"
                parts.append("" if escaped == "\n" else escaped)
                self.at += 2
                continue
            if quote == '"' and char == "$":
                parts.append(self._substitution())
                continue
            parts.append(char)
            self.at += 1
        # What is in it may be a secret: it is not repeated.
        raise UsageError(
            "a quote is never closed",
            where=f"line {opened}",
            hint=f"add the missing {quote}",
        )

    def _substitution(self) -> str:
        """`$VAR`, `${...}`, `$(...)` or backquotes: as written, unless the text sets VAR."""
        variable = _VARIABLE.match(self.text, self.at)
        if variable and (variable[1] or variable[2]) in self.known:
            self.at = variable.end()
            return self.known[variable[1] or variable[2]]
        closing = {"${": "}", "$(": ")"}.get(self.text[self.at : self.at + 2])
        begin = self.at
        if self.text[begin] == "`":
            end = self.text.find("`", begin + 1)
        elif closing is None:
            self.at += 1
            return "$"
        else:
            end = self._balanced(begin + 1, closing)
        if end < 0:
            opening = self.text[begin : begin + (1 if closing is None else 2)]
            raise UsageError(
                f"'{opening}' is never closed", where=f"line {self.line}", hint="close it"
            )
        self.at = end + 1
        taken = self.text[begin : self.at]
        self.line += taken.count("\n")
        return taken

    def _balanced(self, begin: int, closing: str) -> int:
        opening, depth = self.text[begin], 0
        for at in range(begin, len(self.text)):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
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
        if not command.words and not command.left_out:
            continue
        if commands and (not command.words or command.words[0].text.startswith("-")):
            if command.words:
                splitter.notes.append(
                    f"line {command.words[0].line}: begins with an option and no backslash ends "
                    "the line before; read as continued"
                )
            commands[-1].words += command.words
            commands[-1].left_out += command.left_out
            continue
        commands.append(command)
    return commands, splitter.notes
