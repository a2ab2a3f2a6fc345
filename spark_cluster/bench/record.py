"""The record of a benchmark run: what was measured, on what, and everything to do it again.

A run is a folder with `run.json` (a `Record`), `raw/` (what the load generator wrote, a file a
cell), `telemetry.parquet` and `logs/`. Its JSON Schema is published as `bench-run`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spark_cluster.config.yamlfile import read_foreign
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.node.durable import write_file
from spark_cluster.node.replies import decoded

FORMAT: Final = "spark-cluster.bench.v1"

MetricName = Literal[
    "pp_tps", "pp_tps_request", "tg_tps", "tg_tps_request", "peak_tps", "peak_tps_request",
    "ttfr_ms", "est_ppt_ms", "e2e_ttft_ms",
    "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "request_throughput", "output_tps", "goodput",
    "acceptance", "acceptance_length",
    "score", "answer_ms",
]  # fmt: skip
"""Named as llama-benchy and `vllm bench serve` do; `_tps` is tokens a second, `_request` is per
request, `request_throughput` and `goodput` are requests a second, `acceptance` and `score` (right
answers) are shares (0-1), `answer_ms` is the time of a whole answer."""

Phase = Literal["before", "load_peak", "ready", "under_load", "after"]
"""Of a server, at which GPU memory is read."""


class Part(BaseModel):
    """A part of a record."""

    model_config = ConfigDict(extra="forbid", frozen=True)


SHOWN_PERCENTILES = ("p50", "p95", "p99")
"""Of those that are recorded: in `bench show` and in the report."""


class Metric(Part):
    """A measured figure.

    Attributes:
        values: one a run (repetition), in the order of the runs.
        percentiles: for open-loop runs, such as {"p50": 12.1, "p99": 40.0}.
    """

    mean: float
    std: float | None = None
    values: tuple[float, ...] = ()
    percentiles: dict[str, float] = Field(default_factory=dict)


class CellKey(Part):
    """The shape of a load, by which cells of two runs are matched.

    Attributes:
        prompt, output, depth: tokens; depth is what was in the context before the prompt.
        concurrency: requests at once (closed loop); 0 for an open loop.
        request_rate: requests a second (open loop); None for a closed loop.
        context_prefill: the cell measured the prefill of the depth itself.
        kind: `load`, or a table of answers (vision, tool calls).
    """

    prompt: int
    output: int
    depth: int = 0
    concurrency: int = 1
    request_rate: float | None = None
    context_prefill: bool = False
    kind: Literal["load", "vision", "tool_call"] = "load"


class QuestionResult(Part):
    """A question of a cell of vision or tool calls, and what was answered.

    Attributes:
        question: its name in the list of questions.
        right, asked: answers.
        answer_ms, ttft_ms: means; the time to the first token is known of streamed answers.
        wrong: why the first wrong answer is wrong; empty when all are right.
    """

    question: str
    streamed: bool
    right: int
    asked: int
    answer_ms: float | None = None
    ttft_ms: float | None = None
    wrong: str = ""


GONE = {"replicas", "overlap"}
"""Fields of a cell in records of earlier versions, which loaded each replica by itself."""


class CellResult(Part):
    """A cell and what came of it.

    Attributes:
        id: unique in the run; also the name of its raw file.
        setup: the id of the `Setup` that it was measured on.
        status: `failed` when values are missing, runs were dropped or answers were not coherent.
        reason: why it failed or was left out; empty when it is ok.
        attention: what to be careful about, such as "SM clock under 1.5 GHz for 12 s".
        started, finished: UTC.
        raw: files below the run's folder.
        questions: of vision and tool calls.
    """

    id: str
    setup: str
    key: CellKey
    runs: int
    status: Literal["ok", "failed", "skipped"]
    reason: str = ""
    attention: tuple[str, ...] = ()
    metrics: dict[MetricName, Metric] = Field(default_factory=dict)
    started: datetime | None = None
    finished: datetime | None = None
    raw: tuple[str, ...] = ()
    questions: tuple[QuestionResult, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name not in GONE}


class ProcessMemory(Part):
    """GPU memory of a process, as `nvidia-smi --query-compute-apps` prints it; MiB."""

    pid: int
    name: str
    used_mib: int | None


class VramReading(Part):
    """GPU memory of one node at one moment of a setup."""

    node: str
    phase: Phase
    processes: tuple[ProcessMemory, ...] = ()
    available_mib: int | None = None
    total_mib: int | None = None

    @property
    def used_mib(self) -> int:
        """The sum of the processes."""
        return sum(process.used_mib or 0 for process in self.processes)


class NodeRecord(Part):
    """A node as it was during the run: what a repetition must have alike.

    Attributes:
        firmware: of the ConnectX, each version once.
        bios: vendor, version and date of the system's firmware.
        mtu: of the link, bytes.
        environment: variables that the engine was given on it; secrets are left out.
    """

    name: str
    hardware: str = ""
    driver: str = ""
    firmware: str = ""
    bios: str = ""
    kernel: str = ""
    dgx: str = ""
    mtu: int | None = None
    hcas: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)


class Prediction(Part):
    """A figure that the plan predicted, with its range."""

    metric: MetricName
    key: CellKey
    low: float
    value: float
    high: float


class RecordedCheck(Part):
    """A check of the server's answers before it was measured, as `verify` has it.

    Attributes:
        status: `ok`, `failed`, `not applicable` or `not run`.
        found: what came; why it is not applicable or was not run.
        seconds: that it took.
    """

    id: str
    title: str
    streamed: bool
    status: Literal["ok", "failed", "not applicable", "not run"]
    found: str
    seconds: float


class ReplicaServer(Part):
    """A server of a setup that has several: what need not be alike.

    Attributes:
        flags: of the engine, as it was started: the share of the memory is each node's own.
        startup_s: seconds that it took to load; None where all were loaded at the same time.
    """

    nodes: tuple[str, ...] = Field(min_length=1)
    flags: tuple[str, ...] = ()
    startup_s: float | None = None


class Setup(Part):
    """A server that was measured: one recipe with its arguments on some nodes.

    Attributes:
        variant: of a sweep or a pair, such as "enforce-eager=true"; empty for the recipe itself.
        replicas: servers that ran at once behind one endpoint.
        flags: of the engine, as it was started.
        recipe_text: the recipe as it was resolved, YAML.
        image_digest: the image as Docker on the head names it.
        image_repo_digest: `NAME@sha256:...` under which a registry has it; empty for an image
            that was loaded or built.
        versions: program to version (vllm, torch, nccl, ray, docker, ...).
        verified: rungs of readiness that held when it came up.
        checks: of its answers, where the suite has `verify: true`.
        logs: files below the run's folder with what the engine printed while it started.
        servers: each of several replicas; empty for one. `flags` are then those of the first,
            `startup_s` is until all were loaded.
    """

    id: str
    recipe: str
    model: str
    model_revision: str = ""
    quantization: str = ""
    kv_cache_dtype: str = ""
    engine: str = "vllm"
    executor: str = ""
    tp: int
    replicas: int = 1
    variant: str = ""
    nodes: tuple[str, ...]
    flags: tuple[str, ...] = ()
    recipe_text: str = ""
    image_digest: str = ""
    image_repo_digest: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    vram: tuple[VramReading, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    startup_s: float | None = None
    verified: tuple[str, ...] = ()
    checks: tuple[RecordedCheck, ...] = ()
    logs: tuple[str, ...] = ()
    servers: tuple[ReplicaServer, ...] = ()


class Tool(Part):
    """A load generator and the settings that change what it measures."""

    name: str
    version: str
    latency_mode: str = ""
    prefix_caching: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)


class Repeats(Part):
    """The run that a run repeats: its servers and loads are those of that record.

    Attributes:
        id: of that run.
        sha256: of its record, which lies next to this one as `repeated.json`.
        images: server to the digest that its image is pinned to in this run.
    """

    id: str
    sha256: str
    images: dict[str, Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]] = Field(
        default_factory=dict
    )


class Record(Part):
    """A benchmark run.

    Attributes:
        id: of the run, also its folder's name.
        suite_text: the suite as it was run, JSON.
        client: node from which the load came.
        round_trip_ms: from client to server: the median of a few TCP connections.
        project_commit: state of the user's project folder, such as "3f2a91c (changed)".
        command: words that repeat it.
        recipes: names, as they were given or as the suite has them.
        repeats: the run that was run again; None for a run of one's own suite.
    """

    format: Literal["spark-cluster.bench.v1"] = FORMAT
    id: str
    suite: str
    suite_text: str = ""
    spark_cluster: str
    started: datetime
    finished: datetime | None = None
    status: Literal["running", "complete", "stopped", "failed"]
    tool: Tool
    client: str = ""
    round_trip_ms: float | None = None
    nodes: tuple[NodeRecord, ...] = ()
    setups: tuple[Setup, ...]
    cells: tuple[CellResult, ...]
    project_commit: str = ""
    command: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    repeats: Repeats | None = None


# -- reading and writing: what is written is whole, what is read may be somebody else's ------------

T = TypeVar("T", bound=BaseModel)

RECORD = "run.json"
TELEMETRY = "telemetry.parquet"
REPORT = "report"
"""Folder of the run's report."""
PAGE = "report.html"
"""In that folder: the report as a page."""

MAX_BYTES = 256 * 1024**2
"""Of a document; the result of an hour with a figure for every token stays below this."""
MAX_NUMBER = 1e15
"""Nothing that is measured comes near it; a plot of more fails in ways that help no one."""


MOST = {"cells": 20_000, "setups": 200, "nodes": 64}
"""More than any run has; a page of more would be of no use, and its making without an end."""

LARGEST = 1e30
"""A figure is smaller: sums and products of those that a foreign file gives stay finite."""

LATEST = 1e11
"""UNIX seconds that no clock shows: a node's file is foreign input."""


def load_record(run: Path) -> Record:
    """Read the record of a run, from its folder or the file itself.

    It may be somebody else's: characters that do not print are replaced in all of its texts.

    Raises:
        UsageError: there is none.
        InvalidFile: it is no JSON, does not fit the schema of a record, or is of another format.
    """
    hint = (
        f"give the folder of one run, which has a {RECORD}; `spark-cluster bench fetch` brings its "
        "results from the nodes"
    )
    path = run / RECORD if run.is_dir() else run
    record = read_document(path, Record, "a record of a run", FORMAT, hint)
    for name, most in MOST.items():
        if (count := len(getattr(record, name))) > most:
            raise InvalidFile(f"{count:,} {name} are more than {most:,}", where=str(path))
    return record


def read_document(path: Path, model: type[T], what: str, format: str, hint: str) -> T:
    """Read a JSON document of ours, which may be somebody else's.

    Args:
        what: it is, for errors.
        format: that it names.
        hint: where to find one.

    Raises:
        UsageError: there is none.
        InvalidFile: it is no JSON, does not fit the schema, or is of another format.
    """
    try:
        read = read_foreign(path, MAX_BYTES, what)
        data = _clean(json.loads(read, parse_constant=_refuse_constant))
        if isinstance(data, dict) and data.get("format") != format:
            found = str(data.get("format"))[:40]
            raise InvalidFile(f"format: found {found!r}, expected '{format}'", where=str(path))
        return model.model_validate(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=hint) from None
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except RecursionError:
        why = "nested too deeply"
    except ValueError as error:
        why = str(error)
    raise InvalidFile(f"not {what}: {why}", where=str(path))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): _clean(item) for key, item in value.items()}
    if isinstance(value, int | float) and not abs(value) < MAX_NUMBER:
        shown = "a number" if isinstance(value, int) or not math.isfinite(value) else f"{value:g}"
        raise ValueError(f"{shown} is out of range")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def save_record(record: Record, folder: Path) -> None:
    """Write the record of a run; it is there whole or as it was before."""
    save_document(record, folder / RECORD)


def save_document(document: BaseModel, path: Path) -> None:
    """Write a document, and the folder that it is in; it is there whole or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, (document.model_dump_json(indent=1) + "\n").encode(), mode=0o644)


# -- what others wrote -----------------------------------------------------------------------------


def printable(text: str) -> str:
    """The text without control characters, overrides of the writing direction and halves of pairs.

    Neither HTML nor XML can hold all of them, and none is worth showing.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def json_of(files: Mapping[str, str], name: str) -> dict[str, Any] | str:
    """Return the JSON object of a file, or why there is none.

    Args:
        files: their texts by name.
    """
    if name not in files:
        return f"it wrote no result ({name})"
    data = decoded(files[name])
    if data is None:
        return f"{name} is not JSON; it may have been cut while it was written"
    return data if isinstance(data, dict) else f"{name}: expected a JSON object"


def number(value: object) -> float | None:
    """Return a number below LARGEST, as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST else None


def moment(seconds: float | None) -> datetime | None:
    """Return the time of UNIX seconds; None for what no clock shows."""
    if seconds is None or not 0 < seconds < LATEST:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def numbers(values: object) -> list[float]:
    """Return the numbers of a list; what is not one counts as missing."""
    if not isinstance(values, list):
        return []
    return [found for value in values if (found := number(value)) is not None]
