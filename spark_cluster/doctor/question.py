"""The question to a node: one exchange for everything that the checks need."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from spark_cluster.config import fact_gathering
from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.config.ports import EnginePorts
from spark_cluster.engine import firewall, ray
from spark_cluster.engine.names import PAUSE, PROGRAMS
from spark_cluster.engine.runtime import JOURNAL
from spark_cluster.issues.entries import shipped
from spark_cluster.node import confinement, containers, dockerd, paths
from spark_cluster.node.nvidia_smi import THROTTLE

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


@cache
def _file() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))


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
    return {name: _source(name, given, known) for name, given in _file().items()}


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
