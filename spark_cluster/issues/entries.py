"""The catalogue of known issues: TOML files in `catalogue/`, read when they are first wanted.

TOML, because it is in the standard library and quick, has comments, and takes a regular expression
as it is. What several fixes have in common is a step in `catalogue/steps.toml`; `{name}` in a cause
or fix stands for it. NODE, PID and USER stand for what only the place of a match tells.
"""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, wraps
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from spark_cluster.config.engines import DEFAULT
from spark_cluster.config.extension import KNOWN_ISSUES, extensions_in_use
from spark_cluster.config.recipe_schema import EngineValue, ReadinessCheck, Versions
from spark_cluster.config.schema import COMPILED_WHEN_USED, Document, Hidden, Pattern, Schema
from spark_cluster.errors import InvalidFile

# A text of a log by which a known issue is found.

_GROUP = re.compile(r"\{([a-z]+)\}")


class LogPattern(Schema):
    """A text in a log.

    `has` is a literal that every such line has: logs are searched for it first, which is what
    makes a long one quick. `pattern` decides; by default `has` does.
    """

    has: str = Field(min_length=5)
    pattern: Pattern | None = None
    unless: Pattern | None = None
    """must not match in the line"""
    trace: Pattern | None = None
    """must match in the lines just before, as a traceback has them"""
    memory_holder: Literal["another", "no-other"] | None = None
    """whether a process next to the engine holds GPU memory, as PyTorch's line tells; with
    `another`, `{pid}` and `{gib}` of `cause` are that process's"""
    cause: str = ""
    """the cause where a line matches this; `{name}` is what the pattern's group of that name
    matched"""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern if self.pattern is not None else re.escape(self.has))

    @cached_property
    def excluding(self) -> re.Pattern[str] | None:
        return None if self.unless is None else re.compile(self.unless)

    @cached_property
    def in_line(self) -> tuple[str | None, ...]:
        """What decides whether a line shows it; many patterns differ in `trace` only."""
        return self.has, self.pattern, self.unless, self.memory_holder

    def is_in(self, line: str) -> bool:
        """Return True when a line shows it; what stands before is not looked at."""
        if self.has not in line or not self.regex.search(line):
            return False
        if self.excluding is not None and self.excluding.search(line):
            return False
        return self.holder_as_wanted(line)

    def cause_in(self, line: str) -> str:
        """Return the cause that a line tells; empty where it tells none."""
        found = self.regex.search(line) if self.cause else None
        if found is None or not self.holder_as_wanted(line):
            return ""
        told = {name: text or "" for name, text in found.groupdict().items()}
        told |= self._holder_in(line)
        return _GROUP.sub(lambda group: told.get(group[1], group[0]), self.cause)

    def holder_as_wanted(self, line: str) -> bool:
        """Return True where the line tells of other processes what `memory_holder` wants."""
        if self.memory_holder is None:
            return True
        return (other_holder(line) is not None) == (self.memory_holder == "another")

    def _holder_in(self, line: str) -> Mapping[str, str]:
        holder = other_holder(line) if self.memory_holder == "another" else None
        return {"pid": holder.pid, "gib": f"{holder.gib:.2f}"} if holder else {}


# The processes that PyTorch names when CUDA has no memory left, without the engine itself.
#
# In a container NVML's PIDs are not those that a process knows itself by, so that PyTorch prints
# its own process as `Process N`; and where NVML does not know an amount, it prints 2**64 bytes.

LEAST_GIB = 5.0
"""What another process must hold to be named; a desktop holds less."""

MOST_GIB = 4096.0
"""No GPU has more: the limit where a line does not tell the capacity."""

ROUNDED_GIB = 0.02
"""Amounts are printed with two decimals."""

_UNITS = {"GiB": 1.0, "MiB": 2.0**-10, "KiB": 2.0**-20, "bytes": 2.0**-30}
_AMOUNT = r"(\d{1,20}(?:\.\d{1,9})?) (GiB|MiB|KiB|bytes)"

_HELD = re.compile(rf"\bProcess (\d{{1,19}}) has {_AMOUNT} memory in use")
_OWN = re.compile(r"\bthis process has \d")
_CAPACITY = re.compile(rf"total capaci?ty of {_AMOUNT}")
_ALLOCATED = re.compile(rf"{_AMOUNT} is allocated by PyTorch")
_RESERVED = re.compile(rf"{_AMOUNT} is reserved by PyTorch")


@dataclass(frozen=True)
class Holder:
    """A process and the GPU memory that it holds."""

    pid: str
    gib: float


def other_holder(line: str) -> Holder | None:
    """Return the process that holds the most next to the engine itself; None where no other one is
    certain to hold much.

    >>> other_holder("Process 7 has 70.00 GiB memory in use. Including non-PyTorch memory, this "
    ...              "process has 9.00 GiB memory in use.").pid
    '7'
    """
    holders = _without_own(line, _holders(line))
    others = [holder for holder in holders if holder.gib >= LEAST_GIB]
    return max(others, key=lambda holder: holder.gib, default=None)


def _holders(line: str) -> list[Holder]:
    """Return what a line tells of other PIDs, each once, without what the GPU cannot hold."""
    most = _first_gib(_CAPACITY, line) or MOST_GIB
    told = (Holder(pid, _gib(n, unit)) for pid, n, unit in _HELD.findall(line))
    return [holder for holder in dict.fromkeys(told) if holder.gib <= most]


def _without_own(line: str, holders: list[Holder]) -> list[Holder]:
    """Leave out the engine itself: the least that covers what PyTorch has of it."""
    if _OWN.search(line):
        return holders
    allocated = _first_gib(_ALLOCATED, line)
    if allocated is None:  # nothing tells which of them it is
        return []
    needed = allocated + (_first_gib(_RESERVED, line) or 0.0) - ROUNDED_GIB
    covering = [holder for holder in holders if holder.gib >= needed]
    own = min(covering, key=lambda holder: holder.gib, default=None)
    return [holder for holder in holders if holder is not own]


def _first_gib(pattern: re.Pattern[str], line: str) -> float | None:
    found = pattern.search(line)
    return _gib(found[1], found[2]) if found else None


def _gib(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]


# A known issue that was found: what was seen, why, and what to change.

Severity = Literal["error", "warning", "info"]
"""It will not work or answers wrongly; it is slower, unsafe or at risk; good to know."""

ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}

Effect = Literal["blocks", "slows", "risks"]
"""What comes of it on a node: nothing is served, everything is slower, or it may end."""

EditKind = Literal["flag", "env", "image", "docker", "recipe"]


@dataclass(frozen=True)
class Edit:
    """A change that `lint --fix` can carry out.

    Attributes:
        kind: a flag of vLLM, a variable, the image, an option of `docker run`, or a top-level key
            of the recipe.
        name: of the flag (without dashes), variable, option or key; empty for the image.
        value: the new one; None takes it out.
        replaces: the value of an option of `docker run` that goes, where it may be given several
            times; None adds one. Of a flag: the one in whose place it is put.
    """

    kind: EditKind
    name: str
    value: EngineValue | None
    replaces: str | None = None

    @property
    def written(self) -> str:
        """The thing that changes, as it is written on a command line or in a recipe."""
        dashes = "--" if self.kind in ("flag", "docker") else ""
        return f"{dashes}{self.name}" if self.name else self.kind


@dataclass(frozen=True)
class KnownIssueMatch(Document):
    """A known issue that was found.

    Attributes:
        id, title, severity, cause, fix, source: of the issue, or what a rule knows better.
        found: what exactly was seen.
        flag: what to change, as it is written (`--tool-call-parser`, `VLLM_CACHE_ROOT`, `image`);
            empty when nothing in the launch is to be changed.
        edit: the change, where it can be made by itself.
        where: the log in which it was seen; empty for a plan.
    """

    id: str
    severity: Severity
    title: str
    found: str
    cause: str
    fix: str
    source: str
    flag: str = ""
    edit: Hidden[Edit | None] = None
    where: Hidden[str] = ""


def ordered(findings: list[KnownIssueMatch]) -> list[KnownIssueMatch]:
    """Return matches with errors first; within a severity as they came."""
    return sorted(findings, key=lambda finding: ORDER[finding.severity])


T = TypeVar("T")

FOLDER = Path(__file__).parent / "catalogue"
STEPS = FOLDER / "steps.toml"

_STEP = re.compile(r"\{([a-z][a-z-]*)\}")
_PLACEHOLDER = re.compile(r"\b(?:NODE|PID|USER)\b")


Expected = bool | int | float | str | list[str | int | float]


class When(Schema):
    """Conditions on a launch; all that are given must hold.

    A pattern is one of the shell (`*`, `?`), in any case. A flag or variable is wanted by value,
    by several values of which one holds, or by `true` (given) and `false` (not given).
    """

    family: list[str] = Field(default=[])
    """patterns of the model's type: gemma4*"""
    model: list[str] = Field(default=[])
    """patterns of the model or what it is made of"""
    not_model: list[str] = Field(default=[])
    """patterns that must not match"""
    image: list[str] = Field(default=[])
    """patterns of the image"""
    not_image: list[str] = Field(default=[])
    """patterns that must not match"""
    not_mounted: list[str] = Field(default=[])
    """patterns of paths in the container over which nothing may be mounted"""
    quantization: list[str] = Field(default=[])
    """how the weights lie in memory"""
    transformers: str = ""
    """versions of transformers; skipped only where the nodes' environments all have others"""
    flags: dict[str, Expected] = Field(default={})
    """flags of vLLM, without dashes"""
    env: dict[str, Expected] = Field(default={})
    """environment variables"""
    not_env: dict[str, str] = Field(default={})
    """environment variables, and the value that they may not have"""
    moe: bool | None = None
    """whether it has experts"""
    hybrid: bool = False
    """only a model that has recurrent layers besides attention"""
    speculative: bool | None = None
    """whether it drafts tokens"""
    drafts: list[str] = Field(default=[])
    """patterns of how it drafts: the method, or the model that does"""
    stages: bool = False
    """only over several pipeline stages"""
    several_nodes: bool | None = None
    """more than one machine"""
    on_gpu: bool = True
    """not for the CPU build of vLLM"""
    by_hand: bool = False
    """only a command line that someone runs"""
    in_docker: bool = False
    """only a `docker run` by hand"""
    docker: dict[str, list[str]] = Field(default={})
    """options of `docker run` and patterns, one of which a value fits"""
    not_docker: dict[str, list[str]] = Field(default={})
    """options of `docker run` of which no value may fit"""


class Change(Schema):
    """An edit for `lint --fix`; without `to` the thing is removed."""

    kind: EditKind = "flag"
    name: str = ""
    to: bool | int | float | str | None = None


class LogCheck(Schema):
    """A check of doctor that needs no function: it looks for an issue's `log` on the nodes.

    Several issues may share one; then the first that gives a title speaks for all.
    """

    id: str = Field(pattern=r"^[a-z]+\.[a-z0-9-]+$")
    title: str = ""
    """what it makes sure of"""
    effect: Effect = "blocks"
    """what comes of it when it is found"""
    silent: str = ""
    """what it says of an engine on several nodes without such a line"""


_TOGETHER = {"log": "samples", "evidence": "log", "log_check": "log", "fallback": "broad"}
_TOGETHER |= {"confirmed_by": "cleared_by", "last_cause": "follows"}
"""Keys of an issue that need another one."""


class Issue(Schema):
    """An entry of the catalogue."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9.]+)+$")
    title: str = Field(min_length=5)
    severity: Severity
    symptom: str = Field(min_length=3)
    """what a user notices"""
    cause: str = Field(min_length=3)
    fix: str = Field(min_length=3)
    """what to do, with the exact flag of vLLM"""
    fixes: dict[str, str] = Field(default={})
    """what to do instead where another engine serves, by its name"""
    also_for: dict[str, str] = Field(default={})
    """what else to do for some models, by patterns of the model or its architecture"""
    source: str = Field(min_length=3)
    """who says so"""
    confidence: Literal["high", "medium", "low"]
    keyed_on: list[
        Literal["image", "model", "version", "flag", "env", "docker", "memory", "node", "bench"]
    ] = Field(min_length=1)
    versions: Versions = ""
    """versions of vLLM that have it"""
    unknown_version: Literal["skip", "info", "warning"] = "skip"
    """what it is when the version is unknown"""
    engines: list[str] = Field(default=[DEFAULT], min_length=1)
    """engines that have it in a plan"""
    flag: str = ""
    """what is to be changed, as it is written"""
    when: When | None = None
    """how a plan has it"""
    rule: bool = False
    """whether a function finds it in a plan, where `when` holds"""
    missing: str = ""
    """what a launch lacks, as it is shown"""
    lint_severity: Severity | None = None
    """in a plan, where it may but need not happen"""
    by_build: bool = False
    """how an image is built decides: of one that is not published by its engine's or the GPU's
    maker, or that the recipe builds, an error is a warning, which `lint --fix` leaves alone"""
    edit: Change | None = None
    hygiene: bool = False
    """said of nearly every plan: `lint` folds it into its last line"""
    log: list[LogPattern] = Field(default=[])
    """how a log shows it"""
    follows: bool = False
    """in a log: an effect, never the cause"""
    last_cause: bool = False
    """with `follows`: it is the cause where the logs of all ranks show no other"""
    broad: bool = False
    """in a log: it says what happened, not why, so that a specific issue goes first"""
    fallback: bool = False
    """with `broad`: by where an error was raised, so that any other issue of its line goes first"""
    step: bool = False
    """with `broad`: it says that a step of a build failed; the first error of the step's tools is
    quoted for it"""
    request: bool = False
    """in a log: it ends a request and not the engine, so that any other error goes first"""
    log_severity: Severity | None = None
    """in a log, where it may but need not stop the engine"""
    samples: list[str] = Field(default=[])
    """lines that were really seen"""
    healthy: list[str] = Field(default=[])
    """lines that are like `samples` and do not show it"""
    evidence: LogPattern | None = None
    """what must have stood earlier in the same log, besides `log`"""
    log_check: LogCheck | None = None
    """check of doctor that looks for `log` in the engine's containers"""
    cleared_by: LogPattern | None = None
    """what shows, in the same log, that it came to nothing"""
    confirmed_by: LogPattern | None = None
    """what shows, in the same log, that it did not, in spite of that"""
    checks: list[str] = Field(default=[])
    """checks of doctor whose verdict is explained by it"""
    rungs: list[ReadinessCheck] = Field(default=[])
    """rungs of readiness that it makes fail"""

    @property
    def all_checks(self) -> tuple[str, ...]:
        """The checks of doctor that find it, on the nodes or in the engine's logs."""
        return (*self.checks, *([self.log_check.id] if self.log_check else []))

    def fix_on(self, node: str) -> str:
        """Return the fix for a node; NODE is its name."""
        return fill(self.fix, {"NODE": node})

    def fix_for(self, names: Iterable[str], engine: str = DEFAULT) -> str:
        """Return what to do with a model of these names."""
        lowered = [name.lower() for name in names]
        also = (t for p, t in self.also_for.items() if fnmatch.filter(lowered, p.lower()))
        return "; ".join([self.fixes.get(engine, self.fix), *also])

    def match(
        self, found: str, where: str = "", *, in_log: bool = False, line: str = ""
    ) -> KnownIssueMatch:
        """Return a match of it in a log, on a node or in a rung.

        Args:
            in_log: it was seen in a log, where it may weigh less.
            found: what exactly was seen.
            where: the log or node in which it was seen.
            line: the whole line, where `found` is its beginning.
        """
        causes = (words.cause_in(line or found) for words in self.log)
        return KnownIssueMatch(
            id=self.id,
            severity=(self.log_severity or self.severity) if in_log else self.severity,
            title=self.title,
            found=found,
            cause=next(filter(None, causes), self.cause),
            fix=self.fix,
            source=self.source,
            flag=self.flag,
            where=where,
        )

    @model_validator(mode="after")
    def _whole(self) -> Issue:
        for given, needed in _TOGETHER.items():
            if getattr(self, given) and not getattr(self, needed):
                raise ValueError(f"found `{given}` without `{needed}`, expected both")
        found = self.when or self.rule or self.log or self.checks or self.rungs
        if not found and self.severity != "info":
            raise ValueError(
                f"found severity {self.severity} and nothing that finds it, expected info, "
                "or one of `when`, `rule`, `log`, `checks`, `rungs`"
            )
        return self


class _File(Schema):
    issue: list[Issue]


def read(path: Path) -> list[Issue]:
    """Return the issues of one file, with the steps in their texts written out.

    Raises:
        InvalidFile: the file is not TOML, or an issue is incomplete; with the issue's id.
    """
    data = _toml(path)
    context = COMPILED_WHEN_USED if path.parent == FOLDER else None
    try:
        found = _File.model_validate(data, context=context).issue
        return [_with_steps(issue, path) for issue in found]
    except ValidationError as error:
        lines = [_problem(data, dict(detail)) for detail in error.errors(include_url=False)]
        raise InvalidFile("\n".join(lines), where=str(path)) from None


def files() -> list[Path]:
    """Return the files of the catalogue that ship, in their order."""
    return [path for path in sorted(FOLDER.glob("*.toml")) if path != STEPS]


@cache
def steps() -> Mapping[str, str]:
    """Return what several fixes have in common, by name."""
    return {name: str(text) for name, text in _toml(STEPS)["step"].items()}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a cause or fix with its placeholders replaced, as far as their values are known.

    >>> fill("spark-cluster exec -b -l NODE -- kill -9 PID", {"NODE": "spark1"})
    'spark-cluster exec -b -l spark1 -- kill -9 PID'
    """
    return _PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), text)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidFile(f"not TOML: {error}", where=str(path)) from None


def _with_steps(issue: Issue, path: Path) -> Issue:
    """Write out `{name}` in its cause and fix.

    Raises:
        InvalidFile: there is no such step.
    """

    def step(found: re.Match[str]) -> str:
        if found[1] not in steps():
            known = ", ".join(steps())
            raise InvalidFile(
                f"{issue.id}: {found[0]}: no such step", where=str(path), hint=f"steps: {known}"
            )
        return steps()[found[1]]

    texts = {name: _STEP.sub(step, getattr(issue, name)) for name in ("cause", "fix")}
    several = {
        name: {key: _STEP.sub(step, text) for key, text in getattr(issue, name).items()}
        for name in ("fixes", "also_for")
    }
    return issue.model_copy(update={**texts, **several})


def _problem(data: dict[str, Any], detail: dict[str, Any]) -> str:
    """`gemma4-x: severity: Input should be ...`."""
    kind, *rest = detail["loc"]
    if kind != "issue" or not rest or not isinstance(rest[0], int):
        return f"{kind}: {detail['msg']}"
    name = data["issue"][rest[0]].get("id", f"issue number {rest[0] + 1}")
    return ": ".join([name, ".".join(map(str, rest[1:])) or "issue", detail["msg"]])


def gather(paths: Iterable[Path], taken: Collection[str] = ()) -> dict[str, Issue]:
    """Return the issues of several files by id.

    Args:
        taken: ids that they cannot have.

    Raises:
        InvalidFile: a file is wrong, or an id is there twice.
    """
    found: dict[str, Issue] = {}
    for path in paths:
        for issue in read(path):
            if issue.id in found or issue.id in taken:
                raise InvalidFile(f"{issue.id}: this id is taken; choose another", where=str(path))
            found[issue.id] = issue
    return found


@cache
def shipped() -> dict[str, Issue]:
    """Return the known issues that ship with spark-cluster by id, in the order of the files."""
    return gather(files())


def per_project(function: Callable[[], T]) -> Callable[[], T]:
    """Keep what a function makes of the catalogue, with the project in use."""
    of_shipped = cache(function)

    @wraps(function)
    def kept() -> T:
        found = extensions_in_use()
        return of_shipped() if found is None else found.made(function)

    return kept


@per_project
def own() -> dict[str, Issue]:
    """Return the project's own known issues by id.

    Raises:
        InvalidFile: one is wrong, or has an id that ships.
        Refused: others can write them.
    """
    extensions = extensions_in_use()
    found: dict[str, Issue] = {}
    for path in extensions.files(KNOWN_ISSUES, ".toml") if extensions is not None else ():
        found |= gather([path], {*shipped(), *found})
        wrong = next((issue for issue in found.values() if issue.rule), None)
        if wrong is not None:
            raise InvalidFile(
                f"{wrong.id}: rule: a rule is a function of spark-cluster",
                where=str(path),
                hint="say how a plan has it with `when`",
            )
    return found


@per_project
def catalogue() -> dict[str, Issue]:
    """Return every known issue by id: those that ship, then the project's own."""
    return shipped() | own()


@per_project
def _by_check() -> dict[str, tuple[Issue, ...]]:
    """Issues by check; the project's own do not compete with ours."""
    found = _of_checks(shipped())
    return _of_checks(own()) | found


def _of_checks(issues: Mapping[str, Issue]) -> dict[str, tuple[Issue, ...]]:
    found: dict[str, tuple[Issue, ...]] = {}
    for issue in issues.values():
        for check in issue.all_checks:
            found[check] = (*found.get(check, ()), issue)
    return found


def for_check(check: str) -> tuple[Issue, ...]:
    """Return the issues that explain what a check of doctor finds, in the catalogue's order."""
    return _by_check().get(check, ())


# Matching of log lines against the catalogue's patterns.

_DIGITS = re.compile(r"[0-9]+")
_NUMBERS = re.compile(r"\b[0-9a-f]{8,}(?:-[0-9a-f]{4,12})*\b|[0-9]+")
"""Numbers, also those of requests and addresses in base 16, which stand as words."""
_WORD = re.compile(r"[A-Za-z]+")
_WORDS_WITHIN = re.compile(r"(?<=[^A-Za-z])[A-Za-z]+(?=[^A-Za-z])")
"""Words of a literal that are whole words of every text that has it, too."""

LONGEST = 4000
"""Characters of a line that are looked at closely; what matters stands at its beginning."""


Sign = tuple[Issue, LogPattern]
"""An issue and a text that shows it."""

MARKS = ("evidence", "cleared_by", "confirmed_by")
"""Patterns of an issue that say in other lines of the same log what its signs are worth."""


@per_project
def signs() -> tuple[Sign, ...]:
    """Return all signs of the catalogue; causes before what follows, the most general last.

    Of two equal ones a text goes before the place where an error was raised, but with fallbacks
    the place says more.
    """
    found = [(issue, words) for issue in catalogue().values() for words in issue.log]

    def generality(sign: Sign) -> tuple[bool, ...]:
        issue, words = sign
        by_place = words.trace is not None
        return issue.fallback, issue.follows, issue.broad, by_place != issue.fallback

    return tuple(sorted(found, key=generality))


@per_project
def _marks() -> tuple[tuple[str, str, LogPattern], ...]:
    """Return the kind and pattern of every mark, with the issue's id."""
    found = ((k, i.id, getattr(i, k)) for i in catalogue().values() for k in MARKS)
    return tuple(mark for mark in found if mark[2] is not None)


def marks_in(text: str) -> set[tuple[str, str]]:
    """Return the marks in a line: one of MARKS, and the id of the issue."""
    return {(kind, id) for kind, id, pattern in _marks() if pattern.is_in(text)}


@per_project
def _by_word() -> Mapping[str, list[tuple[int, Sign, str]]]:
    """Return signs, with their place and literal, by the longest word of the literal."""
    found = defaultdict[str, list[tuple[int, Sign, str]]](list)
    for place, sign in enumerate(signs()):
        literal = _DIGITS.sub("", sign[1].has)
        word = max(_WORDS_WITHIN.findall(literal), key=len, default="")
        found[word].append((place, sign, literal))
    return found


def words_in(text: str) -> frozenset[str]:
    """Return the words of a text that signs are looked up by; texts with the same ones may show
    the same issues only.
    """
    return frozenset(_by_word().keys() & {"", *_WORD.findall(text)})


@per_project
def _possible() -> Callable[[str], tuple[Sign, ...]]:
    """Return what finds the signs whose literals can be in a text of a shape, and keeps them.

    A shape is a text without its numbers. The lines of a flood of errors differ in numbers, so that
    they have few shapes, and what holds for one need not be looked for in each.
    """
    by_word = _by_word()

    @lru_cache(maxsize=1024)
    def possible(shape: str) -> tuple[Sign, ...]:
        found = (one for word in words_in(shape) for one in by_word[word] if one[2] in shape)
        return tuple(sign for _, sign, _ in sorted(found, key=itemgetter(0)))

    return possible


@per_project
def literals() -> frozenset[str]:
    """Return a literal of every pattern of the catalogue."""
    patterns = (*(words for _, words in signs()), *(pattern for *_, pattern in _marks()))
    return frozenset(pattern.has for pattern in patterns)


def recognise(
    text: str, before: Callable[[], str] = str, evident: Collection[str] = ()
) -> list[Issue]:
    """Return the issues that a line shows, each once.

    Args:
        text: the line without prefixes.
        before: gives the lines just before it, of the same process, where a traceback stands; few
            signs ask for them.
        evident: the issues for which the log had evidence; those that need some are found with it
            only.
    """
    text = text[:LONGEST]
    found: dict[str, Issue] = {}
    shown: dict[tuple[str | None, ...], bool] = {}
    for issue, words in _possible()(_NUMBERS.sub("", text)):
        if issue.fallback and found:
            break
        if issue.id in found:
            continue
        if words.in_line not in shown:
            shown[words.in_line] = words.is_in(text)
        if not shown[words.in_line]:
            continue
        if issue.evidence is not None and issue.id not in evident:
            continue
        if words.trace is None or re.search(words.trace, before()):
            found[issue.id] = issue
    return list(found.values())


def known_for(text: str, before: str = "") -> KnownIssueMatch | None:
    """Return the known issue that explains an error; a cause rather than a consequence.

    Args:
        text: of the error, or of a line of a log.
        before: lines just before it, of the same process.
    """
    found = recognise(text, lambda: before)
    return found[0].match(text.strip()) if found else None
