"""The engine's server on its head, without the laptop: its program, a completion, its memory and
addresses, its start and stop.

What the laptop knows (names, labels, paths, requests) comes in the configuration that the role
`supervise` writes, so that this module repeats none of it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_cluster.node import containers, load_watch, nvidia_smi, own_program, telemetry
from spark_cluster.node.containers import ContainerState, parse_state
from spark_cluster.node.health import Completion, completion_of, request_of
from spark_cluster.node.http import ask
from spark_cluster.node.replies import at, decoded

COMMAND_S = 20.0
"""Seconds for a question to Docker, systemd or nvidia-smi."""

ACT_S = 180.0
"""Seconds to stop or start a program."""

RETURNED = 0.9
"""Share of the memory that the server held, which must be available before it is started."""

QUESTION, MAX_TOKENS = "Answer with one word: what is the capital of France?", 8
"""The request to a chat model; any answer shows that its engine works."""

UNSEEN = ContainerState("unknown")
"""Docker or systemd does not answer."""

_ADDRESS = re.compile(r"--node-ip-address=(\S+)")


def output(argv: Sequence[str], limit_s: float = COMMAND_S) -> str | None:
    """Return what a command prints; None where it fails, hangs or is not there."""
    return own_program.printed(argv, limit_s)


def stop_command(name: str, runtime: str) -> list[str]:
    """Return the command that stops a program as a person does, so that it stays stopped."""
    unit = ["systemctl", "stop", f"{name}.service"]
    return unit if runtime == "venv" else ["docker", "stop", "-t", "5", name]


def start(
    name: str, runtime: str, programs: Sequence[str], limit_s: float, config: Mapping[str, Any]
) -> str:
    """Start a server with memory given back before and its load guarded.

    Args:
        programs: those that the guard ends, with the server.
        limit_s: seconds after which the guard ends.

    Returns:
        The command that failed; empty where it did not.
    """
    end_guard(name, config)
    prepare_memory(config)
    unit = ["systemctl", "start", f"{name}.service"]
    argv = unit if runtime == "venv" else ["docker", "start", name]
    if output(argv, ACT_S) is None:
        return " ".join(argv)
    guard_load(name, programs, limit_s, config)
    return ""


def stop(name: str, runtime: str, config: Mapping[str, Any]) -> str:
    """Stop a server, so that it stays stopped, and the guard of its load; returns as `start`."""
    end_guard(name, config)
    argv = stop_command(name, runtime)
    return "" if output(argv, ACT_S) is not None else " ".join(argv)


def program(name: str, config: Mapping[str, Any]) -> ContainerState:
    """Return a program of ours; `unknown` where Docker or systemd does not answer."""
    folder = str(config["unit_folder"])
    if Path(f"{folder}/{name}.service").exists():
        shown = output(containers.question(name, folder))
        return containers.parse(shown, name) if shown else UNSEEN
    # One question that both a missing container and a Docker that is down answer differently.
    listed = output(
        ["docker", "container", "ls", "--all", "--quiet", "--filter", f"name=^/?{name}$"]
    )
    if listed is None:
        return UNSEEN
    if not listed.strip():
        return ContainerState("absent")
    found = parse_state(output(["docker", "container", "inspect", name]) or "")
    return found if found.status != "absent" else UNSEEN  # it was listed


def answer(server: ContainerState, limit_s: float) -> Completion:
    """Ask for a real answer within a limit in seconds."""
    base = server.label(containers.ENDPOINT).removesuffix("/v1")
    if not base:
        return Completion(0, why="its labels name no endpoint")
    if server.kind == "transcription":  # a form with audio in it: its health has to do
        path = "/health"
        asked: dict[str, Any] = {"url": f"{base}{path}"}
    else:
        model = server.label(containers.MODEL)
        path, body, kind = request_of(server.kind, model, QUESTION, MAX_TOKENS)
        asked = {"url": base + path, "method": "POST", "body": body}
        asked["headers"] = {"Content-Type": kind}
    reply = ask({**asked, "timeout": limit_s})
    status, text = reply["status"], str(reply.get("body", ""))
    if status == 200 and path == "/health":
        return Completion(200)
    found = completion_of(server.kind, status, text, str(reply.get("reason") or ""))
    what = f"answers with status {status}" if status else "does not answer"
    what = "gives no answer" if status == 200 else what
    return replace(found, why=f"{path} {what}: {found.why}") if found.why else found


def tokens(server: ContainerState) -> float | None:
    """Return the tokens that the server has read and written so far; None where it does not say."""
    base = server.label(containers.ENDPOINT).removesuffix("/v1")
    reply = ask({"url": f"{base}/metrics", "timeout": telemetry.ASK_S})
    found = telemetry.figures(str(reply["body"])) if reply["status"] == 200 else None
    if found is None:
        return None
    return (found["prompt_tokens"] or 0.0) + (found["generation_tokens"] or 0.0)


def held_mib(programs: Sequence[tuple[str, ContainerState]]) -> int:
    """Return the GPU memory that processes of these programs hold on this node."""
    ours = {pid for name, one in programs for pid in _pids(name, one)}
    listed = nvidia_smi.processes(output(nvidia_smi.APPS) or "")
    return sum(mib or 0 for pid, _, mib in listed if pid in ours)


def _pids(name: str, one: ContainerState) -> set[int]:
    if one.runtime == "docker":
        text = output(["docker", "top", name, "-eo", "pid"]) or ""
    else:
        try:
            text = Path(f"/sys/fs/cgroup/system.slice/{name}.service/cgroup.procs").read_text()
        except OSError:
            text = ""
    return {int(word) for word in text.split() if word.isdecimal()}


def memory_obstacle(need_mib: int, title: str) -> str:
    """Return what holds the memory that the server needs, with its process; or nothing.

    Args:
        need_mib: what it held when it served; 0 where that is not known.
        title: pattern of the titles of an engine's processes, none of which may be left.
    """
    shown = output(nvidia_smi.APPS)
    if shown is None:
        return "nvidia-smi does not answer"
    listed = sorted(nvidia_smi.processes(shown), key=lambda row: -(row[2] or 0))
    named = [f"PID {pid} {name} ({mib} MiB)" for pid, name, mib in listed]
    for (_, name, _), text in zip(listed, named, strict=True):
        if re.match(title, name):
            return f"memory is still held by {text}"
    available = load_watch.meminfo().get("MemAvailable", 0) // 1024
    if available >= need_mib * RETURNED:
        return ""
    holder = f"; GPU memory is held by {', '.join(named[:3])}" if named else ""
    return f"{available} MiB of memory are available, the server held {need_mib} MiB{holder}"


def ray_obstacle(server: ContainerState, config: Mapping[str, Any]) -> str:
    """Return how many of the nodes that serve Ray shows, where some are missing; or nothing."""
    if not server.on_ray:
        return ""
    size = server.number(containers.NODES, server.number(containers.TP, 1))
    url = f"http://127.0.0.1:{server.label(containers.DASHBOARD)}{containers.RAY_NODES}"
    reply = ask({"url": url, "timeout": 5.0, "bearer_file": config["ray_token"]})
    rows = at(decoded(reply["body"]), "data", "result", "result")
    if not isinstance(rows, list):
        return f"Ray's head does not answer (status {reply['status']})"
    alive = sum(at(row, "state") == "ALIVE" for row in rows)
    return "" if alive >= size else f"Ray shows {alive} of {size} nodes: is the other one on?"


def lost_of_ray(ray: ContainerState) -> list[str]:
    """Return the addresses with which Ray is started here, and that are none of the node's."""
    return [address for address in _ADDRESS.findall(ray.words) if not _is_own(address)]


def lost_of_endpoint(config: Mapping[str, Any]) -> list[str]:
    """Return the address of the proxy in front of the server, if it is none of the node's."""
    try:
        url = json.loads(Path(config["description"]).read_text())["url"]
        host = urlsplit(str(url)).hostname
    except (OSError, ValueError, KeyError, TypeError):  # there is no proxy
        return []
    return [host] if host and not _is_own(host) else []


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def prepare_memory(config: Mapping[str, Any]) -> None:
    """Give the page cache back and compact memory, where that is the GPU's, too."""
    if config["unified_memory"]:
        output(own_program.argv(load_watch.RECLAIM, "/"), load_watch.RECLAIM_S)


def guard_load(
    server: str, programs: Sequence[str], limit_s: float, config: Mapping[str, Any]
) -> None:
    """Guard the load of a server that has been started."""
    if config["unified_memory"]:
        told = load_watch.GuardSettings(server, tuple(programs), limit_s)
        output(load_watch.start(told, os.environ.get("PATH", os.defpath)))


def load_ended_for(server: str) -> str:
    """Return why the load of a server was ended; empty where it was not."""
    try:
        found = load_watch.parse(Path(load_watch.reason_file(server)).read_text())
    except OSError:
        return ""
    return f"its load was ended before the node ran out of memory: {found}" if found else ""


def end_guard(server: str, config: Mapping[str, Any]) -> None:
    """End the guard_load of a server, and forget its load_ended_for."""
    if config["unified_memory"]:
        output(["systemctl", "stop", load_watch.unit(server)])
        Path(load_watch.reason_file(server)).unlink(missing_ok=True)


# Stop a server that ends again and again, without the laptop and without `supervise`.
#
# Docker and systemd start a program again for ever, and each start of an engine that fails may
# leave memory behind, until sshd no longer answers (source: eugr-257). Docker's own `on-failure:N`
# counts over the whole life of a container, does not start one again that ended with status 0, and
# starts one at boot that was stopped by hand (moby: daemon/internal/restartmanager); so this counts
# restarts within a window, and stops the program as a person does, which Docker respects at boot,
# too.

RESTARTS_WINDOW_S = 3 * 3600.0
"""Seconds in which they count: a load that fails after half an hour is stopped as well, a server
that dies now and then is not."""

RESTARTS_LOOK_S = 15.0
"""Seconds between two looks."""


@dataclass(frozen=True)
class KnownRestarts:
    """The restarts of one program.

    Attributes:
        program: its id, which changes when `up` makes it again.
        counted: how often its runtime had started it again at the last look.
        at: moments of those within the window, in seconds of the monotonic clock.
    """

    program: str
    counted: int
    at: tuple[float, ...] = ()


def count_restarts(
    known: KnownRestarts | None, seen: ContainerState, now: float, obstacle: Callable[[], str]
) -> KnownRestarts:
    """Return the restarts after a look.

    What happened before the first look is not known by its moment and does not count. A start by
    hand lets the runtime count from 0, and so does a start of Docker.

    Args:
        obstacle: says what the server had to wait for, so that its restarts do not count.
    """
    if known is None or known.program != seen.id or seen.restarts < known.counted:
        return KnownRestarts(seen.id, seen.restarts)
    recent = tuple(t for t in known.at if now - t < RESTARTS_WINDOW_S)
    new = seen.restarts - known.counted
    return KnownRestarts(
        seen.id, seen.restarts, recent + (now,) * (0 if new and obstacle() else new)
    )


def _servers_of(config: Mapping[str, Any]) -> set[str]:
    """Return the names that servers have on this node, whether they are there or not."""
    server = str(config["server"])
    listed = output(config["servers"]) or ""
    units = (path.stem for path in Path(config["unit_folder"]).glob(f"{server}-*.service"))
    return {server, *listed.split(), *units}


def stop_restarted(
    config: Mapping[str, Any], known: Mapping[str, KnownRestarts], now: float
) -> dict[str, KnownRestarts]:
    """Look at each server, and stop those that were started again too often.

    Restarts do not count while Ray lacks a node: the server serves again when the node is back.
    """
    found = {}
    for name in sorted(_servers_of(config)):
        seen = program(name, config)
        if not seen.id:  # Docker does not answer, or there is no such server
            continue
        obstacle = partial(ray_obstacle, seen, config)
        found[name] = count_restarts(known.get(name), seen, now, obstacle)
        if len(found[name].at) >= containers.RESTART_LIMIT and seen.kept_up:
            _stop_restarted(name, seen)
    return found


def _stop_restarted(name: str, seen: ContainerState) -> None:
    argv = stop_command(name, seen.runtime)
    done = output(argv, ACT_S)
    said = "stopped" if done is not None else f"not stopped, {' '.join(argv)} failed"
    often = f"{containers.RESTART_LIMIT} times within {RESTARTS_WINDOW_S / 3600:g} hours"
    print(
        f"{name} was started again {often} and is {said}: its log says why it ends, and "
        "`spark-cluster up` starts it",
        flush=True,
    )


def limit_restarts(config: str) -> int:
    """Look again and again, until the unit is stopped."""
    read = json.loads(Path(config).read_text())
    known: Mapping[str, KnownRestarts] = {}
    while True:
        try:
            known = stop_restarted(read, known, time.monotonic())
        except OSError as error:
            print(f"this look failed: {error}", flush=True)
        time.sleep(RESTARTS_LOOK_S)
