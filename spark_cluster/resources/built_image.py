"""An image built on the node, on top of another one."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_cluster.node.values import InvalidResource, ResourceError
from spark_cluster.resources.base import Resource, State
from spark_cluster.resources.docker import docker, inspect
from spark_cluster.resources.image import REF

if TYPE_CHECKING:
    from spark_cluster.node.host import Completed, Host

LABEL = "spark-cluster.dockerfile"
BUILD_S = 4 * 3600.0

_STEP = re.compile(r"(?:Step |#\d+ \[ *)\d+/\d+.*")
"""A step, as the classic builder and BuildKit tell it."""

_WHY = (
    (
        r"COPY failed|failed to calculate checksum|no source files",
        "a build gets the Dockerfile alone: fetch with ADD https://..., or use a patch",
    ),
    (
        r"(?i)no such host|could not resolve|name resolution|dial tcp|i/o timeout|unreachable",
        "the node could not fetch something: check its network and DNS",
    ),
    (r"no space left", "the disk of the Docker store is full: `docker system df` on the node"),
    (r"", "the Dockerfile is in the recipe, under image.build"),
)


@dataclass(frozen=True)
class BuiltImage(Resource):
    """An image that was built from exactly this Dockerfile.

    The Dockerfile is all that the build gets: it can fetch (`ADD https://...`, `RUN`), but not
    copy a file of the laptop. A label of the image keeps its hash, so the image is built again
    when the text changes, and not when only its base's tag has moved.

    Args:
        ref: name and tag of the result.
        dockerfile: text of the Dockerfile.

    Raises:
        ResourceError: a step fails; with the last lines that it said.

    Example:
        BuiltImage("local/vllm:fixed", "FROM vllm/vllm-openai:v0.20.1\\nRUN ...")
    """

    ref: str
    dockerfile: str = field(default="")

    def validate(self) -> None:
        if not REF.fullmatch(self.ref) or "@" in self.ref:
            raise InvalidResource(f"BuiltImage: {self.ref!r} is not an image name like name:tag")
        if not re.search(r"^\s*FROM\s", self.dockerfile, re.MULTILINE | re.IGNORECASE):
            raise InvalidResource(f"BuiltImage {self.ref}: the Dockerfile has no FROM")

    def provides(self) -> tuple[str, ...]:
        return (f"image:{self.ref}",)

    @property
    def hash(self) -> str:
        """The hash of the Dockerfile."""
        return hashlib.sha256(self.dockerfile.encode()).hexdigest()

    def desired(self) -> State:
        return {"image": "present", "dockerfile": self.hash[:12]}

    def observe(self, host: Host) -> State:
        found = inspect(host, "image", self.ref)
        if found is None:
            return {"image": "absent"}
        return {"image": "present", "dockerfile": _labels(found).get(LABEL, "")[:12] or "another"}

    def converge(self, host: Host, actual: State) -> None:
        host.progress(f"building {self.ref}")

        def on_output(line: str) -> None:
            if _STEP.match(line):
                host.progress(f"{self.ref}: {line}")

        done = docker(
            host,
            *("build", "--network", "host", "--label", f"{LABEL}={self.hash}"),
            *("--tag", self.ref, "-"),
            stdin=self.dockerfile.encode(),
            timeout=BUILD_S,
            on_output=on_output,
            long=True,
        )
        if done.status != 0:
            raise self._failed(done)

    def _failed(self, done: Completed) -> ResourceError:
        output = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        end = "".join(f"\n    {line}" for line in output[-8:])
        hint = next(hint for pattern, hint in _WHY if re.search(pattern, "\n".join(output)))
        return ResourceError(f"building {self.ref} failed; it ends:{end or ' (nothing)'}", hint)


def _labels(found: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = (found.get("Config") or {}).get("Labels") or {}
    return labels
