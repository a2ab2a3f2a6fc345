"""The catalogue of known issues: TOML files in `catalogue/`, read when they are first wanted.

TOML, because it is in the standard library and quick, has comments, and takes a regular expression
as it is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, ValidationError, model_validator

from spark_cluster.errors import InvalidFile
from spark_cluster.issues.finding import EditKind, Severity
from spark_cluster.userfiles.schema import Schema

FOLDER = Path(__file__).parent / "catalogue"


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is no version specifier such as '>=0.19,<0.23'") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Versions = Annotated[str, AfterValidator(_specifier)]
Wanted = bool | int | float | str | list[str | int | float]


class When(Schema):
    """What a launch must be like; all that is given must hold.

    A pattern is one of the shell (`*`, `?`), in any case. A flag or variable is wanted by value,
    by several values of which one holds, or by `true` (given) and `false` (not given).
    """

    family: list[str] = Field(default=[], description="patterns of the model's type: gemma4*")
    model: list[str] = Field(default=[], description="patterns of the model or what it is made of")
    not_model: list[str] = Field(default=[], description="patterns that must not match")
    image: list[str] = Field(default=[], description="patterns of the image")
    not_image: list[str] = Field(default=[], description="patterns that must not match")
    quantization: list[str] = Field(default=[], description="how the weights lie in memory")
    flags: dict[str, Wanted] = Field(default={}, description="flags of vLLM, without dashes")
    env: dict[str, Wanted] = Field(default={}, description="environment variables")
    moe: bool | None = Field(default=None, description="whether it has experts")
    speculative: bool | None = Field(default=None, description="whether it drafts tokens")
    several_nodes: bool | None = Field(default=None, description="more than one machine")
    on_gpu: bool = Field(default=True, description="not for the CPU build of vLLM")


class Change(Schema):
    """What `lint --fix` does; without `to` the thing is taken out."""

    kind: EditKind = "flag"
    name: str = ""
    to: bool | int | float | str | None = None


class Words(Schema):
    """A text in a log.

    `has` is a literal that every such line has: logs are searched for it first, which is what
    makes a long one quick. `pattern` decides; by default `has` does.
    """

    has: str = Field(min_length=5)
    pattern: Pattern | None = None
    trace: Pattern | None = Field(
        default=None, description="must match in the lines just before, as a traceback has them"
    )

    @property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern if self.pattern is not None else re.escape(self.has))


class Issue(Schema):
    """One known issue."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9.]+)+$")
    title: str = Field(min_length=5)
    severity: Severity
    symptom: str = Field(min_length=3, description="what a user notices")
    cause: str = Field(min_length=3)
    fix: str = Field(min_length=3, description="what to do, with the exact flag")
    source: str = Field(min_length=3, description="who says so")
    confidence: Literal["high", "medium", "low"]
    keyed_on: list[
        Literal["image", "model", "version", "flag", "env", "docker", "memory", "node", "bench"]
    ] = Field(min_length=1)
    versions: Versions = Field(default="", description="versions of vLLM that have it")
    unknown_version: Literal["skip", "info", "warning"] = Field(
        default="skip", description="what it is when nothing tells the version"
    )
    flag: str = Field(default="", description="what is to be changed, as it is written")
    when: When | None = Field(default=None, description="how a plan has it")
    rule: bool = Field(default=False, description="whether a function finds it in a plan")
    edit: Change | None = None
    log: list[Words] = Field(default=[], description="how a log shows it")
    follows: bool = Field(default=False, description="in a log: an effect, never the cause")
    samples: list[str] = Field(default=[], description="lines that were really seen")
    live: list[str] = Field(
        default=[], description="check of doctor, or `rung:NAME`, that shows it on a live server"
    )
    traps: list[str] = Field(default=[], description="numbers in the collection it comes from")

    @model_validator(mode="after")
    def _whole(self) -> Issue:
        if self.when and self.rule:
            raise ValueError("`when` and `rule` both say how a plan has it; expected one")
        if self.log and not self.samples:
            raise ValueError("`log` without `samples`: expected a line that was seen")
        if not (self.when or self.rule or self.log or self.live) and self.severity != "info":
            raise ValueError("nothing can find it; expected severity info")
        return self


class _File(Schema):
    issue: list[Issue]


def read(path: Path) -> list[Issue]:
    """The issues of one file.

    Raises:
        InvalidFile: it is no TOML, or an issue is not whole; with the issue's id.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidFile(f"not TOML: {error}", where=str(path)) from None
    try:
        return _File.model_validate(data).issue
    except ValidationError as error:
        lines = [_problem(data, dict(detail)) for detail in error.errors(include_url=False)]
        raise InvalidFile("\n".join(lines), where=str(path)) from None


def _problem(data: dict[str, Any], detail: dict[str, Any]) -> str:
    """`gemma4-x: severity: Input should be ...`."""
    kind, *rest = detail["loc"]
    if kind != "issue" or not rest or not isinstance(rest[0], int):
        return f"{kind}: {detail['msg']}"
    name = data["issue"][rest[0]].get("id", f"issue number {rest[0] + 1}")
    return ": ".join([name, ".".join(map(str, rest[1:])) or "issue", detail["msg"]])


def gather(paths: Iterable[Path]) -> dict[str, Issue]:
    """Issues of several files by id.

    Raises:
        InvalidFile: a file is wrong, or an id is there twice.
    """
    found: dict[str, Issue] = {}
    for path in paths:
        for issue in read(path):
            if issue.id in found:
                raise InvalidFile(f"{issue.id}: there is one of this id already", where=str(path))
            found[issue.id] = issue
    return found


@cache
def catalogue() -> dict[str, Issue]:
    """Every known issue by id, in the order of the files."""
    return gather(sorted(FOLDER.glob("*.toml")))
