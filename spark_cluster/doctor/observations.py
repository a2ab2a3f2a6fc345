"""The question to a node, its answers, and the verdicts that checks give on them.

Answers are read on demand: a missing one is `NotSeen`, never empty. A project's own checks import
what they need from here, and `check` from `check.py`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from spark_cluster.config import fact_gathering
from spark_cluster.config.facts import Facts, Hca, Interface, Memory, Pins
from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.config.ports import EnginePorts
from spark_cluster.config.topology import cabled_port
from spark_cluster.config.yamlfile import table_beside
from spark_cluster.engine import firewall, ray
from spark_cluster.engine.link_check import Cabling
from spark_cluster.engine.names import PAUSE, PROGRAMS
from spark_cluster.engine.runtime import JOURNAL
from spark_cluster.issues.entries import Effect, shipped
from spark_cluster.node import confinement, containers, dockerd, paths
from spark_cluster.node.containers import ContainerState, parse_containers, with_logs
from spark_cluster.node.health import Completion
from spark_cluster.node.nvidia_smi import THROTTLE
from spark_cluster.runner.session import Output

# The result of a check: a status, what was found, and the known issue that explains it.

Status = Literal["ok", "warn", "fail", "unknown"]

ORDER: dict[Status, int] = {"fail": 0, "warn": 1, "unknown": 2, "ok": 3}
"""Problems first, then what could not be seen."""


class NotSeen(Exception):
    """Something that a check needs could not be seen; the text says what was tried."""


@dataclass(frozen=True)
class Verdict:
    """The answer of a check.

    Attributes:
        found: what is there, in words and figures.
        issue: id of the known issue that explains it; empty where only one can.
        fill: values for the placeholders of its cause and fix, e.g. PID.
    """

    status: Status
    found: str
    issue: str = ""
    fill: Mapping[str, str] = field(default_factory=dict)


def ok(found: str) -> Verdict:
    """Return the verdict that all is as it should be."""
    return Verdict("ok", found)


def warn(found: str, issue: str = "", **fill: str) -> Verdict:
    """Return the verdict that it works, but is at risk or slower than it could be."""
    return Verdict("warn", found, issue, fill)


def fail(found: str, issue: str = "", **fill: str) -> Verdict:
    """Return the verdict that it does not work, or far from how it should."""
    return Verdict("fail", found, issue, fill)


def unknown(tried: str) -> Verdict:
    """Return the verdict that it could not be seen, which is not the same as being fine."""
    return Verdict("unknown", tried)


@dataclass(frozen=True)
class CheckResult:
    """A verdict with all that belongs to it.

    Attributes:
        id: `area.what`, e.g. `link.twins-one-subnet`.
        node: its name, or the names of those that were compared, joined by `+`.
        found: what is there.
        title: what the check makes sure of.
        looked_at: where it looked.
        effect: what comes of it.
        issue: id of the known issue; empty when all is well, or nothing is known of it.
        cause, fix: the known issue's, for this node.
    """

    id: str
    node: str
    status: Status
    found: str
    title: str
    looked_at: str
    effect: Effect
    issue: str = ""
    cause: str = ""
    fix: str = ""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    @property
    def order(self) -> tuple[int, str, str]:
        """The sort key: problems first."""
        return ORDER[self.status], self.id, self.node


# The question to a node: one exchange for everything that the checks need.

LOG_LINES = 20000
"""How many lines at the end of a program's log are looked through."""

KEPT_LINES = 20
"""How many lines with a word are kept, the last ones."""

VERSIONS_CODE = """\
import importlib.metadata as metadata
for name in ("ray", "vllm"):
    try:
        print(f"{name}={metadata.version(name)}")
    except metadata.PackageNotFoundError:
        pass
"""

SCRIPTS = Path(__file__).with_name("scripts")
"""Small shell scripts that a node runs to answer several questions in one process. Each prints
plain text and ends with status 0 unless what it asks did not answer at all."""


@cache
def script(name: str) -> str:
    """Return a script's text, with the constants that it reads and the files that it sources."""
    text = _sourced(name)
    values = {"LOG_LINES": LOG_LINES, "KEPT_LINES": KEPT_LINES, "PAUSE": PAUSE}
    given = {**values, "PROGRAMS": " ".join(PROGRAMS)}
    lines = (f"{key}={shlex.quote(str(given[key]))}\n" for key in given if f"${key}" in text)
    return "".join(lines) + text


def _sourced(name: str) -> str:
    if name == "journal":
        return f'journal() {{ {JOURNAL} --lines "$LOG_LINES" --output short-iso-precise --utc; }}\n'
    text = (SCRIPTS / f"{name}.sh").read_text(encoding="utf-8")
    return re.sub(r"^\. ([a-z]+)\.sh\n", lambda found: _sourced(found[1]), text, flags=re.MULTILINE)


def shell(text: str, *words: str) -> tuple[str, ...]:
    """Return the argument list of a script; `words` are its `$1`, `$2` ..."""
    return ("sh", "-c", text, "doctor", *words)


GPU_LOAD = ",".join(("utilization.gpu", "clocks.sm", "power.draw", *THROTTLE.values()))
KERNEL_CHECK = re.compile(r"kernel\.|driver\.xid|memory\.refused")
OF_FAULTS = ("pc : ", "Comm: ", "[15b3:", "Out of memory: Killed")
"""Of the kernel's log besides faults: where it was and for whom, and functions of a ConnectX-7."""


@dataclass(frozen=True)
class NodeSource:
    """A source of the question.

    Attributes:
        label: how a person would ask for it.
        argv: a command, or several of which the first counts that is there.
        path: a file.
        tree: a glob of files.
        request: an HTTP request of the node to one of its own services.
        tool: the program that a command needs.
    """

    label: str
    argv: tuple[Any, ...] = ()
    path: str = ""
    tree: str = ""
    tool: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """The parameters of the questions.

    Attributes:
        user: the login user.
        log_words: what to look for in the logs of the engine's programs.
        model_paths: folders of models next to the usual ones.
        cache_root: folder of the engine's caches.
        dashboard: port of Ray's dashboard on the head's loopback.
        own: what checks of the project want to be looked at.
    """

    user: str = "root"
    log_words: Sequence[str] = ()
    model_paths: Sequence[str] = ()
    cache_root: str = CACHE_ROOT
    dashboard: int = EnginePorts().dashboard
    own: Mapping[str, NodeSource] = field(default_factory=dict)


def sources(context: Context) -> dict[str, NodeSource]:
    """Return all sources by name: of the project, of the facts, of `sources.toml`, and those that
    follow from what other modules know.
    """
    facts = {name: _source(name, given, {}) for name, given in fact_gathering.SOURCES.items()}
    return {**context.own, **facts, **_listed(context), **_of_modules(context)}


@cache
def labels() -> Mapping[str, str]:
    """Return how a person would ask for each source that is shipped, by its name."""
    return {name: source.label for name, source in sources(Context()).items()}


def question(context: Context) -> dict[str, Any]:
    """Return the request for the agent's `gather`."""
    found = sources(context)
    return {
        "commands": {name: s.argv for name, s in found.items() if s.argv},
        "files": {name: s.path for name, s in found.items() if s.path},
        "trees": {name: s.tree for name, s in found.items() if s.tree},
        "requests": {name: dict(s.request) for name, s in found.items() if s.request},
    }


def kernel_words() -> tuple[str, ...]:
    """Return what is looked for in the kernel's log: the signs of what its checks find."""
    about = [i for i in shipped().values() if any(map(KERNEL_CHECK.match, i.checks))]
    return tuple(dict.fromkeys([*(sign.has for issue in about for sign in issue.log), *OF_FAULTS]))


def _listed(context: Context) -> dict[str, NodeSource]:
    """The sources of the file `sources.toml`."""
    known = {
        "{user}": (context.user,),
        "{log_words}": context.log_words,
        "{kernel_words}": kernel_words(),
        "{cache_root}": (context.cache_root,),
        "{model_paths}": context.model_paths,
        "{unit_folder}": (paths.SYSTEMD_UNITS,),
        "{versions_code}": (VERSIONS_CODE,),
    }
    listed = table_beside(__file__, "sources.toml")
    return {name: _source(name, given, known) for name, given in listed.items()}


def _source(name: str, given: Mapping[str, Any], known: Mapping[Any, Sequence[str]]) -> NodeSource:
    words: Sequence[Any] = fact_gathering.COMMANDS.get(name) or given.get("argv", ())
    argv = tuple(word for each in words for word in known.get(each, (each,)))
    if "script" in given:
        argv = shell(script(given["script"]), *argv)
    path, tree = given.get("path", ""), given.get("tree", "")
    return NodeSource(given.get("label", path or tree), argv, path, tree, given.get("tool", ""))


def _of_modules(context: Context) -> dict[str, NodeSource]:
    """The sources whose commands and files are known elsewhere."""
    smi, asked = "nvidia-smi", ray.question(context.dashboard)
    load = (smi, f"--query-gpu={GPU_LOAD}", "--format=csv,noheader,nounits")
    devices = shell(confinement.SPECIFICATIONS, *confinement.FOLDERS)
    commands = {
        "load": ("nvidia-smi: load, clock, power", load, smi),
        "apps": ("nvidia-smi --query-compute-apps", tuple(fact_gathering.COMPUTE_APPS), smi),
        "cdi": ("CDI specifications", devices, ""),
        "gpu_access": ("control groups of containers", shell(confinement.ACCESS), "docker"),
        "image_store": ("docker info", tuple(dockerd.STORE), "docker"),
        "firewall": ("nft list table", firewall.LIST, "nft"),
        **{n: (f"systemctl show {n}", tuple(containers.question(n)), "") for n in PROGRAMS},
    }
    return {
        **{n: NodeSource(label, argv, tool=tool) for n, (label, argv, tool) in commands.items()},
        "ray": NodeSource(f"Ray's State API ({asked['url']})", request=asked),
        "firewall_kept": NodeSource(firewall.KEPT, path=firewall.KEPT),
    }


TIMEOUT_S = 20.0
"""Seconds that a command may take."""


@dataclass(frozen=True)
class Observations:
    """A node's answer to `question()`, and what the inventory says of the node.

    Attributes:
        node: its name.
        answer: of the agent's `gather`.
        user: who logs in there.
        linked: whether there are other nodes, so that a link is needed.
        mtu: what the inventory wants on the link, bytes.
        fabric: interfaces of the link that the inventory names; empty where they are detected.
        docker_users: the inventory puts the login user into the group docker.
        pins: combinations of kernel and driver that are known; None when they are not at hand.
    """

    node: str
    answer: Mapping[str, Any]
    user: str = "root"
    linked: bool = True
    mtu: int = 9000
    fabric: tuple[str, ...] = ()
    docker_users: bool = False
    pins: Pins | None = field(default=None, repr=False)
    _sources: Mapping[str, NodeSource] = field(
        default_factory=lambda: sources(Context()), repr=False
    )
    _prefix: str = ""

    # -- the answer ------------------------------------------------------------------------------

    def ran(self, name: str) -> Output:
        """A command, whatever status it ended with.

        Raises:
            NotSeen: there is no such command, or it did not end in time.
        """
        done = self.answer["commands"].get(name)
        if done is None:
            raise NotSeen(self._prefix + self._why_not(name))
        return Output(done["status"], done["stdout"], done.get("stderr", ""))

    def output(self, name: str) -> str:
        """Return what a command printed.

        Raises:
            NotSeen: as `ran`, or it failed.
        """
        done = self.ran(name)
        if done.status != 0:
            output = done.said[-200:] or "it printed nothing"
            label = self._prefix + self._sources[name].label
            raise NotSeen(f"{label}: status {done.status}: {output}")
        return done.stdout

    def reply(self, name: str) -> str:
        """The body of an HTTP service's answer.

        Raises:
            NotSeen: there is no answer, or its status is not 200.
        """
        answer = self.answer["requests"].get(name)
        if answer is not None and answer["status"] == 200:
            return str(answer["body"])
        why = self.hangs(name) or "no answer"
        if answer is not None:
            body = " ".join(answer["body"].split())[:200]
            why = answer.get("reason") or f"HTTP status {answer['status']}: {body}"
        raise NotSeen(f"{self._prefix}{self._sources[name].label}: {why}")

    def text(self, name: str) -> str:
        """A file's text.

        Raises:
            NotSeen: it is not there or cannot be read.
        """
        found = self.answer["files"].get(name)
        if found is None:
            why = self.hangs(name) or f"{self._sources[name].label}: not found"
            raise NotSeen(self._prefix + why)
        return str(found)

    def there(self, name: str) -> bool:
        """Return whether a file exists."""
        return self.answer["files"].get(name) is not None

    def tree(self, name: str) -> dict[str, str]:
        """The files of a glob: path to text, without the line's end; empty when there is none."""
        return {path: text.strip() for path, text in self.answer["trees"][name].items()}

    def hangs(self, name: str) -> str:
        """Return the agent's message on a command that timed out; empty when it did not."""
        return str(self.answer.get("late", {}).get(name, ""))

    def _why_not(self, name: str) -> str:
        source = self._sources[name]
        if self.hangs(name):
            return self.hangs(name)
        if source.tool and self.answer["commands"].get("tools") and not self.has(source.tool):
            return f"{source.label}: there is no {source.tool} on the node"
        if source.tool:
            return f"{source.label}: no answer within {TIMEOUT_S:g} s"
        return f"{source.label}: there is no such command, or it did not answer"

    def named(self) -> Observations:
        """The same, for checks of several nodes: what is not seen says on which."""
        return replace(self, _prefix=f"{self.node}: ")

    # -- read on demand --------------------------------------------------------------------------

    def has(self, tool: str) -> bool:
        """Return whether a program is installed."""
        return tool in self.output("tools").split()

    @cached_property
    def facts(self) -> Facts:
        """The facts that the same answer makes, with the kernel from /proc."""
        found = fact_gathering.facts(self.answer)
        return replace(found, kernel=self.kernel) if self.there("kernel") else found

    @property
    def kernel(self) -> str:
        return self.text("kernel").strip()

    @property
    def memory(self) -> Memory:
        """The memory; raises NotSeen without /proc/meminfo."""
        self.text("meminfo")
        return self.facts.memory

    @property
    def hcas(self) -> tuple[Hca, ...]:
        """The functions of the ConnectX-7. Raises NotSeen when nothing lists them."""
        self.output("hcas")
        return self.facts.hcas

    @property
    def twins(self) -> tuple[Hca, ...]:
        """The up functions of the cabled port. Raises NotSeen without a list."""
        return cabled_port(self.facts) if self.hcas else ()

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """The interfaces; raises NotSeen when `ip` does not answer."""
        self.output("ip")
        return self.facts.interfaces

    @property
    def twin_interfaces(self) -> tuple[Interface, ...]:
        """The interfaces of the twins that are up, in their order; of a link without RDMA those
        that the inventory names.
        """
        found = {interface.name: interface for interface in self.interfaces}
        names = [twin.interface for twin in self.twins] if self.hcas else self.fabric
        return tuple(found[name] for name in names if name in found)

    @property
    def link_names(self) -> set[str]:
        """The names of all interfaces of the link. Raises NotSeen when nothing lists the HCAs."""
        return {*self.fabric, *(hca.interface for hca in self.hcas)}

    @property
    def other_gpu(self) -> str:
        """The name of its GPU when that is not a Spark's; empty for a Spark, and without a name."""
        gpu = self.facts.gpu
        return gpu.name if gpu is not None and not gpu.shares_memory else ""

    @cached_property
    def engines(self) -> tuple[ContainerState, ...]:
        """The engine's containers, and its units of the runtime venv, with their logs.

        Raises:
            NotSeen: Docker, systemd or its journal does not answer.
        """
        units = tuple(self._units())
        if units:
            units = with_logs(units, containers.stamped(self.output("unit_logs")))
        if not self.has("docker"):
            return units
        return (*parse_containers(self.output("containers"), self.output("logs")), *units)

    def _units(self) -> Iterator[ContainerState]:
        for name in PROGRAMS:
            if self.hangs(name):
                raise NotSeen(self._prefix + self.hangs(name))
            done = self.answer["commands"].get(name)
            state = containers.parse(done["stdout"], name) if done and done["stdout"] else None
            if state is not None and state.status != "absent":
                yield state

    @property
    def units(self) -> dict[str, dict[str, str]]:
        """Properties of systemd units, by name without `.service`."""
        blocks = self.output("units").strip().split("\n\n")
        read = (dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks)
        return {unit["Id"].removesuffix(".service"): unit for unit in read if "Id" in unit}

    @property
    def time(self) -> float:
        """Its clock when it was asked, seconds."""
        return float(self.output("clock"))

    @property
    def now(self) -> str:
        """The same as Docker writes moments."""
        return datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_hca(tree: Mapping[str, str]) -> dict[str, str]:
    """A tree below /sys/class/infiniband, by HCA."""
    found = (re.match(r"/sys/class/infiniband/([^/]+)/", path) for path in tree)
    return {m[1]: text for m, text in zip(found, tree.values(), strict=True) if m}


# The results of the probes: traffic between two nodes, and the endpoint's answer.


@dataclass(frozen=True)
class Ping:
    """Pings over one link in one direction.

    Attributes:
        link: `spark1 enp1s0f1np1 -> spark2`.
        small, full: whether a small and a full-size one came back; None when it could not be tried.
        message: last line that the full-size one printed.
    """

    link: str
    small: bool | None
    full: bool | None
    message: str = ""


@dataclass(frozen=True)
class Transfer:
    """A transfer over one link in one direction, by TCP or by `ib_write_bw`; Gbit/s.

    Attributes:
        rate: over the link; None when there was none.
        message: why there is no rate.
        own: of TCP, what the sending node does to itself over its loopback: the most that can be
            seen.
    """

    link: str
    rate: float | None
    message: str = ""
    own: float | None = None


@dataclass(frozen=True)
class ProbedAnswer:
    """The endpoint's answer.

    Attributes:
        health: HTTP status of /health, 0 without an answer.
        completion: what came of a question.
        expected: what the text should have in it.
    """

    health: int
    completion: Completion
    expected: str


@dataclass(frozen=True)
class OpenPort:
    """A port that answers the laptop, and is neither sshd's nor the endpoint's.

    Attributes:
        program: what listens there, as the node says; empty when it does not tell.
        engines: it is one of those that the engine is set to use.
    """

    node: str
    port: int
    program: str
    engines: bool


@dataclass(frozen=True)
class PortScan:
    """The result of a port scan from the laptop.

    Attributes:
        tried: ports that were tried, of all nodes together.
        complete: whether those were all; otherwise the time was up.
        listed: the nodes told what listens, and only that was tried.
    """

    open: tuple[OpenPort, ...]
    tried: int
    complete: bool
    seconds: float = 0.0
    listed: bool = False


@dataclass(frozen=True)
class Probed:
    """The results of all probes; None for what was not tried, with the reason in `why_not`.

    Attributes:
        cabling: where the ports lead; none where one port of each node is up, or of two nodes.
    """

    full_size: int = 8972
    cabling: tuple[Cabling, ...] | None = None
    pings: tuple[Ping, ...] | None = None
    transfers: tuple[Transfer, ...] | None = None
    rdma: tuple[Transfer, ...] | None = None
    answer: ProbedAnswer | None = None
    ports: PortScan | None = None
    why_not: Mapping[str, str] = field(default_factory=dict)
