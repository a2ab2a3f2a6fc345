"""`vllm bench serve` on the head: of the engine's own image, in a container of its own.

Nothing of it is secret: the engine answers on the loopback without a key, which is the concern of
the proxy in front of it. The container sees the model and the recipe's files read-only, reaches no
hub, has one capability of root (to open any file), and is ended before the server when memory is
short.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_cluster.bench import on_node, vllm_bench
from spark_cluster.bench.benchy import OFFLINE, Target
from spark_cluster.bench.expansion import REQUESTS, PlannedCell
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.config.caches import CACHES
from spark_cluster.engine.deployment import Server
from spark_cluster.node import confinement
from spark_cluster.node.bench import vllm_runs
from spark_cluster.node.store.layout import whole_folder
from spark_cluster.resources.program import split_mount
from spark_cluster.runner.session import Session

OUT = "/spark-bench"
"""Folder for results in the container."""

RUN_S = 3600.0
"""Seconds that a repetition may take, in addition to twice the time in which its requests come."""

SLACK_S = 60.0
"""Seconds for Docker, of each repetition."""

FIRST_TO_END = "500"
"""Of `--oom-score-adj`: where memory is short, the kernel ends the load before the server."""

CONFINED = (
    "--pull", "never", "--restart", "no", "--init", "--network", "host", "--gpus", "all",
    *confinement.options(confinement.READ_OTHERS),
    "--oom-score-adj", FIRST_TO_END, "--log-driver", "none", "--entrypoint", "",
)  # fmt: skip
"""How the container is made. The GPU is there because vLLM looks for it when it is imported, as in
the server's own container; the program computes nothing on it. DAC_OVERRIDE: root in the container
reads files of others, as the server does; all but the folder for the result is read-only."""

REMOVE_LEFT = """\
command -v docker >/dev/null || exit 0
docker "$@" | while read -r id label; do
    test -z "$label" || docker rm --force --volumes "$id" </dev/null
done
"""
"""Remove what the listed lines name that have a label; prints what was removed."""

PASSED_ON = {"trust-remote-code": (), "tokenizer-mode": ("auto", "slow", "mistral", "custom")}
"""Flags of the server that the load generator must have too, to read the same tokenizer; with the
values that it takes, none for a bare flag."""


def cells(measured: Sequence[PlannedCell], folder: str) -> tuple[dict[str, Any], ...]:
    """Return the cells for node/bench/worker.py.

    Args:
        folder: of the step, on the node.
    """
    return tuple(
        {
            "id": cell.id,
            "argv": list(on_node.command(folder, on_node.VLLM_RUNS, cell.id)),
            "env": {},
            "result": f"raw/{vllm_bench.file_name(cell, 1)}",
            "timeout_s": limit_s(cell),
        }
        for cell in measured
    )


def limit_s(cell: PlannedCell) -> float:
    """Return the seconds that a cell may take."""
    return cell.runs * (run_s(cell) + SLACK_S)


def run_s(cell: PlannedCell) -> float:
    """Return the seconds that a repetition may take."""
    rate = cell.key.request_rate
    return RUN_S + (2 * (cell.requests or REQUESTS) / rate if rate else 0.0)


def files(
    measured: Sequence[PlannedCell],
    suite: Suite,
    target: Target,
    server: Server,
    *,
    folder: str,
    user: str,
) -> dict[str, bytes]:
    """Return what the node gets besides the programs: what one of them runs.

    Args:
        user: the login user, as whom a program without a container runs.
    """
    in_container = server.runtime == "docker"
    out = OUT if in_container else f"{folder}/{vllm_runs.OUT}"
    at = replace(target, tokenizer=server.model_path)
    prefix = ["vllm"] if in_container else [f"{server.venv}/bin/vllm"]

    def argv(cell: PlannedCell, run: int) -> list[str]:
        words = vllm_bench.arguments(cell, at, suite.settings, suite.slo, out, run=run)
        return [*prefix, "bench", "serve", *words, *_passed_on(server.flags)]

    plan: dict[str, Any] = {
        "runtime": server.runtime,
        "cells": {
            cell.id: {
                "runs": [
                    {"argv": argv(cell, run), "file": vllm_bench.file_name(cell, run),
                     "run_s": run_s(cell)}
                    for run in range(1, cell.runs + 1)
                ]
            }
            for cell in measured
        },
    }  # fmt: skip
    if in_container:
        plan |= {"docker": "docker", "create": list(create(server, folder))}
    else:
        plan |= {"user": user, "env": environment(server, out)}
    return {vllm_runs.PLAN: json.dumps(plan, indent=1).encode()}


def create(server: Server, folder: str) -> tuple[str, ...]:
    """Return the words after `docker create` with name and label, up to the program's own."""
    words = list(CONFINED)
    seen = whole_folder(server.model_path)
    model = f"{seen}:{seen}"
    for mount in (model, *server.mounts):
        words += ["--mount", _mount(mount, ",readonly")]
    words += ["--mount", _mount(f"{folder}/{vllm_runs.OUT}:{OUT}", "")]
    for name, value in sorted(environment(server, "/tmp").items()):  # noqa: S108
        words += ["--env", f"{name}={value}"]
    return (*words, server.image)


def remove_left(session: Session) -> bool:
    """Remove the container that a killed run left on a node; returns whether there was one.

    Where a run is being measured, its container is none that was left.
    """
    if on_node.is_busy(session):
        return False
    argv = ["sh", "-c", REMOVE_LEFT, "remove", *vllm_runs.LIST]
    return bool(session.run(argv, timeout=vllm_runs.DOCKER_S).stdout.strip())


def environment(server: Server, home: str) -> dict[str, str]:
    """Return the program's variables: the recipe's without its secrets, and caches of its own."""
    caches = {name: f"{home}/{folder}" for name, folder in CACHES.items()}
    venv = {"VIRTUAL_ENV": server.venv} if server.runtime == "venv" else {}
    return {**server.env, **caches, **venv, **OFFLINE, "HOME": home, "VLLM_NO_USAGE_STATS": "1"}


def _mount(mount: str, mode: str) -> str:
    source, target, _ = split_mount(mount)
    return f"type=bind,source={source},target={target}{mode}"


def _passed_on(flags: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, values in PASSED_ON.items():
        given = flags.get(name)
        if given is True and not values:
            words.append(f"--{name}")
        elif given in values:
            words += [f"--{name}", str(given)]
    return words
