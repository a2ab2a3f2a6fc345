"""The facts of a start that went well, and those that a log should have had.

The lines that engines log when they start, and those by which a log's engine is known, are data, in
`startup.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from spark_cluster.config.engines import DEFAULT, dialect


@dataclass(frozen=True)
class Pattern:
    """A line of the start: its name for people, a literal of it, what to read from it.

    Attributes:
        provisional: another pattern of the same name goes before it, although its line is later.
    """

    name: str
    has: str
    pattern: re.Pattern[str]
    shown: str = "{0}"
    provisional: bool = False


@dataclass(frozen=True)
class EngineLog:
    """The log of an inference engine.

    Attributes:
        name: of the engine, as people write it.
        patterns: the lines of its start, in their order.
        first: name of the fact that its first lines tell.
        up: literal of its log when it takes requests.
        end: literal of its log when it was asked to stop; empty where that is not known.
        signs: literals that no other engine logs.
        words: what vLLM's flags and variables in an advice are here, besides those of its
            `Dialect`.
    """

    name: str
    patterns: tuple[Pattern, ...]
    first: str
    up: str
    signs: Sequence[str]
    end: str = ""
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name of the engine in recipes and in the catalogue."""
        return self.name.lower()

    def in_its_words(self, text: str) -> str:
        """Return a text about vLLM with the flags and the name of this engine.

        >>> SGLANG.in_its_words("a lower --max-num-seqs, or a newer vLLM")
        'a lower --max-running-requests, or a newer SGLang'
        """
        if self.key == DEFAULT:
            return text
        flags = {f"--{name}": f"--{own}" for name, own in dialect(self.key).names.items()}
        words = {**flags, **self.words}
        known = sorted(map(re.escape, words), key=len, reverse=True)
        text = re.sub(rf"(?<![\w-])(?:{'|'.join(known)})(?![\w-])", lambda f: words[f[0]], text)
        return re.sub(r"\bvLLM\b(?! (?:with |from |\d))", self.name, text)


def _pattern(row: Mapping[str, Any]) -> Pattern:
    return Pattern(**{**row, "pattern": re.compile(row["pattern"])})


_FILE = tomllib.loads(Path(__file__).with_name("startup.toml").read_text(encoding="utf-8"))
_SHARED = {name: tuple(map(_pattern, rows)) for name, rows in _FILE["shared"].items()}


def _engine(lines: Sequence[Mapping[str, Any]], **about: Any) -> EngineLog:
    found = (_SHARED[row["shared"]] if "shared" in row else (_pattern(row),) for row in lines)
    return EngineLog(patterns=tuple(chain.from_iterable(found)), **about)


(REQUESTS,) = _SHARED["requests"]
ENGINES = tuple(_engine(**engine) for engine in _FILE["engine"])
VLLM, SGLANG = ENGINES
BY_KEY = {engine.key: engine for engine in ENGINES}
"""By the name of the engine in recipes."""


def writer(text: str) -> EngineLog | None:
    """Return the engine that logged a text; None where it has no sign of any."""
    return next((e for e in ENGINES if any(sign in text for sign in e.signs)), None)


_BY_LITERAL = tuple(
    (pattern.has, engine, pattern) for engine in ENGINES for pattern in engine.patterns
)

ANCHORS = tuple(
    dict.fromkeys(
        literal
        for engine in ENGINES
        for literal in (*engine.signs, *(pattern.has for pattern in engine.patterns))
    )
)

RAY = "Ray"
"""Among the speakers: Ray passes on what the ranks say."""


@dataclass
class Start:
    """The start-up facts of one or several logs of a launch.

    Attributes:
        engine: whose log it is; None until a line says so.
        cpu: it is the CPU build of vLLM, which logs less.
    """

    engine: EngineLog | None = None
    cpu: bool = False
    _found: dict[str, dict[str, str]] = field(default_factory=dict)
    _provisional: set[tuple[str, str]] = field(default_factory=set)

    @property
    def facts(self) -> Mapping[str, str]:
        """Name to what was logged first; as vLLM's where the engine is not known."""
        return self._found.get((self.engine or VLLM).name, {})

    def take(self, text: str) -> list[str]:
        """Read a line; return the literals that are not needed any more."""
        here = [(engine, pattern) for has, engine, pattern in _BY_LITERAL if has in text]
        self._recognise(text)
        for engine, pattern in here:
            self.cpu = self.cpu or "CPU KV cache" in text
            match = pattern.pattern.search(text)
            if match:
                self._keep(engine, pattern, pattern.shown.format(*match.groups()))
        return [a for a in ANCHORS if a in text and self._is_done(a)]

    def _keep(self, engine: EngineLog, pattern: Pattern, said: str) -> None:
        """Keep the first fact of a name; a provisional one until there is another."""
        facts, key = self._found.setdefault(engine.name, {}), (engine.name, pattern.name)
        if pattern.name not in facts or (key in self._provisional and not pattern.provisional):
            facts[pattern.name] = said
            (self._provisional.add if pattern.provisional else self._provisional.discard)(key)

    def says_up(self, text: str) -> bool:
        """Return True for the line with which the engine takes requests."""
        engines = (self.engine,) if self.engine else ENGINES
        return any(engine.up in text for engine in engines)

    def says_served(self, text: str) -> bool:
        """Return True for a line of a request that was answered: the engine is up."""
        return REQUESTS.pattern.search(text) is not None

    def says_end(self, text: str) -> bool:
        """Return True for the line with which the engine begins to stop because it was asked to."""
        engines = (self.engine,) if self.engine else ENGINES
        return any(engine.end and engine.end in text for engine in engines)

    def _recognise(self, text: str) -> None:
        if self.engine is None:
            self.engine = writer(text)

    def _is_done(self, anchor: str) -> bool:
        """Return True when no line with a literal can tell more."""
        signs = any(anchor in engine.signs for engine in ENGINES)
        if signs and self.engine is None:
            return False
        return all(
            pattern.name in self._found.get(engine.name, {})
            for has, engine, pattern in _BY_LITERAL
            if has == anchor
        )

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return (self.engine or VLLM).patterns

    def in_order(self) -> dict[str, str]:
        """Return the facts in the order of a start, whatever log they came from."""
        names = dict.fromkeys(pattern.name for pattern in self.patterns)
        return {name: self.facts[name] for name in names if name in self.facts}

    @property
    def size(self) -> int:
        """The number of ranks, as far as the logs tell."""
        found = [int(self.facts.get(name, "1")) for name in ("tensor parallel", "ranks")]
        return max(found)

    def missing(self, speakers: Mapping[str, int]) -> list[str]:
        """Return what a healthy start would have logged besides.

        Args:
            speakers: who spoke in these logs, for whether every rank is among them.
        """
        engine = self.engine or VLLM
        if engine.first not in self.facts:
            later = "up" in self.facts or "requests" in self.facts
            return ["the server's start: the log begins later"] if later else []
        missing = []
        follows = self._is_of_others(speakers)
        if "KV tokens" not in self.facts and not follows:
            missing.append("the size of the KV cache: the engine was not set up")
        if "up" not in self.facts and not follows:
            missing.append(f"`{engine.up}`: the server never took requests")
        if self.size > 1:
            missing += self._of_several(speakers)
        return missing

    def is_unfinished(self, speakers: Mapping[str, int]) -> bool:
        """Return True when the server began to start, and never took requests."""
        engine = self.engine or VLLM
        begun = engine.first in self.facts and "up" not in self.facts
        return begun and "requests" not in self.facts and not self._is_of_others(speakers)

    def is_whole(self, speakers: Mapping[str, int], *, was_serving: bool) -> bool:
        """Return True where the logs tell all that came before an end, and no rank's is missing.

        Args:
            was_serving: the logs show that the server was up before it ended; the start need not
                be in them then (rotation, `docker logs --tail`).
        """
        if (self.engine or VLLM).first in self.facts:
            return not self._ranks_missing(speakers, self.size)
        # The start tells the number of ranks; an engine has workers from two on.
        return was_serving and not self._ranks_missing(speakers, max(self.size, 2))

    def _is_of_others(self, speakers: Mapping[str, int]) -> bool:
        """Only later ranks speak: the first one logs the cache, and serves."""
        ranks = {name for name in speakers if name.startswith("rank ")}
        return self.size > 1 and bool(ranks) and "rank 0" not in ranks and RAY not in speakers

    def _of_several(self, speakers: Mapping[str, int]) -> list[str]:
        missing = []
        if "link" not in self.facts and not self.cpu:
            missing.append("the transport of NCCL between the nodes (NCCL_DEBUG=INFO shows it)")
        if lacking := self._ranks_missing(speakers, self.size):
            missing.append(f"the log of {lacking} of {self.size} ranks: give all ranks' logs")
        return missing

    def _ranks_missing(self, speakers: Mapping[str, int], size: int) -> int:
        """Return how many of a launch's ranks do not speak in these logs, although others do."""
        ranks = {name for name in speakers if name.startswith("rank ")}
        if not ranks or RAY in speakers:  # Ray shows all ranks in the head's log
            return 0
        return max(0, size - len(ranks))


# The account of memory that vLLM logs at the end of a start: "Actual usage is ...".

_ACTUAL = re.compile(
    r"Actual usage is ([\d.]+) GiB for (weight|consumed memory \(weights \+ non-torch\)), "
    r"([\d.]+) GiB for peak activation, (?:([\d.]+) GiB for non-torch memory, )?"
    r"and ([\d.]+) GiB for CUDAGraph memory"
)
"""Up to 0.26 at least weights stand alone; in 0.33 what is outside PyTorch is among them."""

_LOADED = re.compile(r"Model loading took ([\d.]+) GiB")
_BATCHED = re.compile(r"max_num_batched_tokens'?[=:] ?(\d{1,9})\b")

ACCOUNT_ANCHORS = ("Actual usage is", "Model loading took", "max_num_batched_tokens")
"""A literal of each line that is read."""


@dataclass(frozen=True)
class MemoryAccount:
    """What one rank took when it was measured.

    Attributes:
        weights_gib: of the model.
        runtime_gib: neither weights nor cache: activations, graphs, memory outside PyTorch.
        batched_tokens: --max-num-batched-tokens; None where the log does not say.
    """

    weights_gib: float
    runtime_gib: float
    batched_tokens: int | None = None


def account_in(lines: Iterable[str]) -> MemoryAccount | None:
    """Return the account of the rank with the largest runtime; None without such a line.

    vLLM logs none where the cache is given in bytes: then nothing is measured.
    """
    loaded: float | None = None
    batched: int | None = None
    found: list[tuple[float, float]] = []
    for line in lines:
        if match := _BATCHED.search(line):
            batched = int(match[1])
        if match := _LOADED.search(line):
            loaded = float(match[1])
        if (match := _ACTUAL.search(line)) and (account := _account(match, loaded)):
            found.append(account)
    if not found:
        return None
    runtime, weights = max(found)
    return MemoryAccount(weights, round(runtime, 3), batched)


def _account(found: re.Match[str], loaded: float | None) -> tuple[float, float] | None:
    """Return runtime and weights; None where they cannot be told apart."""
    first, activation, graphs = (float(found[group]) for group in (1, 3, 5))
    if found[2] == "weight":
        return activation + graphs + float(found[4] or 0), first
    if loaded is None:
        return None
    return max(0.0, first - loaded) + activation + graphs, loaded
