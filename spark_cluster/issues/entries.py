"""The catalogue of known issues: TOML files in `catalogue/`, read when they are first wanted.

TOML, because it is in the standard library and quick, has comments, and takes a regular expression
as it is. What several fixes have in common is a step in `catalogue/steps.toml`; `{name}` in a cause
or fix stands for it. NODE, PID and USER stand for what only the place of a match tells.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from spark_cluster.config.engines import DEFAULT
from spark_cluster.config.recipe_schema import ReadinessCheck, Versions
from spark_cluster.config.schema import Schema
from spark_cluster.config.trust import KNOWN_ISSUES, extensions_in_use
from spark_cluster.errors import InvalidFile
from spark_cluster.issues.log_pattern import LogPattern
from spark_cluster.issues.match import EditKind, Effect, KnownIssueMatch, Severity

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
    quantization: list[str] = Field(default=[])
    """how the weights lie in memory"""
    flags: dict[str, Expected] = Field(default={})
    """flags of vLLM, without dashes"""
    env: dict[str, Expected] = Field(default={})
    """environment variables"""
    moe: bool | None = None
    """whether it has experts"""
    speculative: bool | None = None
    """whether it drafts tokens"""
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


class Issue(Schema):
    """An entry of the catalogue."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9.]+)+$")
    title: str = Field(min_length=5)
    severity: Severity
    symptom: str = Field(min_length=3)
    """what a user notices"""
    cause: str = Field(min_length=3)
    fix: str = Field(min_length=3)
    """what to do, with the exact flag"""
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
        if self.log and not self.samples:
            raise ValueError("found `log` without `samples`, expected a line that was seen")
        if self.evidence and not self.log:
            raise ValueError("found `evidence` without `log`, expected the patterns it goes with")
        if self.confirmed_by and not self.cleared_by:
            raise ValueError("found `confirmed_by` without `cleared_by`, expected both")
        if self.last_cause and not self.follows:
            raise ValueError("found `last_cause` without `follows`, expected both")
        if self.log_check and not self.log:
            raise ValueError("found `log_check` without `log`, expected the patterns it looks for")
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
    try:
        found = _File.model_validate(data).issue
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
    return issue.model_copy(update=texts)


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
                raise InvalidFile(f"{issue.id}: this id is defined twice", where=str(path))
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
