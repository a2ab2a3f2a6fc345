"""Splits a shell text, pasted or a script, into commands and words.

Nothing is run. `$VAR`, `$(...)` and `~` stay as they are written: only the machine that runs the
command knows what they stand for. Variables and arrays that the text itself sets are the exception.
`shlex` knows neither the line of a word nor operators, `$(...)`, or a continuation damaged by
pasting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_cluster.importers import expansion
from spark_cluster.importers.expansion import Conditions, Truth, Variables, Word, closing


@dataclass(slots=True)
class ShellCommand:
    """The words between two operators such as `;`, `|` and `&&`.

    Attributes:
        words: of the command, without redirections and keywords such as `then`.
        left_out: what was passed over, as it was written: redirections.
        documents: the here-documents that it reads.
        after: the operator in front of it.
        runs: False where the text itself says that it does not, None where only the machine knows.
    """

    words: list[Word] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    documents: list[Word] = field(default_factory=list)
    after: str = "\n"
    runs: Truth = True


ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_ADDED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+=(.*)", re.DOTALL)
_DECLARATIONS = ("export", "local", "readonly", "declare", "typeset")
_ARRAY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=\(")
_ELEMENTS = re.compile(
    r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\[[@*]\](?::?-|\+\"\$\{\1\[[@*]\]\}\")?\}|([@*])|\{([@*])\})"
)
_BLANK = re.compile(r"[ \t]+|#[^\n]*")
_BLANKS = re.compile(r"[ \t\n]+|#[^\n]*")
_HIDDEN_FLAG = re.compile(r"#.{80,} --[a-z]")
_SUM = re.compile(r"\(\([^\n]{0,300}?\)\)(?=[ \t]*(?:[;&|\n]|$))")
_LITERALS = re.compile(r"=~[ \t]+\(?([\w|-]+)\)?(?=[ \t]*\]\])")  # `[[ $A =~ (b|c) ]]`
_OPERATOR = re.compile(r"&&|\|\||;;|[\n;&|()]")
_REDIRECTION = re.compile(r"((?:\d*|&)(?:>>|>\||>&|<<<|<<-?|<&|>|<)&?)[ \t]*")
# A backslash, then blanks or a comment up to the end of the line: a shell would not go on here, but
# that is what the writer meant.
_CONTINUATION = re.compile(r"\\(?:\n|([ \t]+)(?:#[^\n]*)?(?:\n|$))")
_COMMENT_LINES = re.compile(r"(?:[ \t]*#[^\n]*\n)+")
_END_OF_WORD = re.compile(rf"[ \t\n;&|()<>]|{_CONTINUATION.pattern}")
_PLAIN = re.compile(r"[^ \t\n;&|()<>\\'\"$`]+")
_IN_QUOTES = {"'": re.compile(r"[^']+"), '"': re.compile(r'\\(["\\$`\n])|[^"\\$`]+|\\')}
_OWN_FOLDER = re.compile(r"\$\((?!.*\.\.).*\bpwd\b.*\)|`pwd`", re.DOTALL)
"""How a script asks for the folder that it lies in, or is run in."""


_ESCAPED = re.compile(r"\\([\\$`])")
"""In a here-document whose delimiter has no quotes (source: posix-shell)."""

MOST_ENDLESS = 50
"""Here-documents without an end that are looked for."""


class _WordBuilder:
    """Collects the pieces of a word; a variable without quotes can make several words of it."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.words: list[Word] = []
        self.parts: list[str] | None = None
        self.quoted = False
        self.size = 0

    def add(self, text: str) -> None:
        if self.parts is None:
            self.parts = []
        self.parts.append(text)
        self.size += len(text)
        if self.size > expansion.LONGEST_VALUE:
            raise Word("", self.line).wrong(
                f"a word of more than {expansion.LONGEST_VALUE:,} characters with its variables"
            )

    def end(self) -> None:
        if self.parts is not None:
            self.words.append(Word("".join(self.parts), self.line, self.quoted))
        self.parts, self.quoted = None, False

    def fields(self, value: str) -> None:
        """Add a value without quotes, which is split at blanks; not that of an assignment."""
        if ASSIGNMENT.match("".join(self.parts or [])):
            self.add(value)
            return
        if value[:1].isspace():
            self.end()
        for number, part in enumerate(value.split()):
            if number:
                self.end()
            self.add(part)
        if value[-1:].isspace():
            self.end()

    def elements(self, words: list[Word]) -> None:
        """Add the elements of an array, each a word of its own."""
        for number, word in enumerate(words):
            if number:
                self.end()
            self.add(word.text)
            self.quoted = word.quoted


class _Splitter:
    def __init__(self, text: str, line: int, variables: Variables) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self.commands = [ShellCommand()]
        self.notes: list[str] = []
        self.variables = variables
        self.arrays = variables.arrays
        self.conditions = Conditions()
        self.changes: list[tuple[str, str, list[Word]]] = []
        self.documents: list[tuple[ShellCommand, str, bool]] = []
        self.endless: set[str] = set()

    def run(self) -> None:
        while self.at < len(self.text):
            if self._continued():
                continue
            if blank := _BLANK.match(self.text, self.at):
                if _HIDDEN_FLAG.match(blank[0]):
                    self.notes.append(
                        f"line {self.line}: to a shell everything after '#' is a comment, which "
                        "hides flags here"
                    )
                self._take(blank.end())
            elif redirection := _REDIRECTION.match(self.text, self.at):
                self._take(redirection.end())
                self._redirected(redirection[1])
            elif (sum_ := _SUM.match(self.text, self.at)) and self._begins():
                value, _ = expansion.expanded(f"${sum_[0]}", 0, self.variables)
                words = [Word("((", self.line), Word("$" if value is None else value, self.line)]
                self.commands[-1].words += words
                self._take(sum_.end())
            elif literals := _LITERALS.match(self.text, self.at):
                self._take(literals.end())
                self.commands[-1].words += [Word("=~", self.line), Word(literals[1], self.line)]
            elif operator := _OPERATOR.match(self.text, self.at):
                self._take(operator.end())
                self._next_command(operator[0])
            elif array := _ARRAY.match(self.text, self.at):
                self._take(array.end())
                self.changes.append((array[1], array[2], self._array()))
            else:
                self.commands[-1].words += self._words()
        self._next_command("\n")

    def _begins(self) -> bool:
        """Return whether only keywords stand before this place."""
        words = self.commands[-1].words
        return all(word.text in ("if", "elif", "while", "until", "!", "then") for word in words)

    def _take(self, end: int) -> str:
        """Return the text up to `end`, and go on behind it."""
        taken = self.text[self.at : end]
        self.line += taken.count("\n")
        self.at = end
        return taken

    def _redirected(self, sign: str) -> None:
        words = self._words()
        target = " ".join(word.text for word in words)
        if sign in ("<<", "<<-") and target:
            self.documents.append((self.commands[-1], target, words[0].quoted))
        else:
            self.commands[-1].left_out.append(sign + target)

    def _array(self) -> list[Word]:
        """The words up to the closing bracket."""
        opened, words = Word("(", self.line), list[Word]()
        while self.at < len(self.text):
            if self._continued():
                continue
            if blank := _BLANKS.match(self.text, self.at):
                self._take(blank.end())
            elif self.text[self.at] == ")":
                self.at += 1
                return words
            elif stray := _OPERATOR.match(self.text, self.at) or _REDIRECTION.match(
                self.text, self.at
            ):
                self._take(stray.end())
            else:
                words += self._words()
        raise opened.wrong("an array's '(' is never closed", "close it")

    def _next_command(self, operator: str) -> None:
        """Begin a command; one that only sets variables makes them known to those that follow."""
        command = self.commands[-1]
        keywords, command.runs = self.conditions.step(
            [*command.words], operator, blank=not command.words and not self.changes
        )
        del command.words[:keywords]
        if command.words and (added := _ADDED.fullmatch(command.words[0].text)):
            whole = f"{added[1]}={expansion.expand(f'${{{added[1]}-}}', self.variables)}{added[2]}"
            command.words[0] = Word(whole, command.words[0].line)
        texts = [word.text for word in command.words]
        if texts[:1] == ["export"] and command.runs is not False:
            self.variables.exported |= {text.partition("=")[0]: None for text in texts[1:]}
        if texts[:1] and texts[0] in _DECLARATIONS:
            texts = [text for text in texts[1:] if not text.startswith("-")]
        found = [one for one in map(ASSIGNMENT.fullmatch, texts) if one]
        if len(found) == len(texts) and command.runs is not False:
            for one in found:
                before = self.variables.values.get(one[1], "")
                unknown = (before or "").startswith("$") and "$" not in one[2]
                if command.runs or unknown or one[1] not in self.variables.values:
                    self.variables.set(one[1], one[2])
                    if unknown and not command.runs:
                        self.variables.defaulted[one[1]] = None
                elif before == "" and "$" in one[2]:  # it may have what only the machine knows
                    self.variables.values[one[1]] = None
        self._set_arrays(command)
        if operator == "\n":
            self._read_documents()
        self.commands.append(ShellCommand(after=operator))

    def _set_arrays(self, command: ShellCommand) -> None:
        for name, adds, words in self.changes:
            if command.runs or (command.runs is None and name not in self.arrays):
                self.arrays[name] = [*(self.arrays.get(name, []) if adds else []), *words]
            elif command.runs is None and words:
                flags = " ".join(word.text for word in words if word.text.startswith("-"))
                self.notes.append(
                    f"line {words[0].line}: {name} gets {flags or 'more words'} under a condition "
                    "that only the machine knows; left out"
                )
        self.changes = []

    def _read_documents(self) -> None:
        """Take the here-documents that begin on this line."""
        for command, delimiter, quoted in self.documents:
            if delimiter in self.endless or len(self.endless) >= MOST_ENDLESS:
                continue
            line = self.line
            end = re.compile(rf"^\t*{re.escape(delimiter)}[ \t]*$", re.MULTILINE).search(
                self.text, self.at
            )
            if end is None:
                self.endless.add(delimiter)
            else:
                body = self._take(end.start())
                self._take(end.end())
                text = body if quoted else _ESCAPED.sub(r"\1", body)
                command.documents.append(Word(text, line))
        self.documents = []

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

    def _words(self) -> list[Word]:
        """The word here, or the words that its variables make."""
        made = _WordBuilder(self.line)
        while self.at < len(self.text) and not _END_OF_WORD.match(self.text, self.at):
            char = self.text[self.at]
            if plain := _PLAIN.match(self.text, self.at):
                made.add(self._take(plain.end()))
            elif char in "'\"":
                self._quoted(char, made)
            elif char == "\\":
                made.add(self._take(self.at + 2)[1:])
            else:
                self._substitution(made)
        made.end()
        return made.words

    def _quoted(self, quote: str, made: _WordBuilder) -> None:
        opened = Word(quote, self.line)
        self.at += 1
        made.quoted = True
        if not _ELEMENTS.match(self.text, self.at):
            made.add("")
        while self.at < len(self.text):
            if self.text[self.at] == quote:
                self.at += 1
                return
            if found := _IN_QUOTES[quote].match(self.text, self.at):
                taken = self._take(found.end())
                made.add(found[1].strip("\n") if found.lastindex else taken)
            else:
                self._substitution(made, quoted=True)
        # What is in it may be a secret: it is not repeated.
        raise opened.wrong("a quote is never closed", f"add the missing {quote}")

    def _substitution(self, made: _WordBuilder, *, quoted: bool = False) -> None:
        """`$VAR`, `${...}`, `$(...)` or backquotes: as written, unless the text says the value."""
        elements = _ELEMENTS.match(self.text, self.at)
        if elements and (name := elements[1] or elements[2] or elements[3]) in self.arrays:
            self._take(elements.end())
            self.variables.room.take(sum(len(word.text) + 1 for word in self.arrays[name]))
            made.elements(self.arrays[name])
            return
        opening = self.text[self.at : self.at + (1 if self.text[self.at] == "`" else 2)]
        end = self.at + 1
        if opening in ("${", "$(", "`"):
            inner = self.at + 1
            end = self.text.find("`", inner) if opening == "`" else closing(self.text, inner)
            end += 1
            if end <= 0:
                raise Word(opening, self.line).wrong(f"'{opening}' is never closed", "close it")
        written = self.text[self.at : end]
        value = "." if self._is_own_folder(written) else None
        if value is None and self.text[self.at] == "$":
            value, reached = expansion.expanded(self.text, self.at, self.variables)
            end = max(end, reached)
        known = self._take(end) if value is None else value
        if value is not None:
            self._take(end)
        if value is None or quoted:
            made.add(known)
        else:
            made.fields(known)

    def _is_own_folder(self, written: str) -> bool:
        return "PWD" in self.variables.values and bool(_OWN_FOLDER.fullmatch(written))


def split(
    text: str, line: int = 1, variables: Variables | None = None
) -> tuple[list[ShellCommand], list[str]]:
    """The commands of a shell text that are not empty, and what was read with goodwill.

    A line that begins with an option goes on from the one before, as pasted text loses backslashes.

    Args:
        text: what was pasted.
        line: number of its first line, for messages.
        variables: that are known before; those that the text sets are added.

    Raises:
        UsageError: a quote or a `$(` is never closed, or values take more room than is left.
    """
    variables = Variables() if variables is None else variables
    splitter = _Splitter(text.replace("\r\n", "\n").replace("\r", "\n"), line, variables)
    splitter.run()
    commands: list[ShellCommand] = []
    for command in splitter.commands:
        words = command.words
        goes_on = not words or (words[0].text.startswith("-") and command.after == "\n")
        if commands and goes_on and not command.documents:
            if words:
                splitter.notes.append(
                    f"line {words[0].line}: begins with an option and no backslash ends "
                    "the line before; read as continued"
                )
            commands[-1].words += words
            commands[-1].left_out += command.left_out
        elif words or command.left_out or command.documents:
            commands.append(command)
    return commands, splitter.notes
