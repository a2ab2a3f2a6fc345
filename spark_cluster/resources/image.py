"""A container image on the node, pulled or loaded from an archive."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_cluster.node import dockerd, paths
from spark_cluster.node.dockerd import DockerImage, docker, image
from spark_cluster.node.host import Host
from spark_cluster.node.processes import Completed
from spark_cluster.node.values import Missing, ResourceError
from spark_cluster.resources.base import Resource, State, absolute, checks, given, like

PULL_S = 4 * 3600.0
LOAD_S = 3600.0

REF = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

_WHY = (
    (r"no matching manifest", "it is not built for this node's architecture", "choose another tag"),
    (r"manifest unknown|not found", "the registry has no such tag", "check the tag"),
    (r"toomanyrequests|rate limit", "the registry's rate limit is reached", "log in, or wait"),
    (
        r"unauthorized|denied|authentication required",
        "the registry denies access: it is private, or there is no such repository",
        "`docker login` on the node, or check the name",
    ),
    (
        r"no such host|dial tcp|i/o timeout|unreachable|resolution|handshake timeout|refused",
        "the registry cannot be reached from this node",
        "check the node's network and DNS, or load an archive (archive=...)",
    ),
    (r"no space left", "the disk of the Docker store is full", "`docker system df` on the node"),
)


@dataclass(frozen=True)
class Image(Resource):
    """An image that `docker run` can use, for this node's architecture.

    Args:
        ref: as in `docker run`; `name:tag`, or `name@sha256:...` to pin it.
        archive: a file on the node, made by `docker save`, to load instead of pulling.
        digest: `sha256:...` that it must have: of the registry, or (archives) the image's id.
        platform: e.g. `linux/arm64`; otherwise that of the node.

    Raises:
        ResourceError: no network, refused, no such tag, wrong architecture, wrong digest.

    Example:
        Image("vllm/vllm-openai:v0.12.0", digest="sha256:6f5e...")
    """

    valid = checks(
        ref=like(REF, "an image reference like name:tag"),
        archive=absolute,
        digest=like("sha256:[0-9a-f]{64}", "sha256: and 64 hex digits"),
        platform=like(r"\w+/\w+(/\w+)?", "os/arch"),
    )

    ref: str
    archive: str | None = field(default=None, kw_only=True)
    digest: str | None = field(default=None, kw_only=True)
    platform: str | None = field(default=None, kw_only=True)

    def validate(self) -> None:
        pinned = self.ref.partition("@")[2]
        fits = not pinned or self.digest in (None, pinned)
        self.must(fits, f"digest {self.digest} contradicts the reference")

    def provides(self) -> tuple[str, ...]:
        return (f"image:{self.ref}",)

    def desired(self) -> State:
        return given(image="present", architecture="fits", digest=self._pin)

    def observe(self, host: Host) -> State:
        found = image(host, self.ref)
        state = {"image": "absent"} if found is None else self._state(host, found)
        archive = self.archive
        if state.items() >= self.desired().items() or archive is None:
            return state
        claim = f"path:{archive}"
        if not host.path(archive).is_file() and not host.will_provide(claim):
            raise Missing(claim, f"{archive}, to load {self.ref} from, does not exist")
        return state

    def converge(self, host: Host, actual: State) -> None:
        if self.archive is not None:
            self._load(host, self.archive)
        else:
            self._pull(host)
        found = image(host, self.ref)
        if found is None:
            raise ResourceError(f"{self.ref} is not there although docker reported no error")
        self._verify(self._state(host, found))

    @property
    def _pin(self) -> str | None:
        return self.digest or self.ref.partition("@")[2] or None

    def _state(self, host: Host, found: DockerImage) -> State:
        digests = [d.partition("@")[2] for d in found.digests]
        digests.append(found.id)
        if self._pin and self._pin not in digests:  # it may have come by copy
            digests += dockerd.remembered(host.path(paths.IMAGE_DIGESTS), found.id)
        return {
            "image": "present",
            "architecture": self._misfit(found) or "fits",
            "digest": self._pin if self._pin in digests else digests[0],
        }

    def _misfit(self, found: DockerImage) -> str:
        """The image's architecture and the wanted one, when they are not the same."""
        own = f"{found.os}/{found.architecture}"
        machine = os.uname().machine
        wanted = self.platform or f"linux/{_ARCHITECTURES.get(machine, machine)}"
        if self.platform and self.platform.count("/") > 1 and found.variant:
            own += f"/{found.variant}"
        if own == wanted or (wanted.startswith(f"{own}/") and not found.variant):
            return ""
        return f"{own}, wanted {wanted}" + ("" if self.platform else f" (the node is {machine})")

    def _verify(self, state: State) -> None:
        if state["architecture"] != "fits":
            raise ResourceError(
                f"{self.ref} is for another architecture: {state['architecture']}",
                "programs in it would end with 'exec format error'; choose a tag built for it",
            )
        if self._pin and state["digest"] != self._pin:
            raise ResourceError(
                f"{self.ref} is {state['digest']}, not the pinned {self._pin}",
                "the tag was moved or the archive is another one: check which you want",
            )

    def _load(self, host: Host, archive: str) -> None:
        path = host.path(archive)
        host.progress(f"loading {self.ref} from {archive} ({path.stat().st_size / 1e9:.1f} GB)")
        printed: list[str] = []

        def ask(argv: Sequence[str]) -> str | None:
            asked = docker(host, *argv[1:])
            return asked.stdout if asked.status == 0 else None

        with dockerd.keeping_names(ask, self.ref, lambda: "".join(printed)):
            done = docker(host, "load", "-i", str(path), timeout=LOAD_S, long=True)
            printed.append(done.stdout)
            _explained(done, f"loading {archive}")
        if image(host, self.ref) is None:
            held = re.findall(r"^Loaded image(?: ID)?: (.+)$", done.stdout, re.MULTILINE)
            raise ResourceError(
                f"{archive} does not hold {self.ref}; it holds {', '.join(held) or 'no image'}",
                "give the reference that it holds, or another archive",
            )

    def _pull(self, host: Host) -> None:
        wanted = self.ref
        if self._pin and "@" not in wanted:
            wanted = f"{without_tag(self.ref)}@{self._pin}"
        options = ("--platform", self.platform) if self.platform else ()
        host.progress(f"pulling {wanted}")
        on_output = _layers(self.ref, host.progress)
        done = docker(
            host, "pull", *options, wanted, timeout=PULL_S, on_output=on_output, long=True
        )
        _explained(done, f"pulling {wanted}")
        if wanted != self.ref:
            docker(host, "tag", wanted, self.ref).check(f"naming {wanted} {self.ref}")


def need_image(host: Host, ref: str, who: str) -> DockerImage:
    """Return an image of this node.

    Args:
        who: needs it, for the message.

    Raises:
        Missing: it is not there.
    """
    found = image(host, ref)
    if found is None:
        raise Missing(
            f"image:{ref}",
            f"{who}: the image {ref} is not on this node",
            "declare an Image before it",
        )
    return found


def without_tag(ref: str) -> str:
    """Return a reference without its tag; it has no digest."""
    head, colon, tag = ref.rpartition(":")
    return head if colon and "/" not in tag else ref


def _layers(ref: str, tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return a listener to `docker pull` that reports each change of the number of layers."""
    layers: dict[str, bool] = {}

    def on_output(line: str) -> None:
        found = re.match(r"([0-9a-f]{12}): (.+)", line)
        if not found:
            return
        before = dict(layers)
        layers[found[1]] = layers.get(found[1], False) or found[2] in (
            "Pull complete",
            "Already exists",
        )
        if layers != before:
            tell(f"{ref}: {sum(layers.values())} of {len(layers)} layers")

    return on_output


def _explained(done: Completed, doing: str) -> None:
    """Raise ResourceError in plain words when `done` failed."""
    if done.status == 0:
        return
    last_line = (
        done.stderr.strip() or done.stdout.strip() or "(no output of docker)"
    ).splitlines()[-1]
    for pattern, why, hint in _WHY:
        if re.search(pattern, last_line, re.IGNORECASE):
            raise ResourceError(f"{doing}: {why}: {last_line}", hint)
    done.check(doing)
