"""Asking Docker on a node, for the resources that stand on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spark_cluster.node import units
from spark_cluster.node.values import Missing, ResourceError

if TYPE_CHECKING:
    from spark_cluster.node.host import Completed, Host

RUNNING = "running:docker.service"
"""What `Service("docker")` provides."""

STORE = ("docker", "info", "--format", "{{json .DriverStatus}}")
"""Prints `CONTAINERD_STORE` where Docker keeps images in containerd's store
(source: docker-docs-containerd)."""

CONTAINERD_STORE = "io.containerd.snapshotter"

LABELS_OFF = "label=disable"
"""What Docker adds to `security_opt` by itself where containers share ipc or pid."""

_NO_DAEMON = ("cannot connect to the docker daemon", "failed to connect to the docker api")


def docker(
    host: Host,
    *arguments: str,
    timeout: float = 60.0,
    on_output: Callable[[str], None] | None = None,
    long: bool = False,
    stdin: bytes = b"",
) -> Completed:
    """Run `docker ...`; its status is for the caller to judge.

    Args:
        timeout: seconds.
        on_output: gets each line of output as it comes.
        long: it goes on when the connection is cut, and the next run waits for it.
        stdin: what it reads.

    Raises:
        Missing: there is no docker command, or its daemon does not answer.
        ResourceError: this user may not use it.

    Example:
        docker(host, "stop", "-t", "10", "vllm").check("stopping vllm")
    """
    if host.which("docker") is None:
        raise Missing(
            "command:docker",
            "there is no docker command on this node",
            "apply the role containers first, or declare Package('docker.io')",
        )
    argv = ("docker", *arguments)
    if long:
        done = units.run(
            host, host.current, argv, stdin=stdin, timeout=timeout, on_output=on_output
        )
    else:
        done = host.run(argv, stdin=stdin, timeout=timeout, on_output=on_output)
    stderr = done.stderr.lower()
    if done.status != 0 and any(text in stderr for text in _NO_DAEMON):
        raise Missing(RUNNING, *_why_down(host))
    if done.status != 0 and "permission denied while trying to connect" in stderr:
        raise ResourceError(
            "this user has no access to the Docker daemon", "let the agent use sudo (become: true)"
        )
    return done


def inspect(host: Host, kind: str, name: str) -> dict[str, Any] | None:
    """Return what `docker KIND inspect NAME` prints, or None when there is no such object.

    Args:
        kind: `container` or `image`.

    Raises:
        Missing, ResourceError: as `docker`.
    """
    done = docker(host, kind, "inspect", name)
    if done.status == 0:
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found
    if "no such" in done.stderr.lower():
        return None
    done.check(f"inspecting {kind} {name}")
    raise AssertionError  # pragma: no cover  (check raises)


def _why_down(host: Host) -> tuple[str, str]:
    """A message that says what systemd knows of the daemon, and advice."""
    if host.which("systemctl") is None:
        return "the Docker daemon does not answer", "start it"
    shown = host.run(("systemctl", "show", "docker.service", "-p", "ActiveState,SubState,Result"))
    known = dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)
    state = f"{known.get('ActiveState', 'unknown')} ({known.get('SubState', '?')})"
    result = known.get("Result", "success")
    why = "" if result == "success" else f", result {result}"
    return (
        f"the Docker daemon does not answer: docker.service is {state}{why}",
        "see `journalctl -u docker -n 50` on the node; start it with `systemctl start docker`",
    )


def rights(config: Mapping[str, Any]) -> str:
    """Return in words what a `HostConfig` gives and takes; capabilities without their `CAP_`."""
    parts = ["privileged"] if config.get("Privileged") else []
    for name, key in (
        ("cap_add", "CapAdd"),
        ("cap_drop", "CapDrop"),
        ("security_opt", "SecurityOpt"),
    ):
        found = {str(one).removeprefix("CAP_") for one in config.get(key) or ()}
        values = sorted(found - {LABELS_OFF})
        parts.append(" ".join([name, *values]) if values else f"no {name}")
    return ", ".join([*parts, f"pid {config.get('PidMode') or 'of its own'}"])
