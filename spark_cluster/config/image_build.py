"""A recipe's image, and how the nodes build it: by a Dockerfile, or scripts of others.

Steps are what sparkrun and spark-vllm-docker call mods: a folder with `run.sh`, which changes a
container before it serves. Here it is run once, in a build, with what they give it: the folder is
`/workspace/mods/NAME`, the working directory, and `WORKSPACE_DIR` is the image's own.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from spark_cluster.config.extension import Allowances
from spark_cluster.config.schema import LaptopFile, NodePath, Schema, matching
from spark_cluster.errors import Refused

MODS = "/workspace/mods"
"""Folder of the steps in the image, as sparkrun (core/mods.py) and spark-vllm-docker have it."""

_RUN = 'export WORKSPACE_DIR="$PWD" && cd "$1" && chmod +x "$2" && exec "./$2"'
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def part_of_folder(text: str) -> str:
    """Return a relative path whose parts are plain names; raise ValueError for another text."""
    if not all(_PART.fullmatch(part) for part in text.split("/")):
        raise ValueError(f"found {text!r}, expected a path such as fix/x.patch, without '..'")
    return text


Digest = Annotated[str, matching(r"sha256:[0-9a-f]{64}", "sha256: and 64 hexadecimal digits")]
PartOfFolder = Annotated[str, AfterValidator(part_of_folder)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class BuildFile(Schema):
    """A file of a step, which must be exactly the one that was imported."""

    path: PartOfFolder
    """where the step has it, in its folder"""
    file: LaptopFile
    """where it is on the laptop, next to the recipe"""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of its content"""


class BuildStep(Schema):
    """A script that changes the image, with its files; it runs as root in the build."""

    name: str = Field(pattern=rf"^{_PART.pattern}$")
    """name of the mod"""
    script: PartOfFolder = "run.sh"
    """file that is run, by bash's rules"""
    files: list[BuildFile] = Field(min_length=1)
    """all files of its folder"""
    env: dict[Variable, str] = Field(default={})
    """variables that the script sees; no secret"""
    origin: str = ""
    """address of the repository that it comes from"""
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{7,64}$")
    """commit of that repository"""

    @model_validator(mode="after")
    def _script_is_there(self) -> BuildStep:
        paths = [file.path for file in self.files]
        if self.script not in paths:
            raise ValueError(f"files has no {self.script}, which is the script")
        if len(set(paths)) < len(paths):
            raise ValueError("a path is there twice")
        return self

    @property
    def shown(self) -> str:
        """The name with the origin, as messages have it."""
        return f"{self.name} ({self.origin or 'origin unknown'}, {self.commit or 'no commit':.12})"


class Base(Schema):
    """The image that a build stands on."""

    ref: str = Field(pattern=r"^[^\s$-][^\s$]*$")
    """name and tag"""
    digest: Digest | None = None
    """sha256:..., of the registry"""
    archive: NodePath | None = None
    """file on the nodes to `docker load` instead of pulling"""

    @property
    def reference(self) -> str:
        """The name that a Dockerfile has: one from an archive has no digest of a registry."""
        return f"{self.ref}@{self.digest}" if self.digest and not self.archive else self.ref


_FROM = re.compile(r"^[ \t]*FROM[ \t]+(?:--\S+[ \t]+)*(\S+)(?:[ \t]+AS[ \t]+(\S+))?", re.M | re.I)


def bases(dockerfile: str) -> list[str]:
    """The images that it begins from, each once, without its own stages and what it computes."""
    found: dict[str, None] = {}
    stages = {"scratch"}
    for base, stage in _FROM.findall(dockerfile):
        if base.lower() not in stages and "$" not in base:
            found[base] = None
        stages.add(stage.lower())
    return list(found)


class Build(Schema):
    """An image made on the nodes on top of another one: a Dockerfile, or base and steps."""

    dockerfile: str | None = Field(default=None, pattern=r"^\s*FROM\s")
    """text of the Dockerfile; it begins with FROM"""
    base: Base | None = None
    """the image that the steps change"""
    steps: list[BuildStep] = Field(default=[])
    """scripts that change it, in this order (mods of other tools)"""
    network: bool = False
    """whether the steps may fetch something; a Dockerfile always may"""
    timeout_s: float = Field(default=1800, gt=0, le=14_400)
    """longest time for all steps, seconds"""
    why: str = Field(min_length=1)
    """what the image lacks"""

    @model_validator(mode="after")
    def _one_way(self) -> Build:
        stepwise = self.base is not None or bool(self.steps)
        if stepwise == (self.dockerfile is not None):
            raise ValueError("expected either a dockerfile, or base and steps")
        if stepwise and (self.base is None or not self.steps):
            raise ValueError("base and steps belong together; one of them is missing")
        names = [step.name for step in self.steps]
        if len(set(names)) < len(names):
            raise ValueError("two steps have the same name")
        return self

    @property
    def fetches(self) -> bool:
        """True if the build can reach the network."""
        return self.network or self.dockerfile is not None

    @property
    def option(self) -> str:
        """The option by which a user allows it."""
        return "--allow-build-network" if self.fetches else "--allow-build"

    def is_allowed(self, user: Allowances) -> bool:
        """Return whether the user lets its commands run."""
        return user.build_network if self.fetches else user.build

    @property
    def shown(self) -> str:
        """Its commands, as messages have them."""
        return ", ".join(step.shown for step in self.steps) or "its Dockerfile"

    @property
    def text(self) -> str:
        """The Dockerfile: as written, or made of the steps.

        Lists are in JSON, which no shell reads; names have no character that Docker expands.
        """
        if self.base is None:
            return self.dockerfile or ""
        return "\n".join([f"FROM {self.base.reference}", *map(_lines, self.steps)]) + "\n"


BUILT = ("spark-cluster/", "local/")
"""Where images that are built on the nodes have their names: no registry's image is there."""


class RecipeImage(Schema):
    """The container image."""

    ref: str = Field(pattern=r"^[^\s-]\S*$")
    """name and tag, as `docker pull` takes it; with build, the name of the result"""
    digest: Digest | None = None
    """sha256:..., so that all nodes run the same"""
    archive: NodePath | None = None
    """file on the nodes to `docker load` instead of pulling"""
    build: Build | None = None
    """how to build it, instead of pulling"""

    @model_validator(mode="after")
    def _one_origin(self) -> RecipeImage:
        if self.build and (self.digest or self.archive):
            raise ValueError("build: the image is built, so it has no digest or archive to take")
        if self.build and not self.ref.startswith(BUILT):
            raise ValueError(
                f"ref: {self.ref}, which is built here, could be taken for the image of that name "
                f"by other recipes; expected a name below {' or '.join(BUILT)}"
            )
        return self

    @property
    def reference(self) -> str:
        """The reference to pull and run, pinned to the digest where there is one."""
        return f"{self.ref}@{self.digest}" if self.digest else self.ref

    @property
    def archives(self) -> dict[str, str]:
        """The archives that are loaded, by their keys below `image`."""
        base = self.build.base if self.build else None
        found = {"archive": self.archive, "build.base.archive": base.archive if base else None}
        return {key: path for key, path in found.items() if path}


def context_path(step: BuildStep, file: BuildFile) -> str:
    """Return the place of a file in the folder that the build gets."""
    return f"{step.name}/{file.path}"


def remarks(build: Build | None, user: Allowances) -> list[str]:
    """Return what to know of a build before it is allowed.

    Args:
        user: what the user allows already.
    """
    if build is None or (build.is_allowed(user) and not build.steps):
        return []
    reach = "that reaches the network" if build.fetches else "without a network"
    asks = "" if build.is_allowed(user) else f"; `up` needs {build.option}"
    found = [
        f"each node builds the image once from {build.text.split()[1]}, with commands that run as "
        f"root in a build {reach}: {build.shown}{asks}"
    ]
    if build.base is not None and not (build.base.digest or build.base.archive):
        found.append(
            "image.build.base has no digest: its tag may mean another image than the scripts expect"
        )
    return found


def _lines(step: BuildStep) -> str:
    folder = f"{MODS}/{step.name}"
    by_folder: dict[str, list[str]] = {}
    for file in step.files:
        inside, _, _ = f"{folder}/{file.path}".rpartition("/")
        by_folder.setdefault(inside, []).append(context_path(step, file))
    copies = [f"COPY {json.dumps([*files, f'{to}/'])}" for to, files in by_folder.items()]
    env = [f"{name}={value}" for name, value in step.env.items()]
    run = ["env", *env, "bash", "-c", _RUN, step.name, folder, step.script]
    return "\n".join([*copies, f"RUN {json.dumps(run)}"])


LARGEST_STEP_FILE = 16 << 20
"""Bytes of one file of a step; patches and Python files have a thousandth of it."""


def build_settings(build: Build) -> dict[str, Any]:
    """Return what the role `images` gets for a build with steps.

    Raises:
        Refused: a file is missing, or is another one than the recipe says.
    """
    files = {
        context_path(step, file): {"file": _checked(step, file), "sha256": file.sha256}
        for step in build.steps
        for file in step.files
    }
    return {
        "base_archive": build.base.archive if build.base else None,
        "files": files,
        "network": build.network,
        "timeout_s": build.timeout_s,
    }


def _checked(step: BuildStep, file: BuildFile) -> Path:
    path = Path(file.file)
    where = f"step {step.name} of image.build"
    if not path.is_file():
        raise Refused(
            f"the file {path} is not on this machine",
            where=where,
            hint="`file` is relative to the recipe; spark-cluster recipes import writes it there",
        )
    size = path.stat().st_size
    if size > LARGEST_STEP_FILE:
        raise Refused(
            f"the file {path} has {size >> 20} MiB, expected at most {LARGEST_STEP_FILE >> 20}",
            where=where,
        )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != file.sha256:
        raise Refused(
            f"the file {path} has the SHA-256 {found[:12]}..., expected {file.sha256[:12]}...",
            where=where,
            hint="it was changed after the import: read it, and write its own sha256 into the "
            "recipe (sha256sum) if that is what should run",
        )
    return path
