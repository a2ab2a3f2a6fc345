"""Docker on a node: asking it, and its images as `docker image inspect` tells them.

This is the one parser of images, on the laptop and on nodes; that of containers is next to it. What
comes is foreign input: a field of another type than Docker's counts as not there.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cluster.node import durable, units
from spark_cluster.node.containers import ContainerState, parse_state
from spark_cluster.node.host import Host
from spark_cluster.node.processes import Completed
from spark_cluster.node.replies import at, listed, mapping_of, text_of, texts_of
from spark_cluster.node.values import Missing, ResourceError


@dataclass(frozen=True)
class DockerImage:
    """An image as Docker on one node knows it.

    Attributes:
        id: `sha256:...`.
        names: `NAME:TAG`.
        digests: `NAME@sha256:...` under which it was pulled; none of one that was loaded or built.
        size: bytes, not compressed.
        created: when it was made, as Docker writes it.
        os, architecture, variant: of the machines that it is made for.
    """

    id: str
    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    size: int = 0
    created: str = ""
    os: str = "linux"
    architecture: str = "unknown"
    variant: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def image_question(reference: str) -> list[str]:
    """Return the command that tells of an image; `image_answer` reads what it prints."""
    return ["docker", "image", "inspect", reference]


def image_answer(done: Mapping[str, Any] | None) -> DockerImage | None:
    """Return the image of an answer of the agent's `gather`; None where it is not there."""
    found = listed(done["stdout"]) if done is not None and done["status"] == 0 else None
    return next(map(_image, found or []), None)


def parse_images(printed: str) -> tuple[DockerImage, ...]:
    """Read `docker image inspect NAME...`.

    Raises:
        ValueError: it is no JSON list.
    """
    found = listed(printed)
    if found is None:
        raise ValueError("docker image inspect printed no list of objects")
    return tuple(map(_image, found))


def _image(one: Any) -> DockerImage:
    size = at(one, "Size")
    return DockerImage(
        id=text_of(at(one, "Id")),
        names=texts_of(at(one, "RepoTags")),
        digests=texts_of(at(one, "RepoDigests")),
        size=size if isinstance(size, int) else 0,
        created=text_of(at(one, "Created")),
        os=text_of(at(one, "Os")) or "linux",
        architecture=text_of(at(one, "Architecture")) or "unknown",
        variant=text_of(at(one, "Variant")),
        labels=mapping_of(at(one, "Config", "Labels")),
    )


# An archive says itself how its images are called, also by names that other images have here.

NAMES = ("docker", "image", "ls", "--no-trunc", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}")
"""Prints the id and a name of each image."""

MOST_SAID = 1 << 18
"""Characters of what `docker load` says beyond which all names that are new are taken for its own.
"""

Ask = Callable[[Sequence[str]], str | None]
"""Runs a command of Docker's; returns what it prints, None where it fails."""


@contextlib.contextmanager
def keeping_names(ask: Ask, ref: str, said: Callable[[], str]) -> Iterator[list[str]]:
    """Have an archive loaded in the block; of its images only `ref` gets its name. Other images get
    theirs back, or nobody has it: of a load that ends well those that Docker has named, as a user
    can give names meanwhile; of one that ends in an error any that has changed.

    Args:
        said: returns what `docker load` has said.

    Yields:
        After the block: names of other images that the archive had.

    Raises:
        ResourceError: Docker does not say which names there are.
    """
    before, others = _named(ask(NAMES)), list[str]()
    if before is None:
        raise ResourceError("docker image ls does not say which images are here")
    whole = False
    try:
        yield others
        whole = True
    finally:
        text, own = said(), shown(ref)
        named = re.findall(r"^Loaded image: (\S+)$", text, re.MULTILINE)
        loaded = {shown(name) for name in named} - {own}
        now = _named(ask(NAMES)) or {**before, **dict.fromkeys(loaded, "")}
        if len(text) >= MOST_SAID:
            loaded, whole = loaded | (now.keys() - before.keys() - {own}), False
        others += sorted(loaded)
        gone = loaded - before.keys()
        for name, number in before.items():
            moved = name != own and now.get(name) != number and (name in loaded or not whole)
            if moved and ask(("docker", "tag", number, name)) is None:  # Docker kept nothing of it
                gone.add(name)
        if gone:
            ask(("docker", "image", "rm", "--", *sorted(gone)))


def _named(printed: str | None) -> dict[str, str] | None:
    """Return name to id of what NAMES prints; None where it prints nothing because it fails."""
    if printed is None:
        return None
    rows = (line.partition(" ") for line in printed.splitlines() if "<none>" not in line)
    return {name: number for number, _, name in rows}


def shown(ref: str) -> str:
    """Return the name of an image as Docker prints it."""
    for default in ("index.docker.io/", "docker.io/"):
        if ref.startswith(default):
            ref = ref.removeprefix(default).removeprefix("library/")
    return ref if ":" in ref.rpartition("/")[2] else f"{ref}:latest"


# Registry digests of images that came by copy: `docker load` does not know where an image was
# pulled, so a recipe's pinned digest would never be found again on the node that got the copy.
# They are in `paths.IMAGE_DIGESTS`, by the id of an image: a hash of what it names, so they stay
# true.

MOST = 100
"""Images that are kept, those written last."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def remembered(path: Path, image: str) -> list[str]:
    """Return the digests under which an image was pulled on the node that it came from."""
    return _read(path).get(image, [])


def remember(path: Path, image: str, digests: Iterable[str]) -> None:
    """Keep an image's digests.

    Raises:
        OSError: the file cannot be written.
    """
    known = _read(path)
    wanted = sorted(_valid([*known.pop(image, []), *digests]))
    if not wanted or not _DIGEST.fullmatch(image):
        return
    kept = dict([*known.items(), (image, wanted)][-MOST:])
    durable.put_file(path, json.dumps(kept).encode())


def _read(path: Path) -> dict[str, list[str]]:
    """Return what the file holds; a damaged one costs a pull and no more."""
    items = durable.read_object(path).items()
    return {image: _valid(digests) for image, digests in items if isinstance(digests, list)}


def _valid(digests: Iterable[object]) -> list[str]:
    return list({one: None for one in digests if isinstance(one, str) and _DIGEST.fullmatch(one)})


# Asking Docker on a node, for the resources that stand on it.

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
    _check_answered(host, done)
    return done


def _check_answered(host: Host, done: Completed) -> None:
    """Raise as `docker` where the daemon did not answer."""
    stderr = done.stderr.lower()
    if done.status != 0 and any(text in stderr for text in _NO_DAEMON):
        raise Missing(RUNNING, *_why_down(host))
    if done.status != 0 and "permission denied while trying to connect" in stderr:
        raise ResourceError(
            "this user has no access to the Docker daemon", "let the agent use sudo (become: true)"
        )


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
