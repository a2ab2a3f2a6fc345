"""Checks of the engine's containers on one node, and of what they and their units logged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from spark_cluster.config.fact_gathering import compute_apps
from spark_cluster.doctor.check import NodeCheck, check
from spark_cluster.doctor.hardware import holding
from spark_cluster.doctor.link import GID_TYPES
from spark_cluster.doctor.observations import NotSeen, Observations, Verdict, fail, ok, warn
from spark_cluster.engine import firewall
from spark_cluster.engine.ray import parse_nodes
from spark_cluster.engine.runtime import first_error
from spark_cluster.errors import InvalidFile
from spark_cluster.issues.entries import ORDER, Issue, LogCheck, LogPattern, catalogue, shipped
from spark_cluster.node import confinement
from spark_cluster.node.containers import FIREWALL, ContainerState, LogLine
from spark_cluster.node.dockerd import CONTAINERD_STORE, parse_images
from spark_cluster.node.output import counted

# Checks of how Docker gives containers the GPU, and of where it keeps images.

NGC_FAILS_FROM = (29, 5)
"""Version of Docker from which on tags of nvcr.io fail (source: nvidia-vss-572)."""


@check("driver.cdi", needs=("cdi",), effect="blocks")
def cdi(seen: Observations) -> Verdict:
    """the CDI specifications describe the GPU and its driver"""
    rows = [line.partition("\t") for line in seen.output("cdi").splitlines() if line.strip()]
    found = {spec for spec, tab, _ in rows if not tab}
    if not found:
        return ok("no CDI specification describes the GPU")
    stale: dict[str, list[str]] = {}
    for spec, tab, path in rows:
        if tab and spec:
            stale.setdefault(spec, []).append(path[:200])
    shown = [f"{spec} names {_and_more(paths)}, not there" for spec, paths in stale.items()]
    first, second = ({s for s in found if s.startswith(f)} for f in confinement.FOLDERS)
    if stale and stale.keys() <= first and second:
        return warn(f"{'; '.join(shown)}; {', '.join(sorted(second))} goes before it")
    if stale:
        return fail("; ".join(shown))
    if missing := [path[:200] for spec, tab, path in rows if tab and not spec]:
        return warn(f"no CDI specification names {', '.join(missing)}")
    return ok(f"{', '.join(sorted(found))}: all that is named is there")


@check("serving.gpu-access", needs=("tools", "gpu_access"), effect="blocks")
def gpu_access(seen: Observations) -> Verdict:
    """running containers can open the GPU and keep it"""
    if not seen.has("docker"):
        return ok("Docker is not installed")
    rows = confinement.states(seen.output("gpu_access"))
    names = {state: ", ".join(n for n, s, _ in rows if s == state) for _, state, _ in rows}
    if "lost" in names:
        return fail(f"{names['lost']}: started with the GPU, and may not open it")
    if "unknown-to-systemd" in names:
        return warn(f"{names['unknown-to-systemd']}: loses the GPU when systemd next reloads")
    return ok(f"{names['kept']}: may open it" if names else "no container runs with the GPU")


@check("serving.image-store", needs=("tools", "docker", "image_store"), effect="risks")
def image_store(seen: Observations) -> Verdict:
    """Docker pulls images of nvcr.io by their tags"""
    if not seen.has("docker"):
        return ok("Docker is not installed")
    version = seen.output("docker").strip()
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        raise NotSeen(f"docker version: {version[:80]!r} is not a version")
    containerd = CONTAINERD_STORE in seen.output("image_store")
    shown = f"Docker {version[:80]} with {'containerd' if containerd else 'its own'} image store"
    affected = containerd and (int(numbers[1]), int(numbers[2])) >= NGC_FAILS_FROM
    return warn(shown) if affected else ok(shown)


def _and_more(paths: list[str]) -> str:
    """`/a`, or `/a and 2 other paths`."""
    return paths[0] + (f" and {counted(len(paths) - 1, 'other path')}" if paths[1:] else "")


NONE = "there is no engine container on this node"
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
STOPPED = (0, 137, 143)
"""Exit statuses of `docker stop`."""

LOADED = re.compile(r"Loading weights took ([\d.]+) seconds")
STARTED = "Application startup complete"


@check("serving.docker", needs=("docker", "tools"), effect="blocks")
def docker(seen: Observations) -> Verdict:
    """Docker answers"""
    if not seen.has("docker"):
        return warn("Docker is not installed", "docker-missing")
    done = seen.ran("docker")
    if done.status != 0:
        return fail(done.said[-200:], "docker-down")
    return ok(f"Docker {done.stdout.strip()}")


@check("serving.docker-group", needs=("group",), effect="blocks")
def docker_group(seen: Observations) -> Verdict:
    """the login user is in the group docker only where the inventory says so"""
    rows = (line.split(":") for line in seen.text("group").splitlines())
    groups = {row[0]: row[3].split(",") for row in rows if len(row) == 4}
    if seen.user == "root":
        return ok("root logs in")
    if "docker" not in groups:
        return ok("there is no group docker: Docker is not installed")
    member = seen.user in groups["docker"]
    if member and not seen.docker_users:
        return warn(
            f"{seen.user} is in the group docker, and so is root on the node without a password",
            "docker-group-member",
            USER=seen.user,
        )
    if member:
        return ok(f"{seen.user} is in the group docker (root on the node), as the inventory says")
    if seen.docker_users:
        message = f"{seen.user} is not in the group docker, as the inventory says it should be"
        return fail(message, "docker-permission")
    return ok(f"{seen.user} is not in the group docker; `sudo docker` works")


@check("serving.containers", needs=("tools", "containers", "logs"), effect="blocks")
def containers(seen: Observations) -> Verdict:
    """the engine's containers run"""
    engines = seen.engines
    down = [e for e in engines if not e.running and _is_a_fault(e)]
    if down:
        shown = "; ".join(
            f"{e.name} is {e.in_words} (status {e.exit_code}){_because(e)}" for e in down
        )
        return (fail if any(e.ours for e in down) else warn)(shown, "container-ended")
    often = {e.name: "once" if e.restarts == 1 else f"{e.restarts} times" for e in engines}
    again = [f"{e.name} was restarted {often[e.name]}" for e in engines if e.restarts]
    if again:
        return warn("; ".join(again), "container-restarted")
    return ok(", ".join(f"{e.name} runs" for e in engines if e.running) or NONE)


@check(
    "serving.rdma-device", needs=("tools", "containers", "logs", "hcas"), effect="slows", link=True
)
def rdma_device(seen: Observations) -> Verdict:
    """the containers have the RDMA devices"""
    engines = _linked(seen)
    if not engines or not seen.hcas:
        return ok(NONE if not engines else "the node has no RDMA device")
    without = [e.name for e in engines if not e.privileged and not _has_rdma(e)]
    if without:
        return fail(f"{', '.join(without)} was started without /dev/infiniband")
    return ok(f"{', '.join(e.name for e in engines)}: /dev/infiniband is there")


@check("serving.memlock", needs=("tools", "containers", "logs"), effect="blocks", link=True)
def memlock(seen: Observations) -> Verdict:
    """the containers may lock memory"""
    engines = [e for e in _linked(seen) if _has_rdma(e) or e.privileged]
    low = [e for e in engines if e.memlock != -1]
    if low:
        shown = (f"{e.name}: {'default' if e.memlock is None else e.memlock}" for e in low)
        return fail("memlock of " + ", ".join(shown))
    return ok(", ".join(f"{e.name}: no limit" for e in engines) or NONE)


@check("serving.hcas", needs=("tools", "containers", "logs", "hcas"), effect="slows", link=True)
def hcas(seen: Observations) -> Verdict:
    """NCCL_IB_HCA names both twins"""
    up = [twin.name for twin in seen.twins]
    shown = []
    for engine in _linked(seen):
        if engine.env.get("NCCL_IB_DISABLE") == "1":
            return fail(f"{engine.name} has NCCL_IB_DISABLE=1", "nccl-sockets")
        value = engine.env.get("NCCL_IB_HCA")
        if value is None:
            continue  # NCCL takes all that are active
        chosen = chosen_hcas(value, [h.name for h in seen.hcas])
        if missing := [name for name in up if name not in chosen]:
            message = f"{engine.name}: NCCL_IB_HCA={value} leaves {', '.join(missing)} out"
            return fail(message, "nccl-one-twin")
        shown.append(f"{engine.name}: {value}")
    return ok(", ".join(shown) or NONE)


@check("serving.gid-index", needs=("tools", "containers", "logs"), effect="blocks", link=True)
def gid_index(seen: Observations) -> Verdict:
    """NCCL chooses the GID index itself"""
    pinned = {
        e.name: e.env["NCCL_IB_GID_INDEX"] for e in _linked(seen) if "NCCL_IB_GID_INDEX" in e.env
    }
    if not pinned:
        return ok("no container pins it")
    if not seen.tree(GID_TYPES):
        raise NotSeen("/sys/class/infiniband/*/ports/1/gid_attrs: not there")
    for name, value in pinned.items():
        index = int(value) if value.isdigit() else 0  # an empty text is 0 for NCCL
        wrong = [twin.name for twin in seen.twins if twin.gid_index != index]
        if wrong:
            return fail(
                f"{name}: NCCL_IB_GID_INDEX={value!r} is not a RoCE v2 IPv4 entry of "
                f"{', '.join(wrong)}"
            )
    return warn("; ".join(f"{n}: NCCL_IB_GID_INDEX={v}, right today" for n, v in pinned.items()))


@check(
    "serving.address",
    needs=("tools", "containers", "logs", "ip", "hcas"),
    effect="slows",
    link=True,
)
def address(seen: Observations) -> Verdict:
    """the engine uses the link's address and interface"""
    fabric = seen.link_names
    own = {str(a.ip) for i in seen.interfaces if i.name in fabric for a in i.addresses}
    others = {str(a.ip) for i in seen.interfaces if i.name not in fabric for a in i.addresses}
    shown = []
    for engine in _linked(seen):
        for variable in ("VLLM_HOST_IP", "RAY_NODE_IP_ADDRESS"):
            value = engine.env.get(variable)
            if value is not None and value not in own:
                if not own and value not in others:
                    raise NotSeen("no interface of the link has an address now")
                message = f"{engine.name}: {variable}={value} is not an address of the link"
                return fail(message, "engine-on-lan")
        for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            value = engine.env.get(variable)
            if value is not None and value.lstrip("=^").split(",")[0] not in fabric:
                message = f"{engine.name}: {variable}={value} is not an interface of the link"
                return fail(message, "engine-on-lan")
        if engine.is_server and "VLLM_HOST_IP" not in engine.env:
            message = f"{engine.name} has no VLLM_HOST_IP: vLLM takes the default route's"
            return warn(message, "pair-environment")
        shown.append(f"{engine.name} {engine.env.get('VLLM_HOST_IP', 'as Ray says')}")
    return ok(", ".join(shown) or NONE)


@check(
    "serving.ray-nodes", needs=("tools", "containers", "logs", "ray"), effect="blocks", link=True
)
def ray_nodes(seen: Observations) -> Verdict:
    """Ray shows every node that serves"""
    heads = [e for e in seen.engines if e.is_ray and e.running and "--head" in e.words]
    if not heads:
        return ok("there is no Ray head on this node")
    tp = max([e.tp for e in seen.engines if e.running], default=1)
    alive = sorted(node.address for node in parse_nodes(seen.reply("ray")))
    shown = f"{len(alive)} of {tp} nodes: {', '.join(alive)}"
    return ok(shown) if len(alive) >= tp else fail(shown)


@check("serving.firewall", needs=("tools", "containers", "logs", "firewall"), effect="risks")
def guarded(seen: Observations) -> Verdict:
    """the engine's ports are open to its own nodes only"""
    engines = [e for e in seen.engines if e.running and e.ours]
    if not engines:
        return ok("no container of the engine runs")
    if any(e.labels.get(FIREWALL, "absent") == "absent" for e in engines):
        return warn(
            "there is no firewall around the engine's ports",
            "firewall-absent",
        )
    done = seen.ran("firewall")
    kept = seen.text("firewall_kept") if seen.there("firewall_kept") else None
    wrong = firewall.wrong_with({"status": done.status, "stdout": done.stdout}, kept)
    return (
        fail(wrong, "firewall-changed") if wrong else ok(f"the table {firewall.TABLE} is in force")
    )


@check("serving.ray-monitor", needs=("tools", "containers", "logs"), effect="risks")
def ray_monitor(seen: Observations) -> Verdict:
    """Ray does not end workers at 95 % of memory"""
    rays = [e for e in seen.engines if e.is_ray and e.running]
    on = [e.name for e in rays if e.env.get("RAY_memory_monitor_refresh_ms") != "0"]
    if on:
        return warn(f"{', '.join(on)}: RAY_memory_monitor_refresh_ms is not 0")
    return ok(", ".join(f"{e.name}: off" for e in rays) or "no Ray is here")


@check("serving.image-arch", needs=("tools", "containers", "logs", "images"), effect="blocks")
def image_arch(seen: Observations) -> Verdict:
    """the images are made for this processor"""
    engines = [e for e in seen.engines if e.runtime == "docker"]
    if not engines:
        return ok(NONE)
    try:
        known = {one.id: one.architecture for one in parse_images(seen.output("images"))}
    except ValueError as error:
        raise NotSeen(str(error)) from None
    here = ARCHITECTURES.get(seen.facts.arch, seen.facts.arch)
    for engine in engines:
        made_for = known.get(engine.image)
        if made_for is None:
            raise NotSeen(f"docker image inspect reports nothing about the image of {engine.name}")
        if made_for != here:
            return fail(f"{engine.name}: its image is for {made_for}, the node is {here}")
    return ok(f"{', '.join(e.name for e in engines)}: {here}")


@check("serving.vram-visible", needs=("tools", "containers", "logs", "apps"), effect="risks")
def vram_visible(seen: Observations) -> Verdict:
    """the GPU's processes are seen while the engine serves"""
    serving = [e for e in seen.engines if e.running and _ready(e)]
    if not serving:
        return ok("no engine serves here")
    held = compute_apps(seen.output("apps"))
    if held:
        return ok(holding(len(held), sum(p.used_mib or 0 for p in held)))
    init = seen.text("init").strip() if seen.there("init") else "?"
    where = "" if init in ("systemd", "init") else f", asked where process 1 is {init}"
    return fail(f"{serving[0].name} serves, but nvidia-smi lists no process{where}")


@check("serving.load-time", needs=("tools", "containers", "logs"), effect="slows")
def load_time(seen: Observations) -> Verdict:
    """the weights are loaded quickly"""
    found = {e.name: [m for line in e.log if (m := LOADED.search(line.text))] for e in seen.engines}
    timed = {name: lines[-1] for name, lines in found.items() if lines}
    (pattern,) = catalogue()["slow-loading"].log
    slow = {name: line for name, line in timed.items() if pattern.regex.search(line.string)}
    shown = ", ".join(f"{name}: {float(m[1]):.0f} s" for name, m in (slow or timed).items())
    return warn(shown) if slow else ok(shown or "no engine has loaded weights")


def chosen_hcas(value: str, there: list[str]) -> set[str]:
    """Return the devices that an NCCL_IB_HCA means: `[^][=]hca[:port...]`, by prefix unless `=`.

    >>> sorted(chosen_hcas("=mlx5_1:1,mlx5_2", ["mlx5_1", "mlx5_10", "mlx5_2"]))
    ['mlx5_1', 'mlx5_2']
    >>> sorted(chosen_hcas("^mlx5_1", ["mlx5_1", "mlx5_10", "mlx5_2"]))
    ['mlx5_2']
    """
    without, text = value.startswith("^"), value.removeprefix("^")
    exact, text = text.startswith("="), text.removeprefix("=")
    names = [part.split(":")[0] for part in text.split(",") if part]
    meant = {h for h in there for n in names if h == n or (not exact and h.startswith(n))}
    return set(there) - meant if without else meant


def _linked(seen: Observations) -> list[ContainerState]:
    """Return the running containers that serve together with another node's."""
    return [e for e in seen.engines if e.running and e.tp > 1]


def _has_rdma(engine: ContainerState) -> bool:
    return any(device.startswith("/dev/infiniband") for device in engine.devices)


def _is_a_fault(engine: ContainerState) -> bool:
    """Return True unless it was unloaded, or stopped by hand (`down` removes ours)."""
    if engine.unloaded:
        return engine.exit_code not in STOPPED  # it ended by itself
    return engine.ours or bool(engine.error) or engine.exit_code not in STOPPED


def _because(engine: ContainerState) -> str:
    if engine.error:
        return f": {engine.error}"

    fault = first_error({engine.name: "\n".join(line.text for line in engine.log)})
    return f": {fault.text[:200]}" if fault else ""


def _ready(engine: ContainerState) -> bool:
    return any(STARTED in line.text and engine.since_start(line) for line in engine.log)


# Checks of what the engine's containers and units logged: the catalogue's `log_check`s.
#
# The literals are looked for on the node, so that a log of any length costs little; the patterns
# decide here. What was written before the last start is a warning: it may explain a restart.

LONGEST = 240


@dataclass(frozen=True)
class LogSearch:
    """A check of logs.

    Attributes:
        check: id, title and so on.
        issues: what it looks for; what is worse first.
    """

    check: LogCheck
    issues: tuple[Issue, ...]

    @property
    def id(self) -> str:
        return self.check.id

    @property
    def sample(self) -> str:
        """A line that was really seen."""
        return self.issues[0].samples[0]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The literals of which every line that matters has one."""
        return tuple(dict.fromkeys(p.has for issue in self.issues for p in _patterns(issue)))

    def look(self, seen: Observations) -> Verdict:
        """Return the worst verdict on the logs of a node's containers."""
        engines = seen.engines
        found = [v for issue in self.issues for e in engines if (v := _of(issue, e)) is not None]
        if found:
            return next((verdict for verdict in found if verdict.status == "fail"), found[0])
        if self.check.silent and self._is_silent(engines):
            return ok(self.check.silent)
        names = ", ".join(engine.name for engine in engines)
        return ok(
            f"not in the log of {names}" if names else "there is no engine container on this node"
        )

    def _is_silent(self, engines: Iterable[ContainerState]) -> bool:
        """Return True when engines on several nodes log nothing either way."""
        over = [engine for engine in engines if engine.running and engine.tp > 1]
        texts = (line.text for engine in over for line in engine.log)
        return bool(over) and not any(word in text for text in texts for word in self.words)


def _patterns(issue: Issue) -> list[LogPattern]:
    return [*issue.log, *([issue.cleared_by] if issue.cleared_by else [])]


def _of(issue: Issue, engine: ContainerState) -> Verdict | None:
    """Return the verdict on one issue in one container's log; None when it is not in it."""
    lines = [line for line in engine.log if any(p.regex.search(line.text) for p in issue.log)]
    cleared = _shows(issue.cleared_by, engine) and not _shows(issue.confirmed_by, engine)
    return _verdict(issue, engine, lines) if lines and not cleared else None


def _shows(pattern: LogPattern | None, engine: ContainerState) -> bool:
    """Return True when a line of the container's log matches."""
    return pattern is not None and any(pattern.regex.search(line.text) for line in engine.log)


def _verdict(issue: Issue, engine: ContainerState, lines: list[LogLine]) -> Verdict:
    now = [line for line in lines if engine.since_start(line)]
    message = f"{engine.name}: {(now or lines)[0].text[:LONGEST]}"
    if now and (engine.running or engine.ours):
        return fail(message, issue.id)
    why = "before its last start" if not now else f"it is {engine.status}"
    return warn(f"{message} ({why})", issue.id)


def searches(catalogued: Iterable[Issue]) -> tuple[LogSearch, ...]:
    """Return the checks of logs that known issues ask for, each once.

    Raises:
        InvalidFile: nothing gives one a title.
    """
    shared: dict[str, list[Issue]] = {}
    titled: dict[str, LogCheck] = {}
    for issue in catalogued:
        if issue.log_check is not None:
            shared.setdefault(issue.log_check.id, []).append(issue)
            if issue.log_check.title:
                titled.setdefault(issue.log_check.id, issue.log_check)
    untitled = next((id for id in shared if id not in titled), None)
    if untitled is not None:
        raise InvalidFile(f"{shared[untitled][0].id}: log_check.title: missing")
    return tuple(
        LogSearch(titled[id], tuple(sorted(issues, key=lambda issue: ORDER[issue.severity])))
        for id, issues in shared.items()
    )


def check_of(search: LogSearch) -> NodeCheck:
    """Return the check that looks for what a search names."""
    return check(
        search.id,
        title=search.check.title,
        needs=("tools", "containers", "logs"),
        effect=search.check.effect,
    )(search.look)


SEARCHES = searches(shipped().values())
CHECKS: tuple[NodeCheck, ...] = tuple(check_of(search) for search in SEARCHES)

ALSO = ("Application startup complete", "Loading weights took", "Error: ", "Exception: ")
"""Words that other checks look for."""

WORDS = tuple(dict.fromkeys([*(word for search in SEARCHES for word in search.words), *ALSO]))
"""What a node looks for in the logs."""
