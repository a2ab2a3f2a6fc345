"""Verification in depth of a server that runs: every check of its kind, each with a verdict.

The answers of the last one of each recipe and size are kept on the laptop and compared. A model
that is split over two nodes is the same model: at temperature 0 it gives the answers that it gives
on one, but for rounding.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from spark_cluster.config.folders import keeping
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import ModelKind
from spark_cluster.config.schema import Document, printed
from spark_cluster.config.yamlfile import nearest
from spark_cluster.engine import answer_checks, readiness_checks, vram
from spark_cluster.engine.answer_checks import AnswerCheck, Client
from spark_cluster.engine.deployment import Endpoint, running
from spark_cluster.engine.engine import Engine, engine
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.proxy import ModelServer, models_of
from spark_cluster.engine.readiness import container_state, look_at_endpoint
from spark_cluster.engine.runtime import ask_health
from spark_cluster.engine.vram import NodeVram
from spark_cluster.errors import Failed, SparkClusterError, UsageError, VerificationFailed
from spark_cluster.node import durable
from spark_cluster.node.containers import OVERRIDES, RECIPE, TP, ContainerState
from spark_cluster.node.health import HEALTH_UNDER_LOAD_S, Life, judge
from spark_cluster.node.replies import at, decoded, made_of
from spark_cluster.runner.events import Progress
from spark_cluster.runner.play import Play

COMPARED = ("answer", "short-answers", "structured-output", "vision-colour")
"""Checks whose answers are short enough to be the same at every size."""

FORMAT = 1

LARGEST = 1_000_000
"""Bytes of a file that is read."""


@dataclass(frozen=True)
class OtherAnswer:
    """A check whose answer is another one at another size.

    Attributes:
        id: of the check.
        now: the answer of this verify.
        before: the answer at the other size.
    """

    id: str
    now: str
    before: str


@dataclass(frozen=True)
class ComparedSize:
    """The answers of this verify next to those of another tensor-parallel size.

    Attributes:
        tp: the other size.
        at: when it was verified, ISO 8601 in UTC.
        same: checks with the same answer.
        different: those with another one.
    """

    tp: int
    at: str
    same: tuple[str, ...]
    different: tuple[OtherAnswer, ...]


@dataclass(frozen=True)
class KeptAnswers:
    """The answers of one verify.

    Attributes:
        recipe: its name.
        text: hash of what was served, recipe and overrides; others' answers are not compared.
        answers: check to its answer, of those that held.
        at: ISO 8601 in UTC; now by default.
    """

    recipe: str
    tp: int
    text: str
    answers: Mapping[str, str] = field(default_factory=dict)
    at: str = field(
        default_factory=lambda: datetime.fromtimestamp(int(time.time()), UTC).isoformat()
    )

    def compared(self, folder: Path) -> tuple[ComparedSize, ...]:
        """Return this one next to what is kept of the same server at other sizes."""
        found = (read(path) for path in sorted(folder.glob(f"{self.recipe}.tp*.json")))
        return tuple(
            self._next_to(kept)
            for kept in found
            if kept is not None
            and (kept.recipe, kept.text) == (self.recipe, self.text)
            and kept.tp != self.tp
            and self.answers.keys() & kept.answers.keys()
        )

    def _next_to(self, kept: KeptAnswers) -> ComparedSize:
        both = [check for check in self.answers if check in kept.answers]
        same = tuple(check for check in both if self.answers[check] == kept.answers[check])
        different = tuple(
            OtherAnswer(check, self.answers[check], kept.answers[check])
            for check in both
            if check not in same
        )
        return ComparedSize(kept.tp, kept.at, same, different)

    def keep(self, folder: Path) -> None:
        """Write it in place of the last one of this size; checks that did not run keep theirs.

        Raises:
            Failed: the file cannot be written.
        """
        path = folder / f"{self.recipe}.tp{self.tp}.json"
        last = read(path)
        known = last.answers if last is not None and last.text == self.text else {}
        new = replace(self, answers={**known, **self.answers})
        document = {"format": FORMAT, **asdict(new)}
        with keeping("the answers cannot be kept", path):
            durable.put_file(path, json.dumps(document, indent=1).encode())


def read(path: Path) -> KeptAnswers | None:
    """Return what a file keeps; None where it is not there or is none of ours."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        text = path.read_text(encoding="utf-8")
        found = TypeAdapter(KeptAnswers).validate_json(text, strict=True)
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
    return found if at(decoded(text), "format") == FORMAT else None


VerdictStatus = Literal["ok", "failed", "not applicable", "not run"]

NOT_PROMISED = "this model is a toy, and its recipe promises nothing of the kind; --only asks it"
"""Why `verify` leaves a check out."""

MEMORY_EVERY_S = 1.0
"""Seconds between two readings of GPU memory while the checks run."""


@dataclass(frozen=True)
class CheckVerdict:
    """The verdict of one check.

    Attributes:
        status: `ok`, `failed`, `not applicable` (the server cannot do it by its launch or by its
            own answer, and the recipe does not promise it; or the model is a toy), or `not run`
            (the server was lost).
        request, expected: what was asked, and what the answer must be.
        found: what came; why it is not applicable.
        fix: what to do about a failure.
        seconds: that it took.
    """

    id: str
    rung: str
    title: str
    streamed: bool
    status: VerdictStatus
    request: str
    expected: str
    found: str
    fix: str
    seconds: float


@dataclass(frozen=True)
class Verification(Document):
    """What `verify` found of a server.

    Attributes:
        recipe: the name on the server's label.
        tp: tensor-parallel size.
        other_sizes: the answers next to those of the last verify at other sizes.
        under_load: the largest reading of each node's GPU memory meanwhile.
    """

    model: str
    endpoint: str
    recipe: str
    tp: int
    kind: ModelKind
    verdicts: Annotated[tuple[CheckVerdict, ...], Field(serialization_alias="checks")]
    other_sizes: tuple[ComparedSize, ...] = ()
    under_load: tuple[NodeVram, ...] = ()

    @property
    def failed(self) -> tuple[CheckVerdict, ...]:
        """The checks that failed."""
        return tuple(verdict for verdict in self.verdicts if verdict.status == "failed")

    @printed
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    def count(self, status: VerdictStatus) -> int:
        """Return the number of checks with this status."""
        return sum(verdict.status == status for verdict in self.verdicts)


@dataclass(frozen=True)
class CheckSelection:
    """The checks that are wanted, by their ids or rungs; all without `only`."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def must_be_known(self) -> None:
        """Raises:
        UsageError: one of the names is no check and no rung.
        """
        by_name = readiness_checks.CHECKS_BY_NAME
        known = [*by_name, *(check.id for checks in by_name.values() for check in checks)]
        for name in (*self.only, *self.skip):
            if name not in known:
                near = nearest(name, known)
                every = f"there are: {', '.join(dict.fromkeys(known))}"
                raise UsageError(
                    f"unknown check {name}", hint=f"did you mean '{near}'?" if near else every
                )

    def asks(self, check: AnswerCheck, recipe: Recipe) -> bool:
        """Return whether a check is asked: of a toy, what its recipe promises or `only` names."""
        readiness = recipe.readiness
        return bool(self.only) or not readiness.toy or check.readiness in readiness.rungs

    def of(self, checks: Sequence[AnswerCheck]) -> tuple[AnswerCheck, ...]:
        """Return those that are wanted."""
        return tuple(
            check
            for check in checks
            if (not self.only or {check.id, check.readiness} & set(self.only))
            and not {check.id, check.readiness} & set(self.skip)
        )


@dataclass(frozen=True)
class RunningServer:
    """The server that runs, as its container's labels and command tell it."""

    endpoint: Endpoint
    recipe: str
    tp: int
    kind: ModelKind
    flags: dict[str, str] = field(default_factory=dict)
    overrides: str = ""
    program: str = SERVER


def running_server(play: Play, key: str | None, model: str | None = None) -> RunningServer:
    """Return the server that runs on the head, or that of one of several models.

    Args:
        key: the endpoint's API key, when it has one.
        model: a name of the model, where there are several.

    Raises:
        Failed: none runs, or none that `up` started.
        UsageError: there are several models, and none of them is named.
    """
    state, description = look_at_endpoint(play.session(play.head))
    program = SERVER
    if models := models_of(description):
        chosen = _chosen(models, model)
        program = chosen.program
        state = container_state(play, program, chosen.node)
    elif model is not None:
        raise UsageError(f"--model {model}: the endpoint has one model", hint="leave --model out")
    _must_serve(state, play.head.name, model)
    endpoint = running(state.labels, description, key)
    if endpoint is None:
        raise Failed(
            "the container's label names no endpoint",
            where=f"{play.head.name} {program}",
            hint="spark-cluster up starts it with its labels",
        )
    flags = {flag.lstrip("-"): value for flag, value in state.arguments().items()}
    recipe, tp, overrides = state.label(RECIPE), state.number(TP, 1), state.label(OVERRIDES)
    return RunningServer(endpoint, recipe, tp, state.kind, flags, overrides, program)


def _must_serve(state: ContainerState, head: str, model: str | None) -> None:
    life = judge(state).life
    if life is Life.UNLOADED:
        raise Failed(
            f"{model} is loaded on request, and is not loaded now",
            where=head,
            hint="ask the endpoint for it first: it answers 503 until it is loaded",
        )
    if life is not Life.SERVING:
        what = "nothing serves" if life is Life.ABSENT else f"the server is {state.status}"
        raise Failed(what, where=head, hint="spark-cluster up starts the server")


def _chosen(models: Sequence[ModelServer], model: str | None) -> ModelServer:
    """Return the server of the model that is named.

    Raises:
        UsageError: none of them is.
    """
    for server in models:
        if model in server.names:
            return server
    names = ", ".join(server.model for server in models)
    if model is None:
        raise UsageError(f"the endpoint has {len(models)} models", hint=f"--model NAME: {names}")
    raise UsageError(f"the endpoint has no model '{model}'", hint=f"there are: {names}")


def verify(
    play: Play,
    server: RunningServer,
    recipe: Recipe,
    selection: CheckSelection,
    *,
    patience_s: float = answer_checks.PATIENCE_S,
    context: int | None = None,
) -> Verification:
    """Run the checks of the server's kind, one after the other.

    Args:
        recipe: of the server; the checks of its rungs must hold, others may be not applicable. Of
            a toy these are not asked unless the selection names them.
        patience_s: seconds that one answer may take.
        context: longest prompt of the context check, tokens; None for the server's stated length.

    Raises:
        UsageError: no check of this kind is selected.
        SparkClusterError: the head was lost.
    """
    checks = selection.of(readiness_checks.of_kind(server.kind))
    if not checks:
        known = ", ".join(check.id for check in readiness_checks.of_kind(server.kind))
        raise UsageError(
            f"no check of a model of kind {server.kind} is selected", hint=f"there are: {known}"
        )
    client = readiness_checks.client_for(play, server.endpoint, recipe, server.program)
    client = replace(client, flags=server.flags, patience_s=patience_s, context=context)
    launch = _launch(recipe, server.tp)
    asked = [check for check in checks if selection.asks(check, recipe)]
    given = _verdicts(play, client, asked, recipe, launch)
    found = {verdict.id: verdict for verdict in given}
    where = server.endpoint
    verdicts = (found.get(c.id) or _verdict(c, "not applicable", NOT_PROMISED) for c in checks)
    return Verification(
        where.model, where.url, server.recipe, server.tp, server.kind, tuple(verdicts)
    )


def with_memory(play: Play, check: Callable[[], Verification]) -> Verification:
    """Return a verification with the GPU memory that was held while it ran.

    Raises:
        SparkClusterError: as `check`.
    """
    found, peak = vram.peak_while(play, check, MEMORY_EVERY_S)
    return replace(found, under_load=tuple(peak))


def with_other_sizes(
    found: Verification, server: RunningServer, recipe: Recipe, folder: Path
) -> Verification:
    """Return a verification next to those of other sizes, and keep its answers.

    Args:
        folder: of what is kept.

    Raises:
        Failed: the answers cannot be kept.
    """
    answers = {v.id: v.found for v in found.verdicts if v.status == "ok" and v.id in COMPARED}
    if not answers:
        return found
    text = "\n".join((recipe.model_dump_json(exclude_defaults=True), server.overrides))
    digest = hashlib.sha256(text.encode()).hexdigest()
    own = KeptAnswers(recipe.name, server.tp, digest, answers)
    own.keep(folder)
    return replace(found, other_sizes=own.compared(folder))


def _launch(recipe: Recipe, tp: int) -> Launch | None:
    """The launch by which known issues are looked for; None where the recipe has no such size."""
    try:
        return of_recipe(recipe, tp)
    except SparkClusterError:
        return None


def _verdicts(
    play: Play,
    client: Client,
    checks: Sequence[AnswerCheck],
    recipe: Recipe,
    launch: Launch | None,
) -> Iterator[CheckVerdict]:
    """Yield each check's verdict; once the server is lost the others are not run."""
    lost = ""
    for check in checks:
        if lost:
            yield _verdict(check, "not run", lost)
            continue
        play.bus.emit(Progress(play.head.name, "verify", check.title))
        begun = time.monotonic()
        promised = check.readiness in recipe.readiness.rungs
        try:
            found = check.run(client)
        except VerificationFailed as error:
            seconds = time.monotonic() - begun
            if isinstance(error, answer_checks.NotApplicable) and not promised:
                yield _verdict(check, "not applicable", error.message, seconds)
                continue
            if isinstance(error, answer_checks.RequestFailed) and error.status == 0:
                lost = _lost(client, engine(recipe.engine))
            known = (
                error
                if launch is None
                else readiness_checks.with_known(error, check.readiness, launch)
            )
            yield _verdict(check, "failed", known.message, seconds, known.hint)
        else:
            yield _verdict(check, "ok", found, time.monotonic() - begun)


def _lost(client: Client, serving: Engine) -> str:
    """Return why nothing more can be asked; empty when the server is healthy."""
    life, answer = ask_health(serving, client.endpoint, client.session, timeout=HEALTH_UNDER_LOAD_S)
    if life.serves:
        return ""
    return f"the server is gone: /health answers {answer.status or answer.reason}"


def _verdict(
    check: AnswerCheck, status: VerdictStatus, found: str, seconds: float = 0.0, fix: str = ""
) -> CheckVerdict:
    about = {"rung": check.readiness, "status": status, "found": found, "fix": fix}
    return made_of(CheckVerdict, vars(check), **about, seconds=round(seconds, 3))
