"""Which commands of a shell script run: `if`, `case`, `&&`, as far as the script itself says it.

Conditions on files, on commands or on what another machine has are not known. A branch that may run
is read, and what it sets counts only where nothing else is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from spark_cluster.importers.expansion import Word

Truth = bool | None
"""Whether something holds: None where only the machine knows."""

MOST_BLOCKS = 200
"""Blocks inside of blocks; deeper ones are read as if they ran."""


def both(first: Truth, second: Truth) -> Truth:
    """Return whether two conditions hold together."""
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def negated(value: Truth) -> Truth:
    """Return whether a condition does not hold."""
    return None if value is None else not value


def either(first: Truth, second: Truth) -> Truth:
    """Return whether one of two conditions holds."""
    return negated(both(negated(first), negated(second)))


@dataclass
class Block:
    """An `if`, a `case`, a loop or a group.

    Attributes:
        kind: the keyword that closes it.
        runs: whether the current branch runs.
        earlier: whether an earlier branch runs.
        condition: of the branch that begins; None before its first command.
        joined: operator in front of the next command of the condition.
        asks: the commands that come are the condition, or the patterns of a `case`.
        subject: word of a `case`.
        patterns: of the branch of a `case` that begins.
    """

    kind: str
    runs: Truth = True
    earlier: Truth = False
    condition: list[Truth] = field(default_factory=list)
    joined: str = ""
    asks: bool = False
    subject: str = ""
    patterns: list[str] = field(default_factory=list)

    def add(self, value: Truth, operator: str) -> None:
        """Take a command of the condition and the operator behind it."""
        before = self.condition[-1] if self.condition else None
        join = {"&&": both, "||": either}.get(self.joined)
        self.condition = [join(before, value) if join and self.condition else value]
        self.joined = operator

    def branch(self, value: Truth) -> None:
        """Begin a branch that runs if a condition holds and no earlier one did."""
        self.runs = both(value, negated(self.earlier))
        self.earlier = either(self.earlier, value)
        self.condition, self.joined, self.asks = [], "", False


_CLOSED = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done"}
_ENDS = ("fi", "done", "esac", "}")


class Conditions:
    """Follows the blocks of a script, command by command."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.chained: Truth = True

    def step(self, words: list[Word], operator: str, *, blank: bool = False) -> tuple[int, Truth]:
        """Take a command and the operator behind it; a blank one is the end of a line.

        Returns:
            The number of keywords at its beginning, which are no part of it (all words, where it is
            a condition), and whether it runs.
        """
        at = 0
        negative = False
        while at < len(words) and not words[at].quoted:
            block = self.blocks[-1] if self.blocks else Block("")
            if block.kind == "esac" and block.asks and words[at].text != "esac":
                return self._pattern(block, words[at:], len(words), operator)
            if words[at].text == "!":
                negative = not negative
            elif not self._keyword(words[at:], block):
                break
            if words[at].text == "case" and len(words) > at + 3 and operator == ")":
                return self._pattern(self.blocks[-1], words[at + 3 :], len(words), operator)
            if words[at].text in ("case", "for", "select"):
                return len(words), None
            at += 2 if words[at].text == "function" else 1
        if blank:
            operator = operator if operator == ";;" else ""
        return self._command(words[at:], at, operator, negative=negative)

    def _command(
        self, words: list[Word], at: int, operator: str, *, negative: bool
    ) -> tuple[int, Truth]:
        runs = self.chained
        for block in self.blocks:
            runs = both(runs, True if block.asks else block.runs)
        value = tested(words) if words else None
        value = negated(value) if negative else value
        if self.blocks and self.blocks[-1].asks and self.blocks[-1].kind != "esac":
            if words:
                self.blocks[-1].add(value, operator)
            return at, None if runs else runs
        if operator == ";;" and self.blocks and self.blocks[-1].kind == "esac":
            self.blocks[-1].asks = True
        known = bool(words) and words[0].text in ("[", "[[", "((", "test", "true", "false")
        if operator == "&&":
            self.chained = both(self.chained, value) if known else self.chained
        elif operator == "||":
            self.chained = negated(value) if known else None
        elif operator:
            self.chained = True
        return at, runs

    def _keyword(self, words: list[Word], block: Block) -> bool:
        """Return whether the first word is a keyword, which is followed."""
        word = words[0].text
        if len(self.blocks) >= MOST_BLOCKS and word not in _ENDS:
            return False
        if word in _CLOSED:
            loop = word != "if"
            self.blocks.append(Block(_CLOSED[word], None if loop else True, asks=not loop))
        elif word == "case":
            subject = words[1].text if len(words) > 1 else "$"
            self.blocks.append(Block("esac", False, asks=True, subject=subject))
        elif word == "{":
            self.blocks.append(Block("}", self.chained))
            self.chained = True
        elif word == "elif" and block.kind == "fi":
            block.asks, block.condition = True, []
        elif word == "then" and block.kind == "fi":
            block.branch(block.condition[-1] if block.condition else None)
        elif word == "else" and block.kind == "fi":
            block.branch(True)
        elif word in _ENDS and block.kind == word:
            self.blocks.pop()
            self.chained = True
        else:
            return word in ("do", "function")
        return True

    def _pattern(
        self, block: Block, words: list[Word], count: int, operator: str
    ) -> tuple[int, Truth]:
        """Take patterns of a `case`, up to the `)` behind the last one."""
        block.patterns += [word.text for word in words]
        if operator == ")":
            unknown = "$" in block.subject or "`" in block.subject
            hit = any(fnmatchcase(block.subject, pattern) for pattern in block.patterns)
            block.branch(True if "*" in block.patterns else None if unknown else hit)
            block.patterns = []
        return count, None


def tested(words: list[Word]) -> Truth:
    """Return whether a test such as `[ "$A" = 1 ]` holds; None for anything else.

    The value of `((...))` is its second word.
    """
    texts = [word.text for word in words]
    if texts in (["true"], [":"], ["false"]):
        return texts != ["false"]
    if texts[0] in ("[", "[[", "test"):
        texts = texts[1:]
    if texts[-1:] in (["]"], ["]]"]):
        texts = texts[:-1]
    known = not any("$" in text or "`" in text for text in texts)
    match texts:
        case ["((", value] if known:
            return value != "0"
        case ["-n" | "-z" as kind, text] if known:
            return (text != "") is (kind == "-n")
        case [first, "=" | "==" | "!=" as kind, second] if known:
            return fnmatchcase(first, second) is (kind != "!=")
    return None
