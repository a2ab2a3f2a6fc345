"""Asking Docker on a node, for the resources that stand on it."""

from __future__ import annotations

from collections.abc import Callable

from spark_cluster.node import units
from spark_cluster.node.containers import ContainerState, parse_state
from spark_cluster.node.host import Host
from spark_cluster.node.images import DockerImage, parse_images
from spark_cluster.node.processes import Completed
from spark_cluster.node.values import Missing, ResourceError

RUNNING = "running:docker.service"
"""What `Service("docker")` provides."""

STORE = ("docker", "info", "--format", "{{json .DriverStatus}}")
"""Prints `CONTAINERD_STORE` where Docker keeps images in containerd's store
(source: docker-docs-containerd)."""

CONTAINERD_STORE = "io.containerd.snapshotter"

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


def container(host: Host, name: str) -> ContainerState | None:
    """Return a container, or None where there is none of this name.

    Raises:
        Missing, ResourceError: as `docker`.
    """
    shown = _inspected(host, "container", name)
    return parse_state(shown) if shown else None


def image(host: Host, reference: str) -> DockerImage | None:
    """Return an image, or None where there is none of this name; its id is asked for so only.

    Raises:
        Missing, ResourceError: as `docker`; what it prints is not understood.
    """
    shown = _inspected(host, "image", reference)
    try:
        return parse_images(shown)[0] if shown else None
    except (ValueError, IndexError):
        raise ResourceError(f"docker image inspect {reference} printed no image") from None


def _inspected(host: Host, kind: str, name: str) -> str:
    """Return what `docker KIND inspect NAME` prints; empty where there is no such object."""
    done = docker(host, kind, "inspect", name)
    if done.status != 0 and "no such" in done.stderr.lower():
        return ""
    return done.check(f"inspecting {kind} {name}").stdout


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
