"""The sections of a recipe file and the kinds of models; `recipe.py` puts them together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from spark_cluster.config.ports import EnginePorts
from spark_cluster.config.schema import (
    VARIABLE,
    LaptopPath,
    NodePath,
    Pattern,
    Port,
    Schema,
    laptop_file,
    matching,
)
from spark_cluster.config.secret import looks_secret
from spark_cluster.config.yamlfile import described, table_beside
from spark_cluster.errors import Refused
from spark_cluster.node import paths
from spark_cluster.node.values import PINNED

# Kinds of models by what they answer, how a launch shows them, and what shows that each works.

ModelKind = Literal["chat", "embedding", "reranking", "transcription", "speech", "image", "video"]
"""Chat includes completions and models that see pictures; reranking includes other scores."""

MODEL_KINDS: tuple[ModelKind, ...] = get_args(ModelKind)

ReadinessCheck = Literal[
    "answer",
    "coherence",
    "tool_call",
    "reasoning",
    "vision",
    "short_answers",
    "logprobs",
    "tool_use",
    "structured_output",
    "concurrency",
    "context",
    "embedding",
    "reranking",
    "transcription",
]

_FILE: dict[ModelKind, dict[str, Any]] = table_beside(__file__, "model_kind.toml")
CHECKS_OF_KIND: Mapping[ModelKind, tuple[ReadinessCheck, ...]] = {
    kind: tuple(_FILE[kind]["checks"]) for kind in MODEL_KINDS if "checks" in _FILE[kind]
}
"""The readiness checks that a kind has, its default first; a kind without any is not served."""

NOT_SERVED: Mapping[ModelKind, str] = {
    kind: _FILE[kind]["instead"] for kind in MODEL_KINDS if "instead" in _FILE[kind]
}
"""What to use instead for the kinds that are recognised and refused."""

LONGEST_NAME = 200
"""Characters of a name that are looked at; one of the hub has 96 at most."""

_TASKS = {task: kind for kind, about in _FILE.items() for task in about.get("tasks", ())}


def kind_of_flags(flags: Mapping[str, Any]) -> ModelKind | None:
    """Return the kind that an engine's flags (without dashes) ask for; None when none does."""
    for flag in ("task", "convert"):
        if found := _TASKS.get(str(flags.get(flag, "")).lower()):
            return found
    overridden = json_object(flags.get("hf-overrides")).get("architectures")
    if isinstance(overridden, list) and (found := kind_of_architectures(map(str, overridden))):
        return found
    if flags.get("runner") == "generate":
        return "chat"
    pooling = flags.get("runner") == "pooling" or flags.get("is-embedding") is True
    return "embedding" if pooling else None


def kind_of_architectures(names: Iterable[str]) -> ModelKind | None:
    """Return the kind that the architectures of a model's config show; None when none does."""
    return next(filter(None, (_showing("architectures", name) for name in names)), None)


def _showing(what: str, text: str) -> ModelKind | None:
    """Return the first kind whose pattern is in a text; of a long one in its end."""
    text = text[-LONGEST_NAME:]
    known = ((kind, about[what]) for kind, about in _FILE.items() if what in about)
    return next((kind for kind, pattern in known if re.search(pattern, text)), None)


def kind_of_name(name: str) -> ModelKind | None:
    """Return the kind that the last part of a repository's name shows; None when it does not."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    return _showing("names", last)


def inferred_kind(
    flags: Mapping[str, Any], model: str, architectures: Iterable[str] = ()
) -> ModelKind:
    """Return the kind of a launch: as its flags, else architectures, else name show; or chat.

    `--runner pooling` alone says only that it does not generate: an architecture or a name that
    says more goes before it.
    """
    asked = kind_of_flags(flags)
    shown = kind_of_architectures(architectures) or kind_of_name(model)
    if asked == "embedding" and shown == "reranking" and not {"task", "convert"} & flags.keys():
        return shown
    return asked or shown or "chat"


def first_readiness_check(kind: object) -> ReadinessCheck:
    """Return the rung of a kind where a recipe names none; of what is no kind, that of chat."""
    return next((rungs[0] for name, rungs in CHECKS_OF_KIND.items() if name == kind), "answer")


def must_be_served(kind: ModelKind, what: str) -> None:
    """Look whether models of this kind are served at all.

    Args:
        what: the recipe or the model, for the message.

    Raises:
        Refused: they are not; with what to use instead.
    """
    if kind not in CHECKS_OF_KIND:
        raise Refused(
            f"{what} is of kind {kind}, which is not served here: `vllm serve` generates none "
            "of it, and no check could tell a right answer from a wrong one",
            hint=f"use {NOT_SERVED[kind]}; if the kind is inferred wrongly, write `kind: chat` "
            "(or another) into the recipe",
        )


def json_object(value: object) -> Mapping[str, Any]:
    """Return an argument that is an object, or the JSON text of one; empty for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


MOST_NODES = 64


class TensorParallel(Schema):
    """The tensor-parallel sizes: the numbers of nodes that can share each layer."""

    min: int = Field(default=1, ge=1, le=MOST_NODES)
    """fewest nodes it fits on"""
    max: int = Field(
        default=2,
        ge=1,
        le=MOST_NODES,
        description=f"most nodes it can be split over; {MOST_NODES}: no limit is known",
    )
    default: int | None = Field(default=None, ge=1, le=MOST_NODES)
    """size when --tp is not given (default: the largest power of two, or `max`, that there are
    nodes for)"""

    @model_validator(mode="after")
    def _ordered(self) -> TensorParallel:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        if self.default is not None and not self.min <= self.default <= self.max:
            raise ValueError(
                f"default ({self.default}) is outside of min ({self.min}) to max ({self.max})"
            )
        return self

    @property
    def unlimited(self) -> bool:
        """True if nothing says over how many nodes it can be split at most."""
        return self.max == MOST_NODES

    @property
    def usual(self) -> tuple[int, ...]:
        """The sizes to look at when none is named, up to `max`, or to two Sparks or the default.

        They are powers of two and what is named here: a layer's heads are divided evenly, and those
        of nearly every model by no other size, such as three.
        """
        last = max(2, self.min, self.default or 1) if self.unlimited else self.max
        named = {self.min, last, self.default or self.min}
        powers = {1 << power for power in range(last.bit_length())}
        return tuple(sorted(size for size in named | powers if self.min <= size <= last))

    def size_for(self, nodes: int) -> int:
        """Return the size when none is asked for, with so many nodes; at least 1.

        The largest of the usual ones that the nodes suffice for, up to the default.
        """
        most = self.default or max(self.usual)
        return max((size for size in self.usual if size <= min(nodes, most)), default=max(1, nodes))

    def __str__(self) -> str:
        if self.unlimited:
            return f"{self.min} or more"
        return f"{self.min}" if self.min == self.max else f"{self.min} to {self.max}"


EngineValue = str | int | float | bool | list[Any] | dict[str, Any]

PORTS = EnginePorts()
_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9.]+)*")

LARGEST = 2**64
"""No flag of vLLM takes a larger number (a seed takes this one)."""


def _flag(text: str) -> str:
    fixed = text.strip().lstrip("-").replace("_", "-")
    if text != fixed:
        raise ValueError(f"found {text!r}; did you mean '{fixed}'?")
    if not _FLAG.fullmatch(text):
        raise ValueError(f"found {text!r}, expected a flag without dashes such as max-model-len")
    return text


def why_no_engine_value(value: object) -> str:
    """Return why no flag of an engine can have this value in a recipe; empty when one can."""
    if value is False or value is None:
        return f"found {described(value)}; leave the flag out, or write its no- form with true"
    if isinstance(value, int | float) and not abs(value) < LARGEST:
        return f"found {described(value)}, expected a number below 2**64"
    if isinstance(value, list) and not all(isinstance(v, str | int | float) for v in value):
        return "found a list with more than text and numbers"
    return ""


def _engine_value(value: Any) -> Any:
    if why := why_no_engine_value(value):
        raise ValueError(why)
    return value


class FromLaptop(Schema):
    """A secret that a recipe refers to: the value is a variable of the laptop's environment."""

    env: str
    """environment variable of the laptop"""


def _as_text(value: Any) -> Any:
    """Accept numbers: `OMP_NUM_THREADS: 1` can only mean one thing; `true` could mean several."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _env_name(text: str) -> str:
    # What stands here by mistake may be the secret itself: never repeat it.
    if not VARIABLE.fullmatch(text) or looks_secret(text):
        raise ValueError("expected {env: NAME}, the name of a variable (value is not shown)")
    return text


def _environment_value(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) != {"env"} or not isinstance(value["env"], str):
            raise ValueError("expected a text, or {env: NAME} for a secret (not shown)")
        return FromLaptop(env=_env_name(value["env"]))
    text = _as_text(value)
    if not isinstance(text, str | FromLaptop):
        raise ValueError(f"found {described(value)}, expected text; put it in quotes")
    return text


Flag = Annotated[str, AfterValidator(_flag)]
EngineArg = Annotated[EngineValue, BeforeValidator(_engine_value)]
Variable = Annotated[str, matching(VARIABLE.pattern, "the name of an environment variable")]
EnvironmentValue = Annotated[
    str | FromLaptop,
    BeforeValidator(_environment_value, json_schema_input_type=str | int | float | FromLaptop),
]


Quantization = Literal["bf16", "fp8", "fp8-online", "nvfp4", "mxfp4", "awq-int4", "gptq-int4"]
"""How the weights lie in memory; `fp8-online` is read as BF16 and quantized while loading."""


class InHubCache(Schema):
    """What may be kept in the nodes' hub cache, where its folder is known with its revision."""

    _folder: str = PrivateAttr(default="")

    def at(self, folder: str) -> Self:
        """Return it with the folder of its revision."""
        copy = self.model_copy()
        copy._folder = folder
        return copy


class Model(InHubCache):
    """The model and where it lies."""

    name: str = Field(min_length=1)
    """repository on the hub, or a name of your own"""
    source: Literal["hub", "directory"] = "hub"
    """hub: downloaded; directory: copied from the laptop"""
    revision: str = Field(default="main", min_length=1)
    """branch, tag or commit"""
    path: NodePath | None = None
    """folder on the nodes (default: the hub cache of the nodes; of a directory /srv/models/ and the
    name)"""
    directory: LaptopPath | None = None
    """folder on the laptop, for source: directory"""
    served_name: str = Field(min_length=1)
    """name that clients ask for"""
    base: str | None = Field(default=None, min_length=1)
    """the model that this is a build of, when its geometry is to be known by it"""
    quantization: Quantization | None = None
    """how the weights lie in memory (default: as its config says)"""
    weights_gib: float | None = Field(default=None, gt=0)
    """memory of the weights as a server logged it, GiB, TP=1"""

    @model_validator(mode="after")
    def _directory_given(self) -> Model:
        if self.source == "directory" and self.directory is None:
            raise ValueError("source: directory needs 'directory', the folder on the laptop")
        if self.source == "hub" and self.directory is not None:
            raise ValueError("'directory' is for source: directory; found source: hub")
        return self

    @property
    def in_hub_cache(self) -> bool:
        """True if it is kept in the nodes' hub cache, not in a folder of its own."""
        return self.source == "hub" and self.path is None

    @property
    def node_path(self) -> str:
        """The folder on the nodes, which is also the path inside the containers.

        Of a model in the hub cache it is known with its revision (`at`), and its name before.
        """
        if self.in_hub_cache:
            return self._folder or self.name
        return self.path or f"{paths.MODELS_FOLDER}/{self.name.replace('/', '--')}"


class Venv(Schema):
    """The virtual environment of the runtime `venv`, on each node."""

    path: NodePath
    """folder on the nodes"""
    requirements: list[str] = Field(default=[])
    """what it is made of, pinned; without any it must be there"""
    python: str = Field(default="python3", pattern=r"^[A-Za-z0-9/][\w./-]*$")
    """what it is made with"""

    @field_validator("requirements")
    @classmethod
    def _pinned(cls, requirements: list[str]) -> list[str]:
        for line in requirements:
            if not line.startswith("--") and not PINNED.fullmatch(line):
                raise ValueError(f"found {line!r}, expected NAME==VERSION or NAME @ URL")
        return requirements


class Mount(Schema):
    """A folder of the nodes that the containers see."""

    source: NodePath
    """folder or file on the node"""
    target: NodePath
    """where the containers see it"""
    read_only: bool = True
    """whether they may only read it"""

    @property
    def volume(self) -> str:
        """The value for `docker run --volume`."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


class Ray(Schema):
    """The settings of the Ray nodes."""

    port: Port = PORTS.gcs
    """of the head's control service"""
    dashboard_port: Port = PORTS.dashboard
    """of the dashboard, on loopback"""
    first_port: Port = PORTS.first_port
    """first of nine that follow each other, for Ray's services on each node"""
    min_worker_port: Port = PORTS.min_worker_port
    """first port of workers"""
    max_worker_port: Port = PORTS.max_worker_port
    """last port of workers"""
    object_store_memory: int | None = Field(default=None, ge=80_000_000)
    """bytes for the object store of each node"""
    num_cpus: int | None = Field(default=None, ge=1)
    """CPUs to declare on each node"""
    # 10 to 20 seconds were measured for two nodes.
    join_timeout_s: float = Field(default=120, gt=0)
    """longest wait until all nodes have joined Ray, seconds"""

    @model_validator(mode="after")
    def _range(self) -> Ray:
        if self.max_worker_port - self.min_worker_port < 20:
            raise ValueError("max_worker_port leaves workers fewer than 20 ports")
        if clash := self.ports.clash():
            raise ValueError(f"ports {clash}")
        return self

    @property
    def ports(self) -> EnginePorts:
        """The ports of the engine."""
        return EnginePorts(
            gcs=self.port,
            dashboard=self.dashboard_port,
            first_port=self.first_port,
            min_worker_port=self.min_worker_port,
            max_worker_port=self.max_worker_port,
        )


class Probe(Schema):
    """A question whose answer shows that the model is really working."""

    question: str = Field(min_length=1)
    """what is asked, at temperature 0"""
    expect: str = Field(min_length=1)
    """what the answer must contain, in any case"""
    max_tokens: int = Field(default=16, ge=1)
    """longest answer, tokens"""


class Patch(Schema):
    """A file that is mounted over one of the image's own."""

    file: str = Field(min_length=1)
    """its path, in the model's folder or on the laptop"""
    origin: Literal["model", "laptop"] = "model"
    """model: comes with the model; laptop: next to the recipe"""
    target: NodePath
    """the file of the image that it replaces"""
    why: str = Field(min_length=1)
    """what it repairs"""

    @model_validator(mode="after")
    def _absolute(self, info: ValidationInfo) -> Patch:
        """Have a file of the laptop begin at the folder of the recipe."""
        if self.origin == "model" or info.context is None:
            return self
        return self.model_copy(update={"file": laptop_file(self.file, info)})


class Drafter(InHubCache):
    """Speculative decoding with a small model, or with the model's own extra head."""

    method: str = Field(min_length=1)
    """as vLLM calls it: mtp, eagle3, ngram ..."""
    name: str | None = None
    """repository of the small model on the hub"""
    revision: str = Field(default="main", min_length=1)
    """branch, tag or commit"""
    path: NodePath | None = None
    """folder on the nodes"""
    tokens: int = Field(ge=1, le=32)
    """tokens drafted in each step"""
    options: dict[str, EngineValue] = Field(default={})
    """further settings for vLLM, such as moe_backend: triton"""
    acceptance: list[Annotated[float, Field(ge=0, le=1)]] = Field(default=[])
    """measured acceptance of each position, given the ones before"""

    @field_validator("options")
    @classmethod
    def _not_fields(cls, options: dict[str, EngineValue]) -> dict[str, EngineValue]:
        for name in ("method", "model", "num_speculative_tokens", "revision"):
            if name in options:
                raise ValueError(f"'{name}' is a field of the drafter itself")
        return options

    @property
    def in_hub_cache(self) -> bool:
        """True if it is kept in the nodes' hub cache, not in a folder of its own."""
        return self.name is not None and self.path is None

    @property
    def node_path(self) -> str | None:
        """The folder on the nodes, as of a `Model`; None where the model drafts by itself."""
        return self.path or self._folder or self.name

    @property
    def config(self) -> dict[str, Any]:
        """The value for `--speculative-config`."""
        model = {"model": self.node_path} if self.node_path else {}
        fields = {"method": self.method, **model, "num_speculative_tokens": self.tokens}
        return {**fields, **self.options}


class Readiness(Schema):
    """The conditions for calling it ready, beyond the right answer."""

    rungs: list[ReadinessCheck] = Field(default=["answer"], min_length=1)
    """what is asked, in this order (default: the first of the kind)"""
    toy: bool = False
    """the model can do nothing else: `verify` asks only for `rungs`, unless `--only` names more"""
    log_expect: list[Pattern] = Field(default=[])
    """regular expressions that the engine's log must match"""
    log_forbid: list[Pattern] = Field(default=[])
    """regular expressions that it must not match"""


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"found {text!r}, expected versions such as '>=0.19,<0.23'") from None
    return text


Versions = Annotated[str, AfterValidator(_specifier)]


class Vllm(Schema):
    """The versions of vLLM."""

    version: str | None = Field(default=None, min_length=1)
    """what the image has, such as 0.19.0"""
    supported: Versions = ""
    """versions that can serve it, such as '>=0.19,!=0.23.*'"""
    tested: list[str] = Field(default=[])
    """versions that are known to have served it"""


class Measured(Schema):
    """A published or own measurement of this very configuration."""

    source: str = Field(min_length=1)
    """who measured it"""
    tp: int = Field(default=1, ge=1)
    """tensor-parallel size"""
    concurrency: int = Field(default=1, ge=1)
    """requests at a time"""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """tokens of the prompt"""
    depth: int = Field(default=0, ge=0)
    """tokens that were in the cache before"""
    decode_tok_s: float | None = Field(default=None, gt=0)
    """tokens/s of one request"""
    total_tok_s: float | None = Field(default=None, gt=0)
    """tokens/s of all requests"""
    prefill_tok_s: float | None = Field(default=None, gt=0)
    """prompt tokens/s"""
    ttfr_ms: float | None = Field(default=None, gt=0)
    """ms to the first response"""
    vram_mib: list[int] = Field(default=[])
    """MiB held on each node, the head first"""
    note: str = ""
    """what to know about it"""


class NotCarriedOver(Schema):
    """A part of the source that the recipe does not have."""

    what: str = Field(min_length=1)
    """the part, as the source has it"""
    why: str = Field(min_length=1)
    """why the recipe does not have it"""
    consequence: str = Field(min_length=1)
    """what does not work, or is different"""
    blocks: bool = False
    """it cannot work without: `plan` says so and `up` refuses until the entry is removed"""

    def __str__(self) -> str:
        return f"not carried over: {self.what} ({self.why}); {self.consequence}"
