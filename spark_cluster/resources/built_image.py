"""An image built on the node, on top of another one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_cluster.node.dockerd import docker, image
from spark_cluster.node.host import Host
from spark_cluster.node.processes import Completed
from spark_cluster.node.values import Missing, ResourceError
from spark_cluster.resources.base import Resource, State, absolute, checks, like, one_of
from spark_cluster.resources.image import REF
from spark_cluster.resources.unit import end_of

LABEL = "spark-cluster.dockerfile"
BUILD_S = 4 * 3600.0

_STEP = re.compile(r"(?:Step |#\d+ \[ *)\d+/\d+.*")
"""A step, as the classic builder and BuildKit tell it."""

_WHY = (
    (
        r"Temporary failure in name resolution|Could not resolve host|Network is unreachable",
        "a step asks for the network: image.build.network in the recipe lets it, if you trust it",
    ),
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
    """An image that was built from exactly this Dockerfile and these files.

    Without files the Dockerfile is all that the build gets: it can fetch (`ADD https://...`,
    `RUN`), but not copy a file of the laptop. A label of the image keeps the hash of all that it
    was built from, so the image is built again when that changes, and not when only its base's tag
    has moved.

    Args:
        ref: name and tag of the result.
        dockerfile: text of the Dockerfile.
        context: folder of the node with the files that it copies.
        files: path in that folder to SHA-256; a build does not begin with others than these.
        network: `host`, or `none` for steps that shall fetch nothing.
        timeout_s: longest time of the whole build, seconds.

    Raises:
        ResourceError: a step fails, with the last lines that it said; or a file is another one.

    Example:
        BuiltImage("local/vllm:fixed", "FROM vllm/vllm-openai:v0.20.1\\nRUN ...")
    """

    valid = checks(
        ref=like(rf"(?!.*@){REF.pattern}", "an image name like name:tag"),
        network=one_of("host", "none"),
        context=absolute,
    )

    ref: str
    dockerfile: str = field(default="")
    context: str = field(default="", kw_only=True)
    files: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    network: str = field(default="host", kw_only=True)
    timeout_s: float = field(default=BUILD_S, kw_only=True)

    def validate(self) -> None:
        base = re.search(r"^[ \t]*FROM\s", self.dockerfile, re.MULTILINE | re.IGNORECASE)
        self.must(base, "the Dockerfile has no FROM")
        self.must(bool(self.files) == bool(self.context), "files and context belong together")

    def provides(self) -> tuple[str, ...]:
        return (f"image:{self.ref}",)

    @property
    def hash(self) -> str:
        """The hash of all that the build gets."""
        whole = self.dockerfile
        if self.files:
            whole = json.dumps([self.dockerfile, sorted(self.files.items()), self.network])
        return hashlib.sha256(whole.encode()).hexdigest()

    def desired(self) -> State:
        return {"image": "present", "dockerfile": self.hash[:12]}

    def observe(self, host: Host) -> State:
        found = image(host, self.ref)
        if found is None:
            return {"image": "absent"}
        return {"image": "present", "dockerfile": found.labels.get(LABEL, "")[:12] or "another"}

    def converge(self, host: Host, actual: State) -> None:
        self._verify_files(host)
        host.progress(f"building {self.ref}")

        def on_output(line: str) -> None:
            if _STEP.match(line):
                host.progress(f"{self.ref}: {line}")

        # BuildKit ignores --force-rm; the older builder leaves the container of a step that fails.
        done = docker(
            host,
            *("build", "--force-rm", "--network", self.network, "--label", f"{LABEL}={self.hash}"),
            *("--tag", self.ref),
            *(("--file", "-", str(host.path(self.context))) if self.files else ("-",)),
            stdin=self.dockerfile.encode(),
            timeout=self.timeout_s,
            on_output=on_output,
            long=True,
        )
        if done.status != 0:
            raise self._failed(done)

    def _verify_files(self, host: Host) -> None:
        """Look whether every file is the one that was declared: it runs as root in the build."""
        for path, sha256 in self.files.items():
            place = host.path(f"{self.context}/{path}")
            if not place.is_file():
                raise Missing(f"path:{self.context}/{path}", f"{self.context}/{path} is not there")
            found = hashlib.sha256(place.read_bytes()).hexdigest()
            if found != sha256:
                raise ResourceError(
                    f"{self.context}/{path} has the SHA-256 {found[:12]}, expected {sha256[:12]}",
                    "something else wrote it: run it again, which sends the file anew",
                )

    def _failed(self, done: Completed) -> ResourceError:
        output = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        hint = next(hint for pattern, hint in _WHY if re.search(pattern, "\n".join(output)))
        return ResourceError(f"building {self.ref} failed; it ends:{end_of(output[-8:])}", hint)
