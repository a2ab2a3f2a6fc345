"""The known issues of a launch: by the conditions of an entry, and by rules that need more."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import chain

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from spark_cluster.config.engines import DEFAULT, dialect
from spark_cluster.config.facts import Facts
from spark_cluster.config.launch import Launch
from spark_cluster.issues.entries import (
    Edit,
    Expected,
    Issue,
    KnownIssueMatch,
    Severity,
    When,
    catalogue,
    ordered,
)
from spark_cluster.models import naming
from spark_cluster.models.shape import Geometry

_MOE = re.compile(r"-A\d+(?:\.\d+)?B\b", re.IGNORECASE)
_FAMILY = re.compile(r"(?i)gemma-?_?4(?![0-9])")
_HYBRID = re.compile(
    r"(?i)qwen-?3(\.[5-9]|-next|-coder-next)|nemotron-(3|h|nano-\d+b-v2)|kimi-linear"
)


@dataclass(frozen=True)
class Case:
    """A launch with everything else that is known about it."""

    launch: Launch
    geometry: Geometry | None = None
    facts: Sequence[Facts] = ()

    @property
    def flags(self) -> Mapping[str, object]:
        return self.launch.args

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Everything that may name the model: itself, what it is made of, where it lies."""
        volumes = [v.source for v in self.launch.volumes if v.target == self.launch.model]
        served = self.launch.args.get("served-model-name", "")
        names: list[object] = [self.launch.model, self.launch.base or "", *volumes]
        names += served if isinstance(served, list) else [served]
        if self.geometry is not None:
            names += [self.geometry.name]
        return tuple(str(name) for name in names if name)

    @cached_property
    def family(self) -> str:
        """The model's type as its config says, or as its name lets one think; may be empty."""
        if self.geometry is not None:
            return self.geometry.model_type
        return "gemma4" if any(_FAMILY.search(name) for name in self.names) else ""

    @cached_property
    def is_moe(self) -> bool | None:
        """True for a mixture of experts; None when nothing tells."""
        if self.geometry is not None:
            return self.geometry.is_moe
        if any(_MOE.search(name) for name in self.names):
            return True
        return False if self.family == "gemma4" and self._named("31b") else None

    @property
    def is_hybrid(self) -> bool:
        """True for a model with recurrent layers, by its config or as its names let one think."""
        shape = self.geometry
        return bool(shape.recurrent) if shape else any(map(_HYBRID.search, self.names))

    @property
    def drafters(self) -> list[str]:
        """Method and model that draft, as far as they are given."""
        config = self.launch.speculative
        return [str(one) for one in (config.get("method"), config.get("model")) if one]

    @cached_property
    def quantization(self) -> str | None:
        """The quantization of the weights; None when nothing tells."""
        launch = self.launch
        if launch.quantization is not None:
            return launch.quantization
        asked = launch.text("quantization")
        named = naming.quantization_of(asked, launch.model, launch.base, self.names)
        found = named or (self.geometry.quantization if self.geometry is not None else None)
        return None if found == naming.NOT_SAID else found

    @cached_property
    def version(self) -> Version | None:
        """The engine's version, as the recipe gives it, or as the image's tag does."""
        launch = self.launch
        text = launch.vllm or naming.version_in(launch.image, launch.engine)
        try:
            return Version(text) if text else None
        except ValueError:  # also of a number that is too long
            return None

    @cached_property
    def image(self) -> str:
        """The image without the registry that is meant anyway."""
        return self.launch.image.removeprefix("docker.io/")

    @property
    def built_by_owner(self) -> bool:
        """True for an image that the recipe builds, or that someone else than its maker did."""
        launch = self.launch
        return bool(launch.dockerfile or launch.image) and (
            bool(launch.dockerfile) or not self.matches(PUBLISHED, [f"{self.image}:"])
        )

    @property
    def is_command(self) -> bool:
        """True for a command line run by hand: what it leaves out is not computed."""
        return self.launch.origin == "command"

    @property
    def in_docker(self) -> bool:
        """True for a `docker run` by hand."""
        return self.is_command and bool(self.launch.image)

    @property
    def several_nodes(self) -> bool:
        """More than one machine; a Spark has one GPU, so TP=2 is two of them."""
        return self.launch.nodes > 1 or self.launch.tp > 1

    def docker(self, option: str) -> list[str]:
        """The values of an option of `docker run`; a bare one's is empty."""
        value = self.launch.docker.get(option)
        if value is None or value is False:
            return []
        if isinstance(value, list):
            return [str(v) for v in value]
        return ["" if value is True else str(value)]

    def matches(self, patterns: Sequence[str], texts: Sequence[str]) -> bool:
        """Return True when any pattern (`*`, `?`, any case) matches any text."""
        return any(fnmatchcase(t.lower(), p.lower()) for p in patterns for t in texts)

    def may_have_transformers(self, versions: SpecifierSet) -> bool:
        """Return False when what serves on the nodes is known to have another version."""
        known = [one.packages.get("transformers", "") for one in self.facts]
        if not self.launch.venv or not all(known):
            return True
        return not known or any(versions.contains(one, prereleases=True) for one in known)

    def outside(self, what: str, span: Sequence[str | None]) -> str:
        """Why the release does not have what others have; empty where it has, or may have.

        Args:
            span: the first release, and the first without it; null where it is older, and where
                the newest that was read has it.
        """
        (since, until), version = span, self.version
        title, engine = dialect(self.launch.engine).title, self.launch.engine
        if until and (version >= Version(until) if version else engine == DEFAULT):
            unknown = "" if version else "; which release this is, is not known"
            return f"{what} went with {title} {until}{unknown}"
        if not since or version is None or version.is_prerelease or version.local:
            return ""
        came = f"{what} came with {title} {since}, this is {version}"
        return came if version < Version(since) else ""

    def _named(self, part: str) -> bool:
        return any(part in name.lower() for name in (self.launch.model, *self.names))


PUBLISHED = (
    "vllm/vllm-openai:*",
    "nvcr.io/nvidia/vllm:*",
    "lmsysorg/sglang:*",
    "nvcr.io/nvidia/sglang:*",
)
"""Images of which it is known what they are built with: the engines' own and NVIDIA's."""

MODULES = ("rules_flags", "rules_model")
"""Where rules are, next to this file."""


@dataclass(frozen=True)
class RuleFinding:
    """What a rule found in a launch; what is not given is the catalogue's.

    Attributes:
        what: exactly was seen.
        and_also: what goes on behind the entry's cause.
    """

    what: str
    severity: Severity | None = None
    edit: Edit | None = None
    fix: str = ""
    and_also: str = ""


Rule = Callable[[Case], RuleFinding | None]
RULES: dict[str, Rule] = {}


def rule(id: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of an issue of the catalogue."""

    def made(function: Rule) -> Rule:
        if id in RULES:
            raise ValueError(f"rule {id} is defined twice")
        RULES[id] = function
        return function

    return made


@cache
def rules() -> dict[str, Rule]:
    """Return every rule by the id of its issue."""
    for name in MODULES:
        importlib.import_module(f"spark_cluster.issues.{name}")
    return RULES


def lint(
    launch: Launch, geometry: Geometry | None = None, facts: Sequence[Facts] = ()
) -> list[KnownIssueMatch]:
    """Return every known issue that a launch has, errors first.

    Args:
        geometry: the model's shape, when it is known; some rules need it.
        facts: of the nodes, when they can be reached; some figures become certain with them.
    """
    return ordered(list(_each(Case(launch, geometry, tuple(facts)), catalogue().values())))


def _each(case: Case, issues: Iterable[Issue]) -> Iterator[KnownIssueMatch]:
    for issue in issues:
        if case.launch.engine in issue.engines and (found := _look(issue, case)):
            yield found


def _look(issue: Issue, case: Case) -> KnownIssueMatch | None:
    """Return the match of an entry: its `when` holds, and its rule, if it has one, finds it."""
    severity = severity_for(issue, case) if issue.when or issue.rule else None
    seen = _seen(issue.when, case) if issue.when else []
    if severity is None or seen is None:
        return None
    shown = issue.missing or ", ".join(seen)
    found = rules()[issue.id](case) if issue.rule else RuleFinding(shown)
    return _match(issue, case, found, severity) if found else None


def severity_for(issue: Issue, case: Case) -> Severity | None:
    """Return the entry's severity with this version of vLLM; None when it is not affected."""
    severity = issue.lint_severity or issue.severity
    if not issue.versions:
        return severity
    if case.version is None:
        return None if issue.unknown_version == "skip" else issue.unknown_version
    has_it = SpecifierSet(issue.versions).contains(case.version, prereleases=True)
    return severity if has_it else None


def _match(issue: Issue, case: Case, found: RuleFinding, severity: Severity) -> KnownIssueMatch:
    title, what = issue.title, found.what
    if issue.versions:
        if case.version is None:
            title += f" (if its vLLM is {issue.versions.replace('.dev0', '')})"
        else:
            what += f"{', ' if what else ''}vLLM {case.version}"
    change = issue.edit
    edit = found.edit or (Edit(change.kind, change.name, change.to) if change else None)
    severity, cause = found.severity or severity, issue.cause + found.and_also
    depends = issue.by_build and severity == "error" and case.built_by_owner
    if depends:
        severity = "warning"
        cause += f"; it depends on how {case.image} was built: one with such kernels can do it"
    return KnownIssueMatch(
        id=issue.id,
        severity=severity,
        title=title,
        found=what or "in this launch",
        cause=cause,
        fix=found.fix or issue.fix_for(case.names, case.launch.engine),
        source=issue.source,
        flag=issue.flag or (edit.written if edit else ""),
        edit=None if depends else edit,
    )


def _seen(when: When, case: Case) -> list[str] | None:
    """Return what matched, in words; None when something did not."""
    plain = [
        not when.moe or case.is_moe is True,
        when.moe is not False or case.is_moe is False,
        not when.hybrid or case.is_hybrid,
        when.speculative is None or bool(case.launch.speculative) == when.speculative,
        not when.drafts or case.matches(when.drafts, case.drafters),
        not when.stages or case.launch.pp > 1,
        when.several_nodes is None or case.several_nodes == when.several_nodes,
        not (when.on_gpu and case.launch.on_cpu),
        not when.by_hand or case.is_command,
        not when.in_docker or case.in_docker,
        not when.transformers or case.may_have_transformers(SpecifierSet(when.transformers)),
        not when.quantization or case.quantization in when.quantization,
        not when.family or case.matches(when.family, [case.family]),
        not when.model or case.matches(when.model, case.names),
        not case.matches(when.not_model, case.names),
        not when.image or case.matches(when.image, [case.image]),
        not case.matches(when.not_image, [case.image]),
        not any(case.launch.env.get(name) == value for name, value in when.not_env.items()),
        not case.matches(when.not_mounted, [v.target for v in case.launch.volumes]),
    ]
    if not all(plain):
        return None
    flags = _values(when.flags, case.flags, "--")
    env = _values(when.env, case.launch.env, "")
    docker = [_options(case, *given) for given in when.docker.items()]
    absent = any(_options(case, *given) for given in when.not_docker.items())
    if flags is None or env is None or not all(docker) or absent:
        return None
    words = [*flags, *env, *chain.from_iterable(docker)]
    words += [f"image {case.image}"] if when.image else []
    named = when.model or (when.family and not words) or (when.moe is not None and not words)
    return [*words, f"model {case.names[0]}"] if named and case.names else words


def _values(
    wanted: Mapping[str, Expected], given: Mapping[str, object], dashes: str
) -> list[str] | None:
    seen = []
    for name, value in wanted.items():
        if value is False:
            if name in given:
                return None
            continue
        if name not in given or not _fits(value, given[name]):
            return None
        seen.append(written(dashes + name, given[name]))
    return seen


def _options(case: Case, name: str, patterns: Sequence[str]) -> list[str]:
    """Return an option of `docker run` with each of its values that fits a pattern, as written."""
    values = (value for value in case.docker(name) if case.matches(patterns, [value]))
    return [f"--{name} {value}".rstrip() for value in values]


def _fits(wanted: Expected, value: object) -> bool:
    if wanted is True:
        return True
    choices = wanted if isinstance(wanted, list) else [wanted]
    return any(str(value).lower() == str(choice).lower() for choice in choices)


def written(name: str, value: object) -> str:
    """Return a flag or variable as it is written."""
    if value is True:
        return name
    return f"{name} {value}" if name.startswith("--") else f"{name}={value}"


# The known issues behind a rung of readiness that failed.


def live(rungs: Mapping[str, str], launch: Launch | None = None) -> list[KnownIssueMatch]:
    """Return the known issues that make rungs fail, errors first.

    Args:
        rungs: rungs of readiness that failed, with what was seen instead.
        launch: what serves. A rung can fail for many reasons: an issue that `lint` can find is
            named only when the launch has it.
    """
    possible = None if launch is None else {match.id for match in lint(launch)}
    found = []
    for issue in catalogue().values():
        failed = next((name for name in issue.rungs if name in rungs), None)
        if failed is not None and (possible is None or _may_be(issue, possible)):
            found.append(issue.match(rungs[failed]))
    return ordered(found)


def _may_be(issue: Issue, possible: set[str]) -> bool:
    found_by_lint = issue.rule or issue.when is not None
    return not found_by_lint or issue.id in possible
